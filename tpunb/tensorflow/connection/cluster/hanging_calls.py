"""A deadline for TensorFlow calls that wait for other machines.

TensorFlow (2.18 to 2.21) connects to workers while it holds the GIL, without a timeout. If a
worker never answers, the whole process hangs and no interrupt gets through. Here its C functions
are called without the GIL, in their own thread. At the deadline, this process's own sockets to
the workers are shut down, and TensorFlow's call ends with an error.

tensorflow/tensorflow#65835 (2.16, open) and #34564 report such waits in
`experimental_connect_to_cluster`. #14489 explains that a cancellation does not reach the request
for a worker's devices. This module can go when TensorFlow has a time limit for connecting.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import socket
import stat
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, TypeVar

import tensorflow as tf

from tpunb._util.deadline import Running
from tpunb._util.patching import attribute
from tpunb.machine.tested_releases import is_newer
from tpunb.tensorflow.virtual.private_names import pywrap_tfe

_GRACE = 1.5  # seconds for a call to end once its sockets are shut down
# Idle seconds until the first probe, seconds between probes, the number of probes that may fail,
# and the milliseconds that sent data may stay unacknowledged.
_KEEPALIVE = {
    "TCP_KEEPIDLE": 10,
    "TCP_KEEPALIVE": 10,  # the same, on macOS
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 2,
    "TCP_USER_TIMEOUT": 20_000,
}
_DIRECTORIES = ("/proc/self/fd", "/dev/fd")

_Value = TypeVar("_Value")


class StillWaitingError(Exception):
    """TensorFlow's call did not end by the deadline.

    Attributes:
        left_behind: Whether the call's thread still waits.
    """

    def __init__(self, *, left_behind: bool) -> None:
        super().__init__("TensorFlow waits for a worker that does not answer")
        self.left_behind = left_behind


def within(
    seconds: float, call: Callable[[], _Value], peers: Collection[tuple[str, int]] = ()
) -> _Value:
    """Run a TensorFlow call that may wait for other machines, with a deadline.

    Args:
        seconds: The time limit.
        call: The function to call, in another thread.
        peers: The IP addresses and ports that it may wait for.

    Raises:
        StillWaitingError: The call took longer.
        BaseException: The call's own exception, or an interrupt.
    """
    deadline = time.monotonic() + seconds
    with unlocked():
        running = Running(call)
        try:
            ended = running.wait(deadline)
        except BaseException:
            _end(running, peers)
            raise
        if not ended:
            _end(running, peers)
            raise StillWaitingError(left_behind=not running.wait(0))
    return running.result(deadline)


def _end(running: Running[Any], peers: Collection[tuple[str, int]]) -> None:
    """Shut down sockets until the call that waits for them ends."""
    deadline = time.monotonic() + _GRACE
    while peers and not running.wait(0) and time.monotonic() < deadline:
        cut(peers)
        running.wait(time.monotonic() + 0.1)


def cut(peers: Collection[tuple[str, int]]) -> None:
    """Shut down this process's own sockets to other machines.

    Args:
        peers: The machines' IP addresses and ports.
    """
    for connection in _sockets_to(peers):
        with contextlib.suppress(OSError):  # closed in the meantime
            connection.shutdown(socket.SHUT_RDWR)


def set_keepalive(peers: Collection[tuple[str, int]]) -> None:
    """Set TCP keepalive, so that a connection to a vanished machine ends within half a minute.

    Without it, TensorFlow waits a quarter of an hour for a machine that is switched off or
    disconnected. A busy machine is not affected: its operating system answers the probes.

    Args:
        peers: The machines' IP addresses and ports.
    """
    for connection in _sockets_to(peers):
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE.items():
                if hasattr(socket, name):
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _sockets_to(peers: Collection[tuple[str, int]]) -> Iterator[socket.socket]:
    """Yield the sockets of this process that are connected to one of the machines."""
    for number in _open_files():
        with contextlib.suppress(OSError):  # closed in the meantime, or not connected
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            # Use a duplicate, because TensorFlow closes the original itself.
            with socket.socket(fileno=os.dup(number)) as connection:
                if connection.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                host, port = connection.getpeername()[:2]
                if (host.removeprefix("::ffff:"), port) in peers:
                    yield connection


def _open_files() -> list[int]:
    for directory in _DIRECTORIES:
        with contextlib.suppress(OSError):
            return [int(path.name) for path in Path(directory).iterdir()]
    return []


_NAMES = ("TFE_ContextSetServerDef", "TFE_ContextUpdateServerDef", "TFE_ContextClearCaches")


@contextlib.contextmanager
def unlocked() -> Iterator[None]:
    """Release the GIL within a block while TensorFlow connects to workers."""
    library = _library()
    with contextlib.ExitStack() as stack:
        for name in _NAMES if library is not None else ():
            calling = _clear_caches if name == "TFE_ContextClearCaches" else _set_server_def
            stand_in = functools.partial(calling, getattr(library, name))
            stack.enter_context(attribute(pywrap_tfe, name, stand_in))
        yield


@functools.cache
def _library() -> ctypes.CDLL | None:
    """Return TensorFlow's C library; None if it cannot be loaded, or if its release is not tested.

    The signatures below are written by hand after TensorFlow's c_api.h: a release that changed
    one of them would crash. Without the library, connecting keeps the GIL.
    """
    if is_newer(tf.__version__):
        return None
    folder = Path(tf.__file__).parent
    for name in ("libtensorflow_cc.so.2", "libtensorflow_cc.2.dylib"):
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(str(folder / name))
            for wanted in (*_NAMES, "TF_NewStatus", "TF_DeleteStatus", "TF_GetCode", "TF_Message"):
                getattr(library, wanted)  # raises AttributeError if the function is missing
            return library
    return None


def _clear_caches(function: Any, handle: Any) -> None:
    function.argtypes, function.restype = [ctypes.c_void_p], None
    function(_pointer(handle))


def _set_server_def(function: Any, handle: Any, keep_alive: int, server_def: bytes) -> None:
    library = _library()
    assert library is not None
    size, text, pointer = ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p
    function.argtypes, function.restype = [pointer, ctypes.c_int, text, size, pointer], None
    library.TF_NewStatus.restype = pointer
    library.TF_Message.argtypes, library.TF_Message.restype = [pointer], text
    library.TF_GetCode.argtypes = library.TF_DeleteStatus.argtypes = [pointer]
    status = library.TF_NewStatus()
    try:
        function(_pointer(handle), keep_alive, server_def, len(server_def), status)
        code = library.TF_GetCode(status)
        if code:
            message = library.TF_Message(status).decode(errors="replace")
            kind = tf.compat.v1.errors.exception_type_from_error_code(code)
            raise kind(None, None, message)
    finally:
        library.TF_DeleteStatus(status)


def _pointer(capsule: Any) -> int | None:
    """Return the pointer in a PyCapsule."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    pointer: int | None = get(capsule, None)
    return pointer
