"""The search for the largest batch: what it finds, and in how many tries."""

from __future__ import annotations

import pytest

from tpunb.compiler.batch_sizes import FINE, search
from tpunb.compiler.program import TpuProgram
from tpunb.tpu.compiled_program import ProgramMemory


def program(fits: bool, peak: int | None) -> TpuProgram:
    memory = None if peak is None else ProgramMemory(peak, 0, 0)
    return TpuProgram("v5e-1", 1, unknown="" if fits else "It is too large.", memory=memory)


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 31, 100, 1000, 12345])
@pytest.mark.parametrize("first", [1, 16, 512, 40_000])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("step", [1, 8])
def test_what_fits_and_nearly_all_that_does(limit: int, first: int, known: bool, step: int) -> None:
    """Memory that steps, and is mostly proportional to the batch."""
    asked = []

    def attempt(size: int) -> TpuProgram:
        asked.append(size)
        peak = 1000 + 96 * size + 8 * (size // 8)
        return program(size <= limit, peak if known or size <= limit else None)

    available = 1000 + 96 * limit + 8 * (limit // 8)
    found = search(attempt, first, available, step=step, fine=FINE)
    assert found <= limit
    assert found >= limit - max(step, limit // 32) or not known
    assert {size % step for size in asked} == {0}
    assert len(asked) <= 12
    assert len(asked) == len(set(asked))
    assert not known or len(asked) <= 6


@pytest.mark.parametrize("first", [8, 512, 40_000])
def test_exact_to_a_step_where_that_is_more_than_the_part(first: int) -> None:
    """One more step was tried, and does not fit."""
    asked = set()

    def attempt(size: int) -> TpuProgram:
        asked.add(size)
        return program(size <= 2345, 1000 + 96 * size)

    found = search(attempt, first, 1000 + 96 * 2345, fine=256, step=8)
    assert found == 2344
    assert 2352 in asked


def test_nothing_fits() -> None:
    assert search(lambda size: program(False, 10 + size), 64, 5, fine=FINE) == 0
    assert search(lambda _: program(False, None), 64, 5, fine=FINE) == 0


def test_memory_that_does_not_depend_on_the_batch_ends() -> None:
    assert search(lambda _: program(True, 3), 64, 5, fine=FINE) >= 64
