"""Each notebook begins with the cell that installs what it needs where a badge opens it."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from support.modules import loaded

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "notebooks"
cells = loaded(NOTEBOOKS / "install_cells.py")
SHOWN = sorted(
    path
    for path in NOTEBOOKS.rglob("*.ipynb")
    if path.parent.name != "found" and path.name != cells.ALONE
)

PLATFORMS = ("COLAB_RELEASE_TAG", "KAGGLE_KERNEL_RUN_TYPE", "BINDER_LAUNCH_HOST")


def code(path: Path) -> list[Any]:
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: str(path.relative_to(NOTEBOOKS)))
def test_a_notebook_begins_with_the_cell(path: Path) -> None:
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    if cells.installs_by_itself(notebook):
        return
    first, *others = code(path)
    assert first.source == cells.cell_of(notebook), "run python notebooks/install_cells.py"
    assert first.outputs == []
    assert cells.IDENTITY not in {cell.get("id") for cell in others}


def test_the_notebook_with_one_cell_installs_by_the_same_lines() -> None:
    (cell,) = code(NOTEBOOKS / cells.ALONE)
    assert cells.INSTALL in cell.source
    assert cells.INSTALL_FOR_TPU.removeprefix("%pip") in cell.source


def test_the_script_changes_nothing_twice() -> None:
    path = NOTEBOOKS / "00_quickstart.ipynb"
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    assert cells.with_cell(notebook) == nbformat.read(path, as_version=nbformat.NO_CONVERT)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return a function that runs a cell on a platform, and returns what it would install."""

    def run(source: str, platform: str, *installed: str) -> list[str]:
        for name in PLATFORMS:
            monkeypatch.delenv(name, raising=False)
        if platform:
            monkeypatch.setenv(platform, "x")
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: name if name in installed else None
        )
        shell, said = InteractiveShell(), []
        shell.register_magic_function(said.append, magic_name="pip")
        monkeypatch.setattr(shell, "system", said.append)
        shell.run_cell(source).raise_error()
        return said

    return run


ALL = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("%%tpu_compile")])
JAX = nbformat.v4.new_notebook(
    cells=[nbformat.v4.new_code_cell("%tpu_connect --simulate v5e-8 --framework jax")]
)
PLAIN = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("import tensorflow as tf")])


def test_it_does_nothing_elsewhere(
    asked: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(cells.cell_of(ALL), "") == []
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("platform", PLATFORMS)
def test_it_installs_what_is_missing(platform: str, asked: Callable[..., list[str]]) -> None:
    tpunb, tensorflow = (
        line.removeprefix("%pip ") for line in (cells.INSTALL, cells.INSTALL_FOR_TPU)
    )
    plain, compiler = cells.cell_of(PLAIN), cells.cell_of(ALL)
    assert asked(plain, platform, "tpunb", "tensorflow") == []
    assert asked(plain, platform, "tensorflow") == [tpunb]
    assert asked(plain, platform) == [tpunb, tensorflow]
    assert asked(cells.cell_of(JAX), platform)[:-1] == [tpunb]
    (installs,) = asked(compiler, platform, "tpunb", "tensorflow")
    assert installs.endswith("|| tpunb compiler install")


def test_pages_and_notebooks_install_in_the_same_way_on_colab() -> None:
    """A plain `pip install tpunb` fails there before the release."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    texts = [path.read_text(encoding="utf-8") for path in pages]
    texts += [cell.source for path in SHOWN for cell in nbformat.read(path, as_version=4).cells]
    lines = re.findall(r"%pip install[^\n`]*tpunb[^\n`]*", "\n".join(texts))
    on_a_platform = [line for line in lines if not re.search("cpu|lab", line)]
    assert len(on_a_platform) > 10
    assert set(on_a_platform) == {cells.INSTALL, cells.INSTALL_FOR_TPU}
