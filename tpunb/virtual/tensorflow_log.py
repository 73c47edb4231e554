"""TensorFlow's own log, kept out of notebooks unless the user asks for it.

Its C++ parts write to the standard error stream: that there is no GPU, which
compiler has started, with the time and a process id. It is noise for the reader, and a
difference in every run for anyone who compares saved outputs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_VARIABLE = "TF_CPP_MIN_LOG_LEVEL"
_FATAL = 3
_INFO = 0
_STDERR = 2
# What is written before the level is read, with the level that hides it.
_NOISE = re.compile(
    r"WARNING: (All log messages before absl::InitializeLog|Logging before InitGoogle)"
    r"|[IWE]\d{4} \d\d:\d\d:\d+\.\d+ +\d+ \S+:\d+\] "
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] \S+:\d+\] "
    r"|To enable the following instructions:"
)
# What importing JAX sets, which Keras imports where it is installed.
_JAX_LEVEL = "1"
_INHERITED = Path("/proc/self/environ")
_silenced = False
_former: str | None = None


def silence_log() -> None:
    """Hides all but fatal messages from now on, unless the user has set the level."""
    global _silenced, _former
    if _is_set_by_user():
        return
    _former = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = str(_FATAL)
    _silenced = True
    _set_level(_FATAL)


def _is_set_by_user() -> bool:
    """Whether there is a level, and not because JAX has been imported."""
    level = os.environ.get(_VARIABLE)
    if level != _JAX_LEVEL or "jax" not in sys.modules:
        return level is not None
    try:
        inherited = _INHERITED.read_bytes().split(b"\0")
    except OSError:  # another system
        return True
    return any(entry.startswith(f"{_VARIABLE}=".encode()) for entry in inherited)


def restore_log() -> None:
    """Undoes `silence_log`; a level that the user has set since stays."""
    global _silenced
    if _silenced and os.environ.get(_VARIABLE) == str(_FATAL):
        if _former is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = _former
        _set_level(int(_former or _INFO))
    _silenced = False


def _set_level(level: int) -> None:
    """Sets the level of a TensorFlow that has been imported, which has read the variable.

    It offers no Python function for that, but exports Abseil's, whose name has the version of
    Abseil in it. TensorFlow 2.18 has a log of its own beside Abseil's: it keeps the level that it
    found at its first message, and without its only sink it would lose fatal messages too.
    """
    tensorflow = sys.modules.get("tensorflow")
    if not getattr(tensorflow, "__file__", None):
        return
    folder = Path(str(tensorflow.__file__)).parent  # type: ignore[union-attr]
    with contextlib.suppress(OSError, AttributeError, StopIteration):
        options = (folder / "include" / "absl" / "base" / "options.h").read_text(encoding="utf-8")
        name = next(re.finditer(r"INLINE_NAMESPACE_NAME (lts_\d+)", options))[1]
        library = ctypes.CDLL(str(next(folder.glob("libtensorflow_framework.*"))))
        symbol = f"_ZN4absl{len(name)}{name}14SetMinLogLevelENS0_18LogSeverityAtLeastE"
        getattr(library, symbol)(ctypes.c_int(level))


@contextlib.contextmanager
def quiet_start() -> Iterator[None]:
    """Holds back what is written to the standard error stream, and drops the noise.

    For a block that imports TensorFlow, which logs before it reads the level. Everything else
    is written when the block ends.
    """
    if sys.stderr is None or not _is_hidden():  # without a console nobody reads it
        yield
        return
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held:
        kept = os.dup(_STDERR)
        os.dup2(held.fileno(), _STDERR)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, _STDERR)
            os.close(kept)
            held.seek(0)
            lines = held.read().decode(errors="replace").splitlines(keepends=True)
            rest = "".join(line for line in lines if not _NOISE.match(line))
            if rest:
                sys.stderr.write(rest)


def _is_hidden() -> bool:
    return os.environ.get(_VARIABLE, str(_FATAL)).strip() == str(_FATAL)
