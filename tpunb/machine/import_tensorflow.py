"""Imports of TensorFlow, by tpunb and by the notebook's own cells: prepared, and quiet.

TensorFlow's C++ parts write a log to the standard error stream, with the time and a process id. It
says, for example, that the machine has no GPU, or which compiler has started. This is noise for the
reader, and it differs in every run for anyone who compares saved outputs. So it is hidden unless
the user asks for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path

from tpunb._util.freed_memory import uncollected
from tpunb.errors import ConnectError
from tpunb.errors.jax_in_cells import FOR_JAX
from tpunb.machine.framework import is_importable
from tpunb.machine.watched_import import WatchedImport

_MODULE = "tensorflow"
_FRAMEWORKS = frozenset({_MODULE, "keras", "tf_keras"})
# tensorflow::tpu::TpuPlatformInterface::GetRegisteredPlatform(initialize_platform, num_tries)
_GET_PLATFORM = "_ZN10tensorflow3tpu20TpuPlatformInterface21GetRegisteredPlatformEbi"
_LIBRARY = "libtensorflow_cc.so.2"
_VARIABLE = "TF_CPP_MIN_LOG_LEVEL"
_FATAL = 3
_INFO = 0
_STDERR = 2
# Messages that are written before the level is read, of severities that the level would hide.
# TensorFlow 2.21: `WARNING: All log messages before absl::InitializeLog() is called are written to
# STDERR`, `I0000 00:00:1795857079.553525    2053 port.cc:153] oneDNN custom operations are on. …`
_NOISE = re.compile(
    r"WARNING: (All log messages before absl::InitializeLog|Logging before InitGoogle)"
    r"|[IWE]\d{4} \d\d:\d\d:\d+\.\d+ +\d+ \S+:\d+\] "
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] \S+:\d+\] "
    r"|To enable the following instructions:"
)
# The level that importing JAX sets. Keras imports JAX if it is installed.
_JAX_LEVEL = "1"
_INHERITED = Path("/proc/self/environ")
_silenced = False
_former: str | None = None


def skip_tpu_search() -> None:
    """Make an imported TensorFlow look for a TPU once instead of five times.

    Without libtpu it finds no TPU. It keeps the answer; otherwise it would ask again, a second
    apart each time, when it lists its devices. TensorFlow up to 2.21 has no Python function for
    this: five tries are the default of `GetRegisteredPlatform` in OpenXLA's
    xla/stream_executor/tpu/tpu_platform_interface.h. In a release without the C++ function,
    nothing happens.
    """
    file = getattr(sys.modules.get("tensorflow"), "__file__", None)
    if os.environ.get("TPU_LOAD_LIBRARY", "").strip() != "0" or file is None:
        return
    with contextlib.suppress(OSError, AttributeError):
        get_platform = getattr(ctypes.CDLL(str(Path(file).parent / _LIBRARY)), _GET_PLATFORM)
        get_platform.restype = ctypes.c_void_p
        get_platform(ctypes.c_bool(True), ctypes.c_int(1))


def import_tensorflow() -> None:
    """Import TensorFlow without the noise, if it is not imported yet.

    Raises:
        ConnectError: TensorFlow is not installed.
    """
    silence_log()
    if sys.modules.get(_MODULE) is not None:
        skip_tpu_search()
        return
    require_tensorflow()
    with prepared_import():
        import tensorflow  # noqa: F401


@contextlib.contextmanager
def prepared_import() -> Iterator[None]:
    """Prepare for a block that imports TensorFlow, and keep the import quiet and quick.

    Raises:
        ConnectError: TensorFlow would load a libtpu that ends the process.
    """
    from tpunb.machine.libtpu_releases import prepare_tpu_library

    prepare_tpu_library()
    silence_log()
    with quiet_start(), uncollected(lasting=True):
        yield
    skip_tpu_search()


class QuietImport(WatchedImport):
    """A finder that prepares every import of TensorFlow."""

    def __init__(self, *packages: str) -> None:
        super().__init__(_MODULE, *packages)

    def load(self, module: types.ModuleType, load: Callable[[types.ModuleType], None]) -> None:
        """Load TensorFlow without the noise."""
        if module.__name__ != _MODULE:
            load(module)
            return
        with prepared_import():
            load(module)


def has_tensorflow() -> bool:
    """Return whether TensorFlow is imported or can be, without importing it."""
    return is_importable(_MODULE)


def require_tensorflow(door: str = "", error: type[ConnectError] = ConnectError) -> None:
    """Raise an error if TensorFlow cannot be imported, without importing it.

    Args:
        door: The magic or function that needs it, for the message.
        error: The class of the error.

    Raises:
        ConnectError: TensorFlow is not installed.
    """
    if has_tensorflow():
        return
    fix = 'Run %pip install "tpunb[cpu]" (on a TPU VM: "tpunb[tpu]") and try again.'
    if is_importable("jax"):
        ways = "%tpu_connect --framework jax, or %%tpu_compile --for v5e-8."
        fix += f" For JAX: {FOR_JAX.get(door, ways)}"
    message = f"{door} needs TensorFlow, which" if door else "TensorFlow"
    raise error(f"{message} is not installed here.", fix=fix)


@contextlib.contextmanager
def needing_tensorflow(
    door: str = "", *, error: type[ConnectError] = ConnectError
) -> Iterator[None]:
    """Explain a missing TensorFlow in a block that imports it.

    Args:
        door: The magic or function that needs it, for the message.
        error: The class of the error.

    Raises:
        ConnectError: TensorFlow is not installed.
    """
    try:
        yield
    except ImportError as missing:
        if (missing.name or _MODULE).partition(".")[0] in _FRAMEWORKS:
            require_tensorflow(door, error)
        raise  # another package is missing


# TensorFlow's log.


def silence_log() -> None:
    """Hide all but fatal messages from now on, unless the user has set the level."""
    global _silenced, _former
    if _is_set_by_user():
        return
    _former = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = str(_FATAL)
    _silenced = True
    _set_level(_FATAL)


def _is_set_by_user() -> bool:
    """Return whether the user set a level; a level that importing JAX set does not count."""
    level = os.environ.get(_VARIABLE)
    if level != _JAX_LEVEL or "jax" not in sys.modules:
        return level is not None
    try:
        inherited = _INHERITED.read_bytes().split(b"\0")
    except OSError:  # this is another operating system
        return True
    return any(entry.startswith(f"{_VARIABLE}=".encode()) for entry in inherited)


def restore_log() -> None:
    """Undo `silence_log`; a level that the user has set since then stays."""
    global _silenced
    if _silenced and os.environ.get(_VARIABLE) == str(_FATAL):
        if _former is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = _former
        _set_level(int(_former or _INFO))
    _silenced = False


def _set_level(level: int) -> None:
    """Set the level of an imported TensorFlow, which has read the variable already.

    TensorFlow offers no Python function for that, but exports Abseil's function, whose name
    contains the version of Abseil. TensorFlow 2.18 has a log of its own besides Abseil's. It keeps
    the level that it found at its first message, and without its only sink it would lose fatal
    messages too.
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
    """Hold back the output to the standard error stream, and drop the noise.

    Use it for a block that imports TensorFlow, which logs before it reads the level. All other
    output is written when the block ends.
    """
    if sys.stderr is None or not _is_hidden():  # without a console, nobody reads the stream
        yield
        return
    sys.stderr.flush()
    with tempfile.TemporaryFile() as captured:
        stderr_copy = os.dup(_STDERR)
        os.dup2(captured.fileno(), _STDERR)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr_copy, _STDERR)
            os.close(stderr_copy)
            captured.seek(0)
            lines = captured.read().decode(errors="replace").splitlines(keepends=True)
            rest = "".join(line for line in lines if not _NOISE.match(line))
            if rest:
                sys.stderr.write(rest)


def _is_hidden() -> bool:
    return os.environ.get(_VARIABLE, str(_FATAL)).strip() == str(_FATAL)
