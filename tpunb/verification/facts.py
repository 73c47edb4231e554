"""What a report says of the TPU and the software, without saying where they are."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator

from tpunb._util.units import counted
from tpunb.connection.connection import Connection
from tpunb.connection.plan import Plan
from tpunb.machine.platform import detect_platform
from tpunb.machine.software import find_software

__all__ = ["facts_of"]

_PACKAGES = (
    "tpunb",
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-tpu",
    "libtpu",
    "keras",
    "tf_keras",
    "numpy",
)


def facts_of(connection: Connection) -> Iterator[tuple[str, str]]:
    """Names and values of what matters about a connection and this machine's software."""
    topology = connection.topology
    yield "TPU", _tpu(connection)
    yield "replicas", str(connection.strategy.num_replicas_in_sync)
    hosts, cores = int(topology.num_tasks), int(topology.num_tpus_per_task)
    yield "hosts", f"{hosts}, each with {counted(cores, 'core')}"
    yield "mesh", "×".join(str(int(size)) for size in topology.mesh_shape)
    yield "platform", detect_platform(os.environ).name
    yield "system", f"{platform.system()} {platform.machine()}"
    software = find_software(os.environ)
    yield "Python", software.python
    for name in _PACKAGES:
        if name in software.versions:
            yield name, software.versions[name]


def _tpu(connection: Connection) -> str:
    plan: Plan = connection.plan
    if connection.kind == "virtual":
        workers = ", hosts in processes" if connection.pod is not None else ""
        fallback = "" if plan.kind == "virtual" else ", because the TPU found could not be used"
        return f"virtual {connection.tpu}{workers}{fallback}"
    if plan.tpu == "local":
        return "hardware of this machine"
    return f"hardware, by its {'address' if '://' in plan.tpu else 'name'}"
