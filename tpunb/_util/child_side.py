"""The child's side of a process that tpunb starts: it answers its parent, and ends with it.

It imports nothing of tpunb: `libtpu_process` loads this file in an environment without tpunb.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any


def end_with_parent(pipe: int) -> None:
    """End this process, and the group that it leads, when its parent ends, however that ends.

    Linux itself sends the signal, so that it also ends C code that holds Python's lock (fcntl(2),
    F_SETSIG). Elsewhere a thread waits. PR_SET_PDEATHSIG would end this process with the thread
    that started it.

    Args:
        pipe: The reading end of a pipe that nothing is written to. The parent has the other end.
    """
    leads = os.getpgrp() == os.getpid()
    with contextlib.suppress(ImportError, AttributeError, OSError):
        import fcntl

        fcntl.fcntl(pipe, fcntl.F_SETOWN, -os.getpid() if leads else os.getpid())
        fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)

    def wait() -> None:
        os.read(pipe, 1)
        (os.killpg if leads else os.kill)(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="tpunb", daemon=True).start()


def serve(prepare: Callable[[], Callable[[Any], Any]]) -> None:
    """Answer pickled requests on the standard streams until there are no more.

    What the process prints, also from C, goes to standard error.

    Args:
        prepare: Imports what is needed, and returns a function that answers a request.
    """
    process = os.getpid()
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with contextlib.suppress(OSError):  # there is no standard error
        os.dup2(2, 1)
    _yield_to_others()
    answer = prepare()
    with contextlib.suppress(EOFError):
        while True:
            reply = answer(pickle.load(requests))
            if os.getpid() != process:  # a fork by the user's code has come here too
                os._exit(0)
            pickle.dump(reply, answers, protocol=4)  # the Pythons may be of different releases
            answers.flush()


def _yield_to_others() -> None:
    """Write no core files; if memory runs out, end this process and not the notebook's."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
