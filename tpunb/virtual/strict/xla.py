"""XLA in a process of its own, which may crash without ending the notebook's.

Starting it takes half a second.
"""

from __future__ import annotations

import subprocess
import sys

from tpunb._util.child_process import ChildProcess, started

SECONDS = 60.0
"""How long a function may take that is about to run; whole models take a few seconds."""

_CODE = """\
import sys
sys.path[:] = {path!r}
from tpunb.virtual.strict.xla_process import serve
serve()
"""
_ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    # Accelerators are the notebook's.
    "CUDA_VISIBLE_DEVICES": "-1",
    "TPU_LOAD_LIBRARY": "0",
}


def _start() -> subprocess.Popen[bytes]:
    return started([sys.executable, "-c", _CODE.format(path=sys.path)], _ENVIRONMENT)


_compiler = ChildProcess(_start, SECONDS)
ask, start = _compiler.ask, _compiler.start
"""Ask with an `xla_process.Request`; there will be an `Answer`."""
