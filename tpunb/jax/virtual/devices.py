"""The client of the virtual devices, and its place among JAX's clients."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any

from tpunb._util.patching import variable
from tpunb.errors import ConnectError
from tpunb.jax.virtual.device_identity import PLATFORM
from tpunb.jax.virtual.private_names import private, set_private

_PRIORITY = 1000
"""Above all platforms of JAX: the highest has 400."""

_THREADS_PER_DEVICE = 2
_DEFAULT = "jax._src.xla_bridge._default_backend"

_NO_LIST = "Unset JAX_PLATFORMS, or run jax.config.update('jax_platforms', None) before connecting."


def require_free_platform() -> None:
    """Check that JAX can get a virtual TPU.

    Raises:
        ConnectError: JAX has a real TPU, runs in several processes, or is told to use a list of
            platforms.
    """
    jax: Any = sys.modules["jax"]
    if (listed := jax.config.jax_platforms) and set(listed.split(",")) != {PLATFORM, "cpu"}:
        raise ConnectError(
            f"JAX is told to use only {listed} (JAX_PLATFORMS or jax_platforms), and a virtual TPU "
            "needs the platforms tpu and cpu.",
            fix=_NO_LIST,
        )
    if jax.distributed.is_initialized():
        raise ConnectError(
            "jax.distributed is initialised, but a virtual TPU has all its devices in one process.",
            fix="Remove jax.distributed.initialize(), or call jax.distributed.shutdown() first.",
        )
    if PLATFORM in _clients():
        raise ConnectError(
            "JAX already uses this machine's TPU, whose devices are the default.",
            fix="Use it as it is. For a virtual TPU, restart the kernel and connect before JAX is "
            "used.",
        )


def make_client(devices: int) -> Any:
    """Return a new client with a number of CPU devices.

    Its threads are at least twice as many as the devices. A device that waits for a collective
    keeps a thread, and JAX 0.7 ends the process if the last device finds no thread within ten
    seconds: "Expected 8 threads to join the rendezvous, but only 7 of them arrived on time". PjRt
    takes the number from NPROC when it makes a client (`DefaultThreadPoolSize` in OpenXLA's
    xla/pjrt/utils.cc).
    """
    threads = max(_THREADS_PER_DEVICE * devices, os.cpu_count() or 1)
    with variable("NPROC", str(threads)):
        return _make_client(devices)


def _make_client(devices: int) -> Any:
    return private("jaxlib.xla_client.make_cpu_client")(asynchronous=True, num_devices=devices)


@contextlib.contextmanager
def default_client(client: Any) -> Iterator[None]:
    """Make a client JAX's default, under the name of the TPU's platform, within a block.

    JAX's other clients stay as they are, so that arrays from before the block stay usable.
    Functions are compiled again.
    """
    factories = private("jax._src.xla_bridge._backend_factories")
    former = factories.get(PLATFORM)
    register = importlib.import_module("jax.extend.backend").register_backend_factory
    register(PLATFORM, lambda: client, priority=_PRIORITY, fail_quietly=False)
    lock, before = private("jax._src.xla_bridge._backend_lock"), None
    try:
        if not _clients():
            private("jax._src.xla_bridge.backends")()  # JAX starts, and finds the client
        with lock:
            before = private(_DEFAULT)
            _clients()[PLATFORM] = client
            set_private(_DEFAULT, client)
        forget_compiled()
        yield
    finally:
        if former is None:
            factories.pop(PLATFORM, None)
        else:
            factories[PLATFORM] = former
        with lock:
            if _clients().get(PLATFORM) is client:
                del _clients()[PLATFORM]
            if private(_DEFAULT) is client:
                set_private(_DEFAULT, _most_important(_clients(), factories, before))
        forget_compiled()


def other_platforms() -> list[str]:
    """Return the platforms of this machine's accelerators that JAX has started, such as `cuda`."""
    return sorted(set(_clients()) - {PLATFORM, "cpu"})


def _clients() -> dict[str, Any]:
    clients: dict[str, Any] = private("jax._src.xla_bridge._backends")
    return clients


def _most_important(clients: dict[str, Any], factories: dict[str, Any], before: Any) -> Any:
    """Return the default among JAX's own clients; None if JAX has none."""
    if before in clients.values():
        return before
    by_priority = sorted(clients, key=lambda name: factories[name].priority)
    return clients[by_priority[-1]] if by_priority else None


def forget_compiled() -> None:
    """Make JAX choose the devices of all functions again."""
    sys.modules["jax"].clear_caches()
