"""Notebooks without a shell, for each kind of strategy; using one imports TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.cells import Notebook


def _opened(kind: str) -> Iterator[Notebook]:
    from support.cells import Notebook

    notebook = Notebook(kind)
    yield notebook
    notebook.runner.close()


@pytest.fixture(params=["one", "mirrored", "virtual"])
def book(request: pytest.FixtureRequest) -> Iterator[Notebook]:
    """Return a notebook on each kind of strategy."""
    yield from _opened(request.param)


@pytest.fixture
def single() -> Iterator[Notebook]:
    """Return a notebook on a single device."""
    yield from _opened("one")
