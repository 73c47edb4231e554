"""The search for the largest batch: its results, and its number of tries."""

from __future__ import annotations

import pytest

from tpunb.compiler.fit.batch_sizes import FINE, quick_search, search
from tpunb.compiler.program import TpuProgram
from tpunb.tpu.compiled_program import ProgramMemory


def program(fits: bool, peak: int | None) -> TpuProgram:
    memory = None if peak is None else ProgramMemory(peak, 0, 0)
    return TpuProgram("v5e-1", 1, unknown="" if fits else "It is too large.", memory=memory)


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 31, 100, 1000, 12345])
@pytest.mark.parametrize("first", [1, 16, 512, 40_000])
@pytest.mark.parametrize("peak_is_known", [True, False])
@pytest.mark.parametrize("step", [1, 8])
def test_the_search_finds_nearly_the_largest_batch(
    limit: int, first: int, peak_is_known: bool, step: int
) -> None:
    """Memory grows in steps, and is mostly proportional to the batch."""
    tried = []

    def attempt(size: int) -> TpuProgram:
        tried.append(size)
        peak = 1000 + 96 * size + 8 * (size // 8)
        return program(size <= limit, peak if peak_is_known or size <= limit else None)

    available = 1000 + 96 * limit + 8 * (limit // 8)
    largest = search(attempt, first, available, step=step, fine=FINE)
    assert largest <= limit
    assert largest >= limit - max(step, limit // 32) or not peak_is_known
    assert {size % step for size in tried} == {0}
    assert len(tried) <= 12
    assert len(tried) == len(set(tried))
    assert not peak_is_known or len(tried) <= 6


@pytest.mark.parametrize("first", [8, 512, 40_000])
def test_the_search_is_exact_to_a_coarse_step(first: int) -> None:
    """The next larger batch was tried, and does not fit."""
    tried = set()

    def attempt(size: int) -> TpuProgram:
        tried.add(size)
        return program(size <= 2345, 1000 + 96 * size)

    largest = search(attempt, first, 1000 + 96 * 2345, fine=256, step=8)
    assert largest == 2344
    assert 2352 in tried


def test_nothing_fits() -> None:
    assert search(lambda size: program(False, 10 + size), 64, 5, fine=FINE) == 0
    assert search(lambda _: program(False, None), 64, 5, fine=FINE) == 0


def test_the_search_ends_if_memory_does_not_depend_on_the_batch() -> None:
    assert search(lambda _: program(True, 3), 64, 5, fine=FINE) >= 64


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 7, 8, 100, 12345, 10**6])
@pytest.mark.parametrize("first", [0, 1, 100, 40_000])
@pytest.mark.parametrize("peak_is_known", [True, False])
def test_a_quick_search_finds_the_largest_power_of_two(
    limit: int, first: int, peak_is_known: bool
) -> None:
    tried = []

    def attempt(size: int) -> TpuProgram:
        tried.append(size)
        peak = 1000 + 96 * size
        return program(size <= limit, peak if peak_is_known or size <= limit else None)

    largest = quick_search(attempt, first, 1000 + 96 * limit)
    assert largest == (1 << limit.bit_length() >> 1)
    assert len(tried) == len(set(tried)) <= 16
