"""Python code in processes of its own: a crash, or another TensorFlow, stays there."""

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
"""Halves what TensorFlow takes to start, for programs that build no models."""

WITHOUT_UNUSED = "import sys; sys.modules.update(jax=None, sklearn=None)\n"
"""What Keras imports if it is there: a quarter of what TensorFlow takes to start."""

_RUN = "import runpy; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"


def command(script: Path, *arguments: str, keras: bool = False) -> list[str]:
    """What runs a script with this Python.

    Args:
        script: Its path.
        arguments: What it is called with.
        keras: Whether it builds models.
    """
    python = [sys.executable, "-X", "faulthandler"]
    without = WITHOUT_UNUSED if keras else WITHOUT_KERAS
    return [*python, "-c", without + _RUN, str(script), *arguments]


def environment() -> dict[str, str]:
    """This process's, with the package and the tests on the path."""
    return {**os.environ, "PYTHONPATH": python_path(ROOT, ROOT / "tests")}


def python_path(*folders: Path) -> str:
    """Return a `PYTHONPATH` with folders in front of this process's."""
    paths = [*map(str, folders), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(filter(None, paths))


def run_code(code: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs code to its end, with environment variables of its own besides this process's."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**environment(), **variables},
        check=False,
    )


def output_of(code: str, *arguments: object, **variables: str) -> str:
    """What code that must not fail, nor complain, writes; see `run_code`."""
    done = run_code(code, *arguments, **variables)
    assert (done.returncode, done.stderr) == (0, ""), f"{done.stdout}\n{done.stderr}"
    return done.stdout


def run_script(script: Path, *arguments: str, keras: bool = False) -> Any:
    """Runs a script to its end; see `command`.

    Returns:
        What its last line of output says, as JSON.

    Raises:
        AssertionError: It failed; with all that it wrote.
    """
    done = subprocess.run(
        command(script, *arguments, keras=keras),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout.strip().splitlines()[-1])


def is_running(process: int) -> bool:
    """Whether a process exists and is no zombie."""
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
    """Waits for processes to end; gives those that have not."""
    deadline = time.monotonic() + PATIENCE
    left = list(processes)
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = [process for process in left if is_running(process)]
    return left
