"""A clean environment in a temporary folder, with a home folder of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).with_name("programs")

_OWN = ("PYTHON", "TPUNB_", "VIRTUAL_ENV", "JAX_", "XLA_")
"""How the variables begin that must not reach an environment."""


class Failed(Exception):
    """A command failed; its text is what it printed."""

    @property
    def line(self) -> str:
        """The line that says what is wrong."""
        lines = [line.strip() for line in str(self).splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith(("ERROR", "tpunb:", "error"))]
        return [*errors, *lines[-1:]][0]


class Environment:
    """A Python environment, its home, and the folder in which its commands run."""

    def __init__(self, python: str, folder: Path) -> None:
        self.venv, self.home, self.work, self.temporary = (
            folder / name for name in ("venv", "home", "work", "temporary")
        )
        self.home.mkdir()
        self.temporary.mkdir()
        shutil.copytree(PROGRAMS, self.work)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_OWN)}
        self.variables = {
            **kept,
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
            "PATH": os.pathsep.join((str(self.venv / "bin"), os.environ["PATH"])),
            "UV_CACHE_DIR": uv("cache", "dir").strip(),
            "PIP_CACHE_DIR": subprocess.check_output(["pip", "cache", "dir"], text=True).strip(),
            "TPU_SKIP_MDS_QUERY": "1",
        }
        uv("venv", "--quiet", "--seed", "--python", python, str(self.venv))

    def install(self, *requirements: str) -> None:
        """Install packages.

        Raises:
            Failed: They cannot be installed together.
        """
        uv("pip", "install", "--quiet", "--python", str(self.venv), *requirements)

    def run(self, *command: str) -> str:
        """Run a command, and return what it prints.

        Raises:
            Failed: It did not end with 0.
        """
        program = shutil.which(command[0], path=self.variables["PATH"])
        return _output(program or command[0], *command[1:], cwd=self.work, env=self.variables)

    def versions(self) -> Mapping[str, str]:
        """Return the release of each package."""
        listed = json.loads(self.run("python", "-m", "pip", "list", "--format", "json"))
        return {each["name"].lower().replace("_", "-"): each["version"] for each in listed}

    def size(self) -> int:
        """Return the bytes of the packages."""
        return sum(file.lstat().st_size for file in self.venv.rglob("*") if file.is_file())

    def left(self) -> list[str]:
        """Return the files that tpunb has left, besides those that docs/removing.md names."""
        root, cache = self.venv.parent, self.home / ".cache" / "tpunb"
        files = [each for each in (*self.venv.rglob("*"), *self.home.rglob("*")) if each.is_file()]
        named = [each for each in files if "tpunb" in str(each.relative_to(root))]
        found = [
            each for each in named if cache not in each.parents and "-pytest-" not in each.name
        ]
        # TensorFlow's AutoGraph leaves the compiled forms of its own files there.
        temporary = [each for each in self.temporary.iterdir() if each.name != "__pycache__"]
        return [str(each.relative_to(root)) for each in (*found, *temporary)]


def uv(*arguments: str) -> str:
    """Run uv, which installs TensorFlow in seconds, and return what it prints."""
    return _output("uv", *arguments)


def _output(*command: str, **options: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", **options)
    if done.returncode:
        raise Failed(done.stderr or done.stdout or f"exit code {done.returncode}")
    return done.stdout
