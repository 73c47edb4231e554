"""The parts of a connection to a TPU, and the memory of its variables."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from tpunb.display.describe.topology_description import TopologyDescription


@dataclass(frozen=True, slots=True)
class ConnectionDescription:
    """A connection, without anything that differs from run to run.

    It leaves out durations, ids and addresses, so that a saved notebook can be compared with a new
    run.

    Attributes:
        kind: `"virtual"` for a TPU simulated on CPU cores, or `"hardware"`.
        tpu: The name the user gave the TPU, such as `"local"`; may be empty.
        accelerator: The TPU type, such as `"v5e-8"`; empty if unknown.
        replicas: The number of the strategy's replicas; 0 without a strategy.
        cores: The number of the framework's TPU devices.
        hosts: The number of tasks that drive the devices.
        logical_devices: The number of logical devices of one replica (model parallelism).
        topology: The mesh, and the device assignment if any.
        arithmetic: How matrices are multiplied: `"cpu"` in float32, or as a `"tpu"` does.
        versions: Pairs of a package and its version.
        notes: Sentences that the user should read, such as why the TPU is
            virtual.
        framework: The framework whose devices the cores are.
    """

    kind: Literal["virtual", "hardware"]
    tpu: str
    accelerator: str
    replicas: int
    cores: int
    hosts: int
    logical_devices: int = 1
    topology: TopologyDescription | None = None
    arithmetic: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    framework: str = "TensorFlow"


_DEVICE = re.compile(r"(?:/task:(?P<task>\d+))?/device:(?P<kind>[A-Za-z_]+):(?P<number>\d+)$")

Device = tuple[int, str, int]


def memory_per_core(strategy: Any, description: TopologyDescription) -> tuple[int, ...]:
    """Count the bytes of a strategy's variables on each core.

    All live variables count: variables of models, of optimizers, and under a notebook's names.
    Other memory of a compiled program does not count. A tensor that XLA partitions over logical
    devices counts in full on each of them.

    Args:
        strategy: A `tf.distribute.TPUStrategy`, real or virtual.
        description: The topology that the strategy runs on.

    Returns:
        Bytes of each core, in the description's order.
    """
    core_of = cores_by_device(strategy, description)
    # Several wrappers of a variable may lead to one component.
    parts: dict[int, Any] = {}
    for variable in _variables(strategy):
        for component in variable.values:
            # If each logical device has a copy, count all of the copies.
            copies = getattr(component, "variables", None)
            for part in copies if isinstance(copies, list | tuple) else (component,):
                parts[id(part)] = part
    used = [0] * description.num_cores
    for part in parts.values():
        core = core_of.get(device_of(getattr(part, "device", "")))
        if core is not None and part.shape.rank is not None:
            used[core] += int((part.shape.num_elements() or 0) * part.dtype.size)
    return tuple(used)


def cores_by_device(strategy: Any, description: TopologyDescription) -> dict[Device | None, int]:
    """Return the core of each device, real or virtual, by the key that `device_of` returns."""
    pairs = list(zip(description.hosts, description.ordinals, strict=True))
    devices = getattr(getattr(strategy, "cluster_resolver", None), "devices", None)
    cores = getattr(devices, "cores", None)
    if cores is None:
        return {(host, "TPU", ordinal): core for core, (host, ordinal) in enumerate(pairs)}
    # A virtual TPU's resolver names the CPU devices of its cores, host by host.
    return {device_of(cores[host][ordinal]): core for core, (host, ordinal) in enumerate(pairs)}


def device_of(name: str) -> Device | None:
    """Return task, kind and number of a device; names may lack their beginning."""
    match = _DEVICE.search(name or "")
    if match is None:
        return None
    return int(match["task"] or 0), match["kind"].upper(), int(match["number"])


def _variables(strategy: Any) -> Iterator[Any]:
    """Yield the live distributed variables of a strategy.

    TensorFlow keeps no list of them, but Python's garbage collector does.
    """
    tensorflow = sys.modules.get("tensorflow")
    base = getattr(getattr(tensorflow, "distribute", None), "DistributedValues", None)
    if base is None:
        return
    # Decide by class, because classes are few, and isinstance() would run code of proxy objects.
    is_distributed: dict[type, bool] = {}
    for item in gc.get_objects():
        kind = type(item)
        known = is_distributed.get(kind)
        if known is None:
            known = is_distributed[kind] = base in kind.__mro__
        if known and getattr(item, "distribute_strategy", None) is strategy:
            yield item
