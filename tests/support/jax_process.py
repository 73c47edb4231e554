"""Run programs with JAX, and Keras, but without TensorFlow, in the compiler's own Python."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from counterparts.children import environment

from support.patience import PATIENCE

_SETTINGS = {
    "JAX_PLATFORMS": "cpu",
    "TPUNB_WIDGETS": "never",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


_NO_KERAS = "Keras is not installed beside JAX: make setup"
# A namespace package would be the folder of the Keras tests.
_NEEDS_KERAS = f"""
import importlib.util
spec = importlib.util.find_spec("keras")
assert spec is not None and spec.origin is not None, {_NO_KERAS!r}
"""


def said_with_jax(program: str, folder: Path, *, keras: bool = False) -> dict[str, Any]:
    """Run a program in a Python with JAX, and return its dictionary `said`.

    Args:
        program: Its code, which begins with `said = {}`.
        folder: Where to write its file.
        keras: Whether it needs Keras.
    """
    end = "import sys\nassert 'tensorflow' not in sys.modules\n"
    end += "assert not [name for name in sys.modules if name.startswith('tpunb.tensorflow')]\n"
    program = _NEEDS_KERAS + program if keras else program
    return _said(_python_with_jax(), f"{program}\n{end}", folder, {"KERAS_BACKEND": "jax"})


def said_with_both(program: str, folder: Path) -> dict[str, Any]:
    """Run a program with TensorFlow and JAX, and return its dictionary `said`.

    It runs in this Python, with the packages of the compiler's Python at the end of its path.
    """
    print_folder = "import jax, os, sys; print(os.path.dirname(os.path.dirname(jax.__file__)))"
    version = "; print(*sys.version_info[:2])"
    process = subprocess.run(
        [_python_with_jax(), "-c", print_folder + version],
        capture_output=True,
        text=True,
        check=True,
    )
    packages, version = process.stdout.splitlines()
    if tuple(map(int, version.split())) != sys.version_info[:2]:
        pytest.skip("JAX is installed for another Python")
    extended_path = f"import sys\nsys.path.append({packages!r})\n"
    return _said(sys.executable, extended_path + program, folder, {"KERAS_BACKEND": "tensorflow"})


def _python_with_jax() -> str:
    python = os.environ.get("TPUNB_COMPILER_PYTHON")
    if not python and importlib.util.find_spec("jax") is None:
        pytest.skip("JAX is not installed here")
    return python or sys.executable


def _said(python: str, program: str, folder: Path, settings: dict[str, str]) -> dict[str, Any]:
    file = folder / "program.py"
    end = "import json\nprint('said:' + json.dumps(said))\n"
    file.write_text(f"{program}\n{end}", encoding="utf-8")
    run = subprocess.run(
        [python, str(file)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**environment(), **_SETTINGS, **settings},
    )
    if _NO_KERAS in run.stderr and not os.environ.get("CI"):
        pytest.skip(_NO_KERAS)
    assert run.returncode == 0, run.stderr
    said: dict[str, Any] = json.loads(run.stdout.rpartition("said:")[2])
    return said
