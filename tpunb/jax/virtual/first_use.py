"""A virtual TPU that JAX gets when it is first used, as it gets a real TPU.

A notebook may set JAX up between the import and the first use, with `jax.config.update` for
example.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from tpunb._util.patching import Replaced
from tpunb.jax.virtual.device_identity import PLATFORM
from tpunb.jax.virtual.private_names import owner_of, private

_START, _CLIENTS = "jax._src.xla_bridge.backends", "jax._src.xla_bridge._backends"


class TpuAtFirstUse(contextlib.AbstractContextManager[None]):
    """Connects when JAX is first used within a block, at once if it has been used already.

    The block's end closes the connection. If connecting fails, JAX's call fails, and so does every
    further call. If another connection replaces this one and is closed, JAX connects again.

    Args:
        connect: Connects to the virtual TPU, and returns the connection.
    """

    def __init__(self, connect: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
        self._connect = connect
        self._lock = threading.RLock()  # connecting uses JAX
        self._connecting = False
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> None:
        if private(_CLIENTS):
            self._connect_here()
        self._undo.enter_context(Replaced(*owner_of(_START), self._start))

    def __exit__(self, *exception: object) -> None:
        self._undo.close()

    def _start(self, original: Callable[[], Any]) -> Any:
        with self._lock:
            if not self._connecting and PLATFORM not in private(_CLIENTS):
                self._connect_here()
        return original()

    def _connect_here(self) -> None:
        self._connecting = True
        try:
            connection = self._connect()
        finally:
            self._connecting = False
        self._undo.push(connection)  # closing it twice does no harm
