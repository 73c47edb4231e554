"""Claims about where cores and replicas lie."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tpunb.tpu.types import Accelerator, accelerator
from tpunb.verification.bench import Bench
from tpunb.verification.claims import Claims
from tpunb.verification.observation import NotRunError, Observation
from tpunb.verification.observing import close, equal

__all__ = ["REPLICAS", "TOPOLOGY"]

TOPOLOGY = Claims("topology")
REPLICAS = Claims("replicas")


def _type(bench: Bench) -> Accelerator:
    """The TPU type, whose shape the table of types claims."""
    name = bench.connection.tpu if bench.is_virtual else _type_of_this_machine(bench)
    if not name:
        raise NotRunError("the type of this TPU is not known here")
    return accelerator(name)


def _type_of_this_machine(bench: Bench) -> str | None:
    from tpunb.machine.detect import find_tpu

    return find_tpu().slice.accelerator_type if bench.connection.tpu == "local" else None


@TOPOLOGY.claim(
    "mesh", "the mesh is that of the table of TPU types: chips along x, y, z, and cores"
)
def _(bench: Bench) -> Observation:
    mesh = [int(size) for size in bench.connection.topology.mesh_shape]
    return equal(_type(bench).topology_mesh_shape, mesh)


@TOPOLOGY.claim("cores of hosts", "each host drives as many cores as the table of TPU types says")
def _(bench: Bench) -> Observation:
    topology, tpu = bench.connection.topology, _type(bench)
    found = [int(topology.num_tasks), int(topology.num_tpus_per_task)]
    return equal([tpu.num_hosts, tpu.devices_per_host], found)


@TOPOLOGY.claim("coordinates", "each core of each host lies where the table of TPU types puts it")
def _(bench: Bench) -> Observation:
    return close(_type(bench).device_coordinates(), bench.connection.topology.device_coordinates)


@TOPOLOGY.claim("whole mesh", "every place of the mesh has one core")
def _(bench: Bench) -> Observation:
    topology = bench.connection.topology
    places = {tuple(place) for place in np.reshape(topology.device_coordinates, [-1, 4]).tolist()}
    return equal(math.prod(int(size) for size in topology.mesh_shape), len(places))


@TOPOLOGY.claim("one core a replica", "without a computation shape every core is a replica")
def _(bench: Bench) -> Observation:
    topology = bench.connection.topology
    return equal(int(topology.num_tasks) * int(topology.num_tpus_per_task), bench.replicas)


@TOPOLOGY.claim("hosts", "the strategy has the topology's hosts")
def _(bench: Bench) -> Observation:
    return equal(int(bench.connection.topology.num_tasks), int(bench.strategy.extended.num_hosts))


@TOPOLOGY.claim("logical devices", "each replica has one logical device")
def _(bench: Bench) -> Observation:
    return equal(1, bench.connection.describe().logical_devices)


def _context() -> Any:
    import tensorflow as tf

    return tf.distribute.get_replica_context()


@REPLICAS.claim("replica ids", "replica_id_in_sync_group counts the replicas from 0")
def _(bench: Bench) -> Observation:
    import tensorflow as tf

    found = bench.run(lambda: tf.identity(_context().replica_id_in_sync_group))
    return close(range(bench.replicas), found)


@REPLICAS.claim("number of replicas", "num_replicas_in_sync is the same inside of the replicas")
def _(bench: Bench) -> Observation:
    found = bench.run(lambda: _context().num_replicas_in_sync + 0)
    return close([bench.replicas] * bench.replicas, found)


@REPLICAS.claim("order of values", "the value made for replica k reaches it, and comes back k-th")
def _(bench: Bench) -> Observation:
    return close(bench.ranks * 2.0, bench.on_ranks(lambda x: x * 2.0))


@REPLICAS.claim(
    "order of hosts", "the replicas of a host are in a row, hosts in the order of their tasks"
)
def _(bench: Bench) -> Observation:
    import tensorflow as tf

    if bench.is_virtual and bench.connection.pod is None:
        raise NotRunError("the hosts of this virtual TPU are one process, which is one task")
    topology = bench.connection.topology
    devices = bench.strategy.extended.worker_devices
    tasks = [tf.DeviceSpec.from_string(device).task or 0 for device in devices]
    expected = np.repeat(np.arange(int(topology.num_tasks)), int(topology.num_tpus_per_task))
    return close(expected, tasks)


def _batch(bench: Bench) -> list[Any]:
    """The part of each replica of a global batch, of two examples for each: 0.0, 1.0, …."""
    import tensorflow as tf

    data = tf.data.Dataset.range(2 * bench.replicas).map(lambda x: tf.cast(x, tf.float32))
    batches = data.batch(2 * bench.replicas, drop_remainder=True)
    return bench.local(next(iter(bench.strategy.experimental_distribute_dataset(batches))))


@REPLICAS.claim("batches", "every example of a global batch reaches one replica, as many each")
def _(bench: Bench) -> Observation:
    parts = np.asarray(_batch(bench))
    seen = np.sort(parts, axis=None).reshape(parts.shape)
    return close(np.reshape(np.arange(2.0 * bench.replicas), [-1, 2]), seen)


@REPLICAS.claim("order of batches", "on one host replica k gets the k-th part of a global batch")
def _(bench: Bench) -> Observation:
    hosts = int(bench.strategy.extended.num_hosts)
    if hosts > 1:
        raise NotRunError(f"it takes a single host, and here are {hosts}")
    return close(np.reshape(np.arange(2.0 * bench.replicas), [-1, 2]), _batch(bench))


@REPLICAS.claim(
    "input pipelines", "distribute_datasets_from_function calls its function for each host"
)
def _(bench: Bench) -> Observation:
    import tensorflow as tf

    seen = []

    def pipeline(context: Any) -> Any:
        seen.append((context.input_pipeline_id, context.num_input_pipelines))
        return tf.data.Dataset.from_tensors(tf.zeros([1])).repeat()

    next(iter(bench.strategy.distribute_datasets_from_function(pipeline)))
    hosts = int(bench.strategy.extended.num_hosts)
    return equal([(host, hosts) for host in range(hosts)], sorted(seen))
