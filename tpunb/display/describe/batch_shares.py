"""How a batch is divided over the cores: the rows of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tpunb.display.describe.collective_effect import MOST_CORES
from tpunb.errors import TpunbError
from tpunb.tpu.types import Accelerator


@dataclass(frozen=True, slots=True)
class BatchShares:
    """A batch and its parts.

    Attributes:
        name: The TPU type, or the number of cores.
        rows: The rows of the batch.
        full: The rows of a full batch; the same, except for a smaller last batch.
        shares: The first row of each core, and the row after its last.
    """

    name: str
    rows: int
    full: int
    shares: tuple[tuple[int, int], ...]

    @property
    def is_even(self) -> bool:
        """Whether all cores have the same number of rows."""
        return len({end - begin for begin, end in self.shares}) == 1


def shares_of(rows: Any, acc: Accelerator, full: Any = None) -> BatchShares:
    """Divide a batch as TensorFlow divides the batches of a dataset on one host.

    Args:
        rows: The rows of the batch.
        acc: The TPU, with one replica on each core.
        full: The rows of the dataset's full batches, if this is a smaller last batch.

    Raises:
        TpunbError: A number is wrong.
    """
    full = rows if full is None else full
    for number in (rows, full):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise TpunbError(f"A batch has a number of rows, not {number!r}.", fix="Such as 64.")
    cores = acc.num_devices
    if not 2 <= cores <= MOST_CORES:
        raise TpunbError(
            f"A picture shows 2 to {MOST_CORES} cores, and {acc.name} has {cores}.",
            fix="Choose a smaller TPU, such as v5e-8.",
        )
    if rows > full:
        raise TpunbError(
            f"The last batch has {rows} rows, and a full batch only {full}.",
            fix="A last batch is the smaller one: tpunb.draw.batch(60, of=64).",
        )
    # TensorFlow gives the rows that are left over to the first replicas, one each.
    sizes = [full // cores + (core < full % cores) for core in range(cores)]
    ends = [min(sum(sizes[: core + 1]), rows) for core in range(cores)]
    return BatchShares(acc.name, rows, full, tuple(zip([0, *ends[:-1]], ends, strict=True)))
