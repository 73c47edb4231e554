"""A virtual TPU that JAX gets when it is first used, as it gets a real TPU.

A notebook may set JAX up between the import and the first use, with `jax.config.update` for
example.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from tpunb.virtual.jax.private_names import owner_of, private
from tpunb.virtual.patch.patch_tools import Replaced

_START = "jax._src.xla_bridge.backends"


class TpuAtFirstUse(contextlib.AbstractContextManager[None]):
    """Connects when JAX is first used within a block, at once if it has been used already.

    The block's end closes the connection. If connecting fails, JAX's call fails, and so does every
    further call.

    Args:
        connect: Connects to the virtual TPU, and returns the connection.
    """

    def __init__(self, connect: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
        self._connect = connect
        self._lock = threading.RLock()  # connecting uses JAX
        self._connecting = False
        self._connection: contextlib.AbstractContextManager[Any] | None = None
        self._replaced = Replaced(*owner_of(_START), self._start)

    def __enter__(self) -> None:
        if private("jax._src.xla_bridge._backends"):
            self._require()
        self._replaced.__enter__()

    def __exit__(self, *exception: object) -> None:
        self._replaced.__exit__()
        if self._connection is not None:
            self._connection.__exit__(None, None, None)

    def _start(self, original: Callable[[], Any]) -> Any:
        self._require()
        return original()

    def _require(self) -> None:
        with self._lock:
            if self._connection is not None or self._connecting:
                return
            self._connecting = True
            try:
                self._connection = self._connect()
            finally:
                self._connecting = False
