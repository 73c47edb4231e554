"""Block sizes of a Pallas kernel: which fit a core's fast memory, and how long each takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tpunb._util.plain_text import aligned, plain, shortened
from tpunb._util.tables import scrolled, table
from tpunb._util.units import counted
from tpunb.compiler.ask.compile_settings import CompileOptions
from tpunb.compiler.ask.partial_answers import CompilationStopped
from tpunb.compiler.ask.topologies import names_of
from tpunb.compiler.ask.verdict import reporting
from tpunb.compiler.compile import compile_call
from tpunb.compiler.program import CompileError, TpuProgram, TpuPrograms
from tpunb.errors import TpunbError
from tpunb.tpu.compiled_program import time_of_tpu

_LONGEST = 160
_HEAD = ("blocks", "time a call", "limit", "verdict")


@dataclasses.dataclass(frozen=True)
class TunedBlocks:
    """A kernel with some block sizes.

    Attributes:
        blocks: The sizes, as they were given.
        program: The compiled program; None if JAX refuses the sizes.
        refusal: Why JAX refuses them; empty if it does not.
    """

    blocks: tuple[Any, ...]
    program: TpuProgram | None
    refusal: str = ""

    @property
    def seconds(self) -> float | None:
        """The middle of the time on the TPU; None if it does not compile or is not known."""
        known = self.program is not None and self.program.ok and self.program.time
        return known.estimate if known else None

    def cells(self) -> tuple[str, str, str, str]:
        """Return the row of the table."""
        program, sizes = self.program, " × ".join(map(str, self.blocks))
        if program is None or not program.ok:
            errors = program.errors if program else ()
            why = errors[0].reason if errors else program.unknown if program else self.refusal
            return sizes, "", "", shortened(why, _LONGEST)
        if program.time is None:
            return sizes, "not known", "", "fits"
        limits = (share.limit for share in program.time.by_operation if share.limit)
        return sizes, time_of_tpu(program.time), next(limits, ""), "fits"


class Tuned(Sequence[TunedBlocks]):
    """The block sizes of a kernel, best first.

    It displays itself as a table.

    Args:
        rows: The sizes, in any order.
    """

    def __init__(self, rows: Iterable[TunedBlocks]) -> None:
        def order(row: TunedBlocks) -> tuple[bool, bool, float]:
            fits = row.program is not None and row.program.ok
            return not fits, row.seconds is None, row.seconds or 0.0

        self._rows = sorted(rows, key=order)

    @property
    def best(self) -> TunedBlocks:
        """The fastest sizes.

        Raises:
            CompileError: No sizes have a known time.
        """
        if not self._rows or self._rows[0].seconds is None:
            raise CompileError(
                "No block sizes compile with a known time.",
                fix="Print the table: it says why the compiler refuses each.",
            )
        return self._rows[0]

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return plain("\n".join(aligned([_HEAD, *(row.cells() for row in self)])))

    def _repr_html_(self) -> str:
        return scrolled(table([row.cells() for row in self], head=_HEAD, named=True))


def tune(
    kernel_of: Callable[..., Callable[..., Any]],
    blocks: Iterable[Any],
    *args: Any,
    tpu: str | None = None,
    timeout: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> Tuned:
    """Compile a Pallas kernel with some block sizes for a TPU, and return the fastest first.

    No TPU is needed, and nothing is run. On v5e and v6e, the time comes from the compiler's own
    schedule; on other types it is not known. Verdicts are kept, so a second call takes seconds.

    Example:
        >>> from tpunb.jax import tune
        >>> tune(add_in_blocks, [(128, 256), (256, 512)], x, y, tpu="v5e-1").best.blocks
        (256, 512)

    Args:
        kernel_of: Takes block sizes, and returns the function that has them.
        blocks: The block sizes: a tuple of arguments of `kernel_of`, or a single one, for each.
        *args: The arguments of the function: arrays, or objects of `jax.ShapeDtypeStruct`.
        tpu: A TPU type, by default the connection's.
        timeout: The time limit in seconds for each of the sizes. By default, 300.
        progress: Called with each next step. By default, a cell or a terminal shows it.

    Raises:
        CompilationStopped: An interrupt ended the call. Its message has the table so far.
    """
    tried = [each if isinstance(each, tuple) else (each,) for each in blocks]
    rows: list[TunedBlocks] = []
    with reporting(progress) as say:
        for number, sizes in enumerate(tried, 1):
            where = f"blocks {number} of {len(tried)}, {sizes}"
            options = CompileOptions(
                names_of(tpu),
                speed=True,
                timeout=timeout,
                live_arrays=False,
                advice=False,
                progress=lambda step, where=where: say(f"{where}: {step}"),  # type: ignore[misc]
            )
            try:
                rows.append(_tried(kernel_of, sizes, args, options))
            except KeyboardInterrupt:
                known = TpuPrograms([row.program for row in rows if row.program])
                table_so_far = f"{counted(len(rows), 'result')} of {len(tried)}.\n{Tuned(rows)}"
                raise CompilationStopped(table_so_far, known) from None
    return Tuned(rows)


def _tried(
    kernel_of: Callable[..., Callable[..., Any]],
    sizes: tuple[Any, ...],
    args: Sequence[Any],
    options: CompileOptions,
) -> TunedBlocks:
    try:
        (program,) = compile_call(kernel_of(*sizes), args, {}, options)
    except TpunbError:
        raise
    except Exception as error:  # JAX refuses sizes while it traces, in many ways
        said = next(iter(str(error).splitlines()), "")
        return TunedBlocks(sizes, None, f"{type(error).__name__}: {said}")
    return TunedBlocks(sizes, program)
