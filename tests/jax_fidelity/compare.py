"""Run operations on plain CPU devices and on a virtual TPU, and compare."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jax_fidelity.operation import Operation

SAME, DIFFERENT, REFUSED = "the same", "**different**", "refused"
"""The outcomes of a comparison."""

NOT_JUDGED = "not judged"


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A row of the page.

    Attributes:
        name: The operation.
        numbers: The outcome.
        verdict: What the TPU's own compiler says of the program.
        on_a_tpu: What differs on a TPU.
    """

    name: str
    numbers: str
    verdict: str
    on_a_tpu: str


def plain_results(operation: Operation, devices: list[Any]) -> Any:
    """Return the results on plain CPU devices, or the error."""
    try:
        return _as_numpy(operation.run(devices))
    except Exception as error:
        return error


def compared(name: str, operation: Operation, connection: Any, expected: Any) -> Row:
    """Run an operation on a virtual TPU, and return its row."""
    known = len(connection.programs)
    try:
        found = _as_numpy(operation.run(jax.devices()))
    except NotImplementedError as error:
        programs = connection.programs[known:]
        said = _verdict(programs) if programs else _refusal(error)
        return Row(name, REFUSED, said, operation.on_a_tpu)
    outcome = SAME if _equal(found, expected) else DIFFERENT
    return Row(name, outcome, _verdict(connection.programs[known:]), operation.on_a_tpu)


def _as_numpy(results: Any) -> list[np.ndarray[Any, Any]]:
    return [_plain(leaf) for leaf in jax.tree.leaves(results)]


def _plain(leaf: Any) -> np.ndarray[Any, Any]:
    is_key = isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def _equal(found: Any, expected: Any) -> bool:
    if isinstance(expected, Exception) or len(found) != len(expected):
        return False
    return all(
        ours.dtype == theirs.dtype
        and ours.shape == theirs.shape
        and ours.tobytes() == theirs.tobytes()
        for ours, theirs in zip(found, expected, strict=True)
    )


def _verdict(programs: Sequence[Any]) -> str:
    """Return the verdict in a few words, with the collectives of all programs."""
    if not programs:
        return NOT_JUDGED
    for program in programs:
        if program.unknown:
            return f"not known: {program.unknown}"
        if program.errors:
            return f"refused: {program.errors[0].reason}"
    collectives = [str(each) for program in programs for each in program.collectives]
    return ", ".join(["fits", *collectives])


def _refusal(error: Exception) -> str:
    return "JAX has no rule for a TPU" if "for platform tpu" in str(error) else NOT_JUDGED
