"""XLA in a process of its own, which may crash without ending the notebook's.

Starting it takes half a second.
"""

from __future__ import annotations

import subprocess
import sys
from typing import cast

from tpunb._util.child_process import ChildLostError, ChildProcess, started
from tpunb._util.deadline import Deadline
from tpunb.virtual.strict.xla_process import Answer, Request

__all__ = ["Compiler", "CompilerLostError", "ask", "start"]

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

CompilerLostError = ChildLostError


class Compiler(ChildProcess):
    """A process that compiles as far as XLA's intermediate form.

    Args:
        seconds: How long one function may take where nothing else is said.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        super().__init__(_start, seconds)

    def ask(self, request: Request, deadline: Deadline | None = None) -> Answer:
        """Compiles a function.

        Raises:
            CompilerLostError: The process ended, or took too long.
        """
        return cast(Answer, super().ask(request, deadline))


def _start() -> subprocess.Popen[bytes]:
    return started([sys.executable, "-c", _CODE.format(path=sys.path)], _ENVIRONMENT)


_compiler = Compiler()
ask, start = _compiler.ask, _compiler.start
