"""The wheel that is built here holds the package, all of it and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.patience import PATIENCE

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=PATIENCE)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def source_files() -> set[str]:
    """The package's files, without what tools leave there."""
    found = {path.relative_to(ROOT) for path in (ROOT / "tpunb").rglob("*") if path.is_file()}
    return {
        path.as_posix()
        for path in found
        if not any(part.startswith(".") or part == "__pycache__" for part in path.parts)
    }


def test_the_package_is_complete(contents: set[str]) -> None:
    packaged = {name for name in contents if ".dist-info/" not in name}
    assert packaged == source_files()


def test_the_licence_is_there(contents: set[str]) -> None:
    assert any(name.endswith("/licenses/LICENSE") for name in contents)
