"""The wheel, built and unpacked."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from support.patience import PATIENCE

ROOT = Path(__file__).parents[2]


def build_wheel(folder: Path) -> Path:
    """Build the wheel in a folder, and return its path."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=PATIENCE)
    (wheel,) = folder.glob("*.whl")
    return wheel


def unpack(wheel: Path, folder: Path) -> Path:
    """Unpack a wheel as an installation would, and return the folder for `PYTHONPATH`."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder
