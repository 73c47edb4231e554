"""The search for the largest batch: what it finds, and in how many tries."""

from __future__ import annotations

import pytest

from tpunb.cells.largest_batch import search


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 31, 100, 1000, 12345])
@pytest.mark.parametrize("first", [1, 16, 512, 40_000])
@pytest.mark.parametrize("known", [True, False])
def test_what_fits_and_nearly_all_that_does(limit: int, first: int, known: bool) -> None:
    """Memory that steps, and is mostly proportional to the batch."""
    asked = []

    def peak_of(size: int) -> int | None:
        asked.append(size)
        peak = 1000 + 96 * size + 8 * (size // 8)
        return peak if known or size <= limit else None

    available = 1000 + 96 * limit + 8 * (limit // 8)
    found = search(peak_of, first, available)
    assert found <= limit
    assert found >= limit - max(1, limit // 32) or not known
    assert len(asked) <= 12
    assert len(asked) == len(set(asked))
    assert not known or len(asked) <= 6


def test_nothing_fits() -> None:
    assert search(lambda size: 10 + size, 64, 5) == 0
    assert search(lambda _: None, 64, 5) == 0


def test_memory_that_does_not_depend_on_the_batch_ends() -> None:
    assert search(lambda _: 3, 64, 5) >= 64
