"""The facts of a report: the TPU, and the software of this machine."""

from __future__ import annotations

import os
import platform
import time
from typing import TYPE_CHECKING

from tpunb._util.deadline import Deadline
from tpunb._util.units import counted
from tpunb.compiler.ask import libtpu
from tpunb.connection.plan import Plan
from tpunb.connection.tpu_connection import TpuConnection, is_of_tensorflow
from tpunb.machine.detect import detect_platform, find_tpu
from tpunb.machine.software import find_software

_SECONDS = 60.0

if TYPE_CHECKING:
    from tpunb.tensorflow.connection.connection import Connection


def facts_of(connection: TpuConnection, plan: Plan) -> dict[str, str]:
    """Describe a connection, its plan, and this machine's software."""
    software = find_software(os.environ)
    mesh = _of_strategy(connection) if is_of_tensorflow(connection) else _of_jax(connection)
    return {
        "TPU": _tpu(connection, plan),
        "type": connection.tpu if connection.kind == "virtual" else _type_found(connection),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        **mesh,
        "platform": detect_platform(os.environ).name,
        "system": f"{platform.system()} {platform.machine()}",
        "Python": software.python,
        **software.versions,
    }


def _type_found(connection: TpuConnection) -> str:
    """Return the TPU's type: of JAX's devices, or the type that the machine names."""
    if not is_of_tensorflow(connection):
        return connection.tpu
    return find_tpu().slice.accelerator_type or "unknown"


def _tpu(connection: TpuConnection, plan: Plan) -> str:
    if connection.kind == "virtual":
        return f"virtual {connection.tpu}"
    if plan.tpu == "local":
        return "hardware of this machine"
    return f"hardware, by its {'address' if '://' in plan.tpu else 'name'}"


def _of_strategy(connection: Connection) -> dict[str, str]:
    topology = connection.topology
    cores = counted(int(topology.num_tpus_per_task), "core")
    return {
        "replicas": str(connection.replicas),
        "hosts": f"{int(topology.num_tasks)}, each with {cores}",
        "mesh": "×".join(str(int(size)) for size in topology.mesh_shape),
    }


def _of_jax(connection: TpuConnection) -> dict[str, str]:
    """Describe the devices of JAX, and the compiler whose verdicts they are compared with."""
    devices = f"{connection.replicas}, as {connection.tpu}"
    return {"devices": devices, "compiler": _compiler()}


def _compiler() -> str:
    """Return the releases of the TPU's compiler, such as `"jax 0.10.2, libtpu 0.0.40"`."""
    known = None if libtpu.why_unavailable() else libtpu.identity(Deadline(_SECONDS))
    if known is None:
        return "not available"
    return ", ".join(f"{name} {release}" for name, release in known["releases"].items())
