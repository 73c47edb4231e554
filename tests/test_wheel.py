"""The wheel has the package and the files of the notebooks, and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from support.modules import loaded
from support.patience import PATIENCE
from support.wheel import build_wheel, unpack
from wheel_matrix import results, rows

from tpunb import examples

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling")
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture
def metadata(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return archive.read(name).decode()


def source_files() -> set[str]:
    """Return the package's files, without files that tools leave there."""
    files = {path.relative_to(ROOT) for path in (ROOT / "tpunb").rglob("*") if path.is_file()}
    return {
        path.as_posix()
        for path in files
        if not any(part.startswith(".") or part == "__pycache__" for part in path.parts)
    }


def test_the_package_is_complete(contents: set[str]) -> None:
    packaged = {name for name in contents if ".dist-info/" not in name}
    assert packaged == source_files() | example_files()


def example_files() -> set[str]:
    """Return the files of the examples, with those of folders."""
    sources = {name: ROOT / "notebooks" / source for name, source in examples.FILES.items()}
    files = {name for name, source in sources.items() if source.is_file()}
    for name, source in sources.items():
        files |= {f"{name}/{path.name}" for path in source.glob("*.verdict")}
    return {f"tpunb/example_files/{file}" for file in files}


@pytest.mark.parametrize("name", ["quickstart.ipynb", "jax_quickstart.ipynb"])
def test_the_demo_finds_its_notebooks(name: str, wheel: Path, tmp_path: Path) -> None:
    unpack(wheel, tmp_path)
    code = f"import tpunb; print(tpunb.examples.path({name!r}).read_bytes().hex())"
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    process = subprocess.run(
        command, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=PATIENCE
    )
    source = ROOT / "notebooks" / examples.FILES[name]
    assert bytes.fromhex(process.stdout.decode()) == source.read_bytes()


def test_the_wheel_has_the_licences(contents: set[str], metadata: str) -> None:
    assert "License-Expression: Apache-2.0 AND MIT\n" in metadata
    files = re.findall(r"^License-File: (.+)$", metadata, re.MULTILINE)
    assert files == ["LICENSE", "tpunb/display/widgets/vendor/uPlot.LICENSE"]
    assert all(any(name.endswith(f"/licenses/{file}") for name in contents) for file in files)


def test_the_metadata_say_who_and_where(metadata: str) -> None:
    assert "Author: The tpunb contributors\n" in metadata
    urls = dict(re.findall(r"^Project-URL: (\w+), (\S+)$", metadata, re.MULTILINE))
    assert urls.keys() == {"Homepage", "Documentation", "Repository", "Issues", "Changelog"}
    for name in ("Documentation", "Changelog"):
        assert "github.com" not in urls[name]


COLAB = {
    "anywidget": "0.9.21",
    "ipykernel": "6.17.1",
    "ipython": "7.34.0",
    "ipywidgets": "7.7.1",
    "jupyter-client": "7.4.9",
    "keras": "3.13.2",
    "libtpu": "0.0.21.1",
    "matplotlib": "3.10.0",
    "nbclient": "0.10.4",
    "nbformat": "5.11.1",
    "notebook": "6.5.7",
    "numpy": "2.1.3",
    "scikit-learn": "1.6.1",
}
"""Colab's TPU runtime of August 2026, with Python 3.13: pip-freeze.tpu.txt and os-info-tpu.txt of
https://github.com/googlecolab/backend-info."""


@pytest.mark.parametrize(
    ("line", "missing"), [("INSTALL", set()), ("INSTALL_FOR_TPU", {"tensorflow-tpu"})]
)
def test_the_first_cell_of_notebooks_replaces_nothing_on_colab(
    line: str, missing: set[str], metadata: str
) -> None:
    """Another ipykernel, jupyter_client or notebook breaks the session that installs it."""
    cells = loaded(ROOT / "notebooks" / "install_cells.py")
    typed = re.findall(r'"(.+)"', getattr(cells, line))[0]
    extras = Requirement(typed).extras or {""}
    wanted = map(Requirement, re.findall(r"^Requires-Dist: (.+)$", metadata, re.MULTILINE))
    needed = [
        each
        for each in wanted
        if not each.marker or any(each.marker.evaluate({"extra": extra}) for extra in extras)
    ]
    assert {each.name for each in needed} - COLAB.keys() == missing
    assert all(each.specifier.contains(COLAB[each.name]) for each in needed if each.name in COLAB)


def test_the_page_shows_what_was_tried() -> None:
    assert results.shown() == results.table(results.read()), "run make test-wheels"


def test_each_extra_was_tried_on_each_python(metadata: str) -> None:
    tried = {each.row for each in results.read() if each.fine}
    extras = set(re.findall(r"^Provides-Extra: (.+)$", metadata, re.MULTILINE))
    assert extras <= {row.extra for row in rows.ROWS}
    missing = [
        (python, *installed)
        for python in rows.PYTHONS
        for installed in ((row.extra, row.beside) for row in rows.rows(python))
        if (python, *installed) not in tried
    ]
    assert missing == []
