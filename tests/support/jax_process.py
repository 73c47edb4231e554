"""A process with JAX, and Keras, without TensorFlow: the compiler's own Python has them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.patience import PATIENCE

_ROOT = Path(__file__).parents[2]
_SETTINGS = {
    "PYTHONPATH": os.pathsep.join(map(str, (_ROOT, _ROOT / "tests"))),
    "JAX_PLATFORMS": "cpu",
    "KERAS_BACKEND": "jax",
    "TPUNB_WIDGETS": "never",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


_NO_KERAS = "Keras is not installed beside JAX: make setup"
# Without it, the folder of its tests would be imported.
_NEEDS_KERAS = f"""
import importlib.util
spec = importlib.util.find_spec("keras")
assert spec is not None and spec.origin is not None, {_NO_KERAS!r}
"""


def said_with_jax(program: str, folder: Path, *, keras: bool = False) -> dict[str, Any]:
    """What a program has in its dictionary `said` at its end.

    Args:
        program: Its code, which begins with `said = {}` of its own accord.
        folder: Where its file is written.
        keras: Whether it needs Keras.
    """
    python = os.environ.get("TPUNB_COMPILER_PYTHON")
    if not python and importlib.util.find_spec("jax") is None:
        pytest.skip("JAX is not installed here")
    file = folder / "program.py"
    end = "import json, sys\nassert 'tensorflow' not in sys.modules\n"
    if keras:
        program = _NEEDS_KERAS + program
    file.write_text(f"{program}\n{end}print('said:' + json.dumps(said))\n", encoding="utf-8")
    run = subprocess.run(
        [python or sys.executable, str(file)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, **_SETTINGS},
    )
    if _NO_KERAS in run.stderr and not os.environ.get("CI"):
        pytest.skip(_NO_KERAS)
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout.rpartition("said:")[2])
    return found
