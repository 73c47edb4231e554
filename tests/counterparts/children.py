"""Run Python code in separate processes, for a crash or for another TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from support.patience import PATIENCE

ROOT = Path(__file__).parent.parent.parent


WITHOUT_KERAS = "import sys; sys.modules.update(keras=None, tf_keras=None)\n"
"""Halves TensorFlow's start, for programs that build no models."""

WITHOUT_UNUSED = "import sys; sys.modules.update(jax=None, sklearn=None)\n"
"""Hides optional imports of Keras, which take a quarter of TensorFlow's start."""

_RUN = "import runpy; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"


def command(script: Path, *arguments: str, keras: bool = False) -> list[str]:
    """Return the command that runs a script with this Python.

    Args:
        script: Its path.
        arguments: Its arguments.
        keras: Whether it builds models.
    """
    python = [sys.executable, "-X", "faulthandler"]
    without = WITHOUT_UNUSED if keras else WITHOUT_KERAS
    return [*python, "-c", without + _RUN, str(script), *arguments]


def environment() -> dict[str, str]:
    """Return this process's environment, with the package and the tests on the path."""
    return {**os.environ, "PYTHONPATH": python_path(ROOT, ROOT / "tests")}


def python_path(*folders: Path) -> str:
    """Return a `PYTHONPATH` with folders in front of this process's."""
    paths = [*map(str, folders), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(filter(None, paths))


def run_code(code: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run code to its end, with further environment variables."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**environment(), **variables},
        check=False,
    )


def output_of(code: str, *arguments: object, **variables: str) -> str:
    """Run code that must neither fail nor write to standard error, and return its output."""
    process = run_code(code, *arguments, **variables)
    assert (process.returncode, process.stderr) == (0, ""), f"{process.stdout}\n{process.stderr}"
    return process.stdout


def run_script(script: Path, *arguments: str, keras: bool = False) -> Any:
    """Run a script to its end; see `command`.

    Returns:
        The last line of its output, read as JSON.

    Raises:
        AssertionError: It failed; with its output.
    """
    process = subprocess.run(
        command(script, *arguments, keras=keras),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environment(),
        check=False,
    )
    assert process.returncode == 0, f"{process.stdout}\n{process.stderr}"
    return json.loads(process.stdout.strip().splitlines()[-1])


def is_running(process: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_until_gone(processes: list[int]) -> list[int]:
    """Wait for processes to end, and return those that are still running."""
    deadline = time.monotonic() + PATIENCE
    running = list(processes)
    while running and time.monotonic() < deadline:
        time.sleep(0.05)
        running = [process for process in running if is_running(process)]
    return running
