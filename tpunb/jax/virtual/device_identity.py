"""The identity of the virtual devices: they answer as the devices of a TPU type.

The attributes of `Device` and `Client` are replaced on the classes, because objects of jaxlib have
no attributes of their own. All other devices and clients answer as before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from tpunb._util.patching import attribute
from tpunb.jax.virtual.private_names import private
from tpunb.tpu.families import DEVICE_KINDS
from tpunb.tpu.types import Accelerator

PLATFORM = "tpu"


def identify(
    client: Any, tpu: Accelerator, memory_stats: Callable[[Any], dict[str, int]]
) -> contextlib.ExitStack:
    """Make a client's devices answer as a TPU type's, until the returned stack is closed.

    Args:
        client: The client, which has as many devices as the type has.
        tpu: The TPU type.
        memory_stats: Returns the use of a device's memory.
    """
    places = [place for host in tpu.device_coordinates() for place in host]
    kind = DEVICE_KINDS[tpu.family]

    def text(device: Any) -> str:
        *coords, core = places[device.id]
        where = ",".join(map(str, coords))
        return (
            f"TpuDevice(id={device.id}, process_index={device.process_index}, "
            f"coords=({where}), core_on_chip={core})"
        )

    def short_text(device: Any) -> str:
        where = ",".join(map(str, places[device.id]))
        return f"TPU_{device.id}(process={device.process_index},({where}))"

    answers: dict[str, Callable[[Any], Any]] = {
        "platform": lambda _: PLATFORM,
        "device_kind": lambda _: kind,
        "coords": lambda device: list(places[device.id][:3]),
        "core_on_chip": lambda device: places[device.id][3],
        "num_cores": lambda _: 2 if tpu.is_merged else 1,
        "slice_index": lambda _: 0,
    }
    methods: dict[str, Callable[[Any], Any]] = {
        "memory_stats": memory_stats,
        "__repr__": text,
        "__str__": short_text,
    }
    devices, clients = private("jaxlib._jax.Device"), private("jaxlib._jax.Client")
    with contextlib.ExitStack() as undo:
        for name, answer in answers.items():
            undo.enter_context(attribute(devices, name, _property(devices, name, answer, client)))
        for name, method in methods.items():
            undo.enter_context(attribute(devices, name, _method(devices, name, method, client)))
        for name in ("platform", "_raw_platform"):
            if hasattr(clients, name):
                original = getattr(clients, name)
                named = _platform_of(original, client)
                undo.enter_context(attribute(clients, name, named))
        return undo.pop_all()


def _property(kind: type, name: str, answer: Callable[[Any], Any], client: Any) -> property:
    """Return a property that answers for one client's devices, and as before for others."""
    original = vars(kind).get(name)

    def value(device: Any) -> Any:
        if device.client is client:
            return answer(device)
        if original is None:
            raise AttributeError(name)  # Python asks the class's own __getattr__ then
        return original.__get__(device, kind)

    return property(value)


def _method(
    kind: type, name: str, method: Callable[[Any], Any], client: Any
) -> Callable[[Any], Any]:
    original = getattr(kind, name)

    def call(device: Any) -> Any:
        return method(device) if device.client is client else original(device)

    return call


def _platform_of(original: Any, client: Any) -> property:
    return property(lambda self: PLATFORM if self is client else original.__get__(self))
