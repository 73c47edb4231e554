"""The finder that waits for the first import of a framework; small modules stand in for both."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from tpunb.machine import watched_import
from tpunb.machine.watched_import import FirstImport

ONE, OTHER = "stands_for_one", "stands_for_the_other"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with both modules."""
    for name in (ONE, OTHER):
        (tmp_path / f"{name}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    yield tmp_path
    sys.meta_path[:] = before
    for name in (ONE, OTHER):
        sys.modules.pop(name, None)


def load(name: str) -> types.ModuleType:
    importlib.invalidate_caches()
    return importlib.import_module(name)


@pytest.mark.parametrize("order", [(ONE, OTHER), (OTHER, ONE)])
def test_the_first_import_decides(order: tuple[str, str]) -> None:
    arrived: list[str] = []
    with FirstImport(arrived.append, ONE, OTHER):
        for name in order:
            load(name)
    assert arrived == [order[0]]


def test_an_import_within_an_import_does_not_decide(folder: Path) -> None:
    """TensorFlow imports Keras, and Keras imports JAX."""
    (folder / f"{ONE}.py").write_text(f"import {OTHER}\n")
    arrived: list[str] = []
    with FirstImport(arrived.append, ONE, OTHER):
        load(ONE)
    assert arrived == [ONE]


def test_the_backend_of_keras_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keras may import TensorFlow before its backend."""
    monkeypatch.setattr(watched_import, "backend_of_keras", lambda: OTHER)
    arrived: list[str] = []
    with FirstImport(arrived.append, ONE, OTHER):
        load(ONE)
        assert not arrived
        load(OTHER)
    assert arrived == [OTHER]


def test_another_backend_of_keras_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_import, "backend_of_keras", lambda: "torch")
    arrived: list[str] = []
    with FirstImport(arrived.append, ONE, OTHER):
        load(ONE)
    assert arrived == [ONE]


def test_a_choice_holds_until_that_framework_comes() -> None:
    arrived: list[str] = []
    with FirstImport(arrived.append, ONE, OTHER) as finder:
        finder.choose("torch")
        assert finder.chosen is None
        finder.choose(OTHER)
        finder.choose(ONE)
        load(ONE)
        load(OTHER)
    assert arrived == [OTHER]


def test_after_an_import_that_fails_the_other_framework_is_the_notebooks(folder: Path) -> None:
    (folder / f"{ONE}.py").write_text("raise ImportError('no library')\n")
    arrived: list[str] = []
    with FirstImport(arrived.append, ONE, OTHER):
        with pytest.raises(ImportError, match="no library"):
            load(ONE)
        load(OTHER)
    assert arrived == [OTHER]
