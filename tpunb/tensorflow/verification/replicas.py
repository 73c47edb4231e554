"""Claims about the topology, the order of replicas, collectives and variables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb.machine.detect import find_tpu
from tpunb.tensorflow.verification.strategy_suite import StrategySuite
from tpunb.tpu.types import Accelerator, accelerator
from tpunb.verification.suite import NotRunError, Outcome, close, equal, refused

_context = tf.distribute.get_replica_context


class Topology(StrategySuite):
    """Claims about the positions of cores."""

    group = "topology"

    def mesh(self) -> Outcome:
        """Check that the mesh is as in the table of TPU types: chips along x, y, z, and cores."""
        return equal(self._type().topology_mesh_shape, self._mesh())

    def cores_of_hosts(self) -> Outcome:
        """Check that each host drives as many cores as the table of TPU types says."""
        tpu, topology = self._type(), self.connection.topology
        found = [int(topology.num_tasks), int(topology.num_tpus_per_task)]
        return equal([tpu.num_hosts, tpu.devices_per_host], found)

    def coordinates(self) -> Outcome:
        """Check that each core of each host is where the table of TPU types puts it."""
        return close(self._type().device_coordinates(), self.connection.topology.device_coordinates)

    def whole_mesh(self) -> Outcome:
        """Check that every place of the mesh has one core."""
        places = np.reshape(self.connection.topology.device_coordinates, [-1, 4])
        return equal(math.prod(self._mesh()), len(set(map(tuple, places.tolist()))))

    def one_core_a_replica(self) -> Outcome:
        """Check that every core is a replica without a computation shape."""
        topology = self.connection.topology
        return equal(int(topology.num_tasks) * int(topology.num_tpus_per_task), self.replicas)

    def hosts(self) -> Outcome:
        """Check that the strategy has as many hosts as the topology."""
        hosts = self.strategy.extended.num_hosts
        return equal(int(self.connection.topology.num_tasks), int(hosts))

    def logical_devices(self) -> Outcome:
        """Check that each replica has one logical device."""
        return equal(1, self.connection.describe().logical_devices)

    def _mesh(self) -> list[int]:
        return [int(size) for size in self.connection.topology.mesh_shape]

    def _type(self) -> Accelerator:
        """Return the TPU type, whose shape the table of types claims."""
        name: str | None = self.connection.tpu
        if not self.is_virtual:
            name = find_tpu().slice.accelerator_type if name == "local" else None
        if not name:
            raise NotRunError("the type of this TPU is unknown")
        return accelerator(name)


class Replicas(StrategySuite):
    """Claims about the order of replicas and about their shares of batches."""

    group = "replicas"

    def replica_ids(self) -> Outcome:
        """Check that `replica_id_in_sync_group` counts the replicas from 0."""
        found = self.run(lambda: tf.identity(_context().replica_id_in_sync_group))
        return close(range(self.replicas), found)

    def number_of_replicas(self) -> Outcome:
        """Check that `num_replicas_in_sync` is the same inside and outside every replica."""
        found = self.run(lambda: _context().num_replicas_in_sync + 0)
        return close(self.everywhere(self.replicas), found)

    def order_of_values(self) -> Outcome:
        """Check that replica k gets the k-th value, and that its result is the k-th."""
        return close(self.ranks * 2.0, self.on_ranks(lambda x: x * 2.0))

    def order_of_hosts(self) -> Outcome:
        """Check that a host's replicas are consecutive, and hosts are in their tasks' order."""
        if self.is_virtual:
            raise NotRunError("the hosts of this virtual TPU share one process, which is one task")
        topology = self.connection.topology
        devices = self.strategy.extended.worker_devices
        tasks = [tf.DeviceSpec.from_string(device).task or 0 for device in devices]
        expected = np.repeat(np.arange(int(topology.num_tasks)), int(topology.num_tpus_per_task))
        return close(expected, tasks)

    def batches(self) -> Outcome:
        """Check that every example of a global batch reaches one replica, in equal shares."""
        parts = np.asarray(self._batch())
        return close(self._examples(), np.sort(parts, axis=None).reshape(parts.shape))

    def order_of_batches(self) -> Outcome:
        """Check that replica k gets the k-th part of a global batch on a single host."""
        hosts = int(self.strategy.extended.num_hosts)
        if hosts > 1:
            raise NotRunError(f"the claim needs a single host, but this TPU has {hosts}")
        return close(self._examples(), self._batch())

    def input_pipelines(self) -> Outcome:
        """Check that `distribute_datasets_from_function` calls its function once for each host."""
        calls = []

        def pipeline(context: Any) -> Any:
            calls.append((context.input_pipeline_id, context.num_input_pipelines))
            return tf.data.Dataset.from_tensors(tf.zeros([1])).repeat()

        next(iter(self.strategy.distribute_datasets_from_function(pipeline)))
        hosts = int(self.strategy.extended.num_hosts)
        return equal([(host, hosts) for host in range(hosts)], sorted(calls))

    def _examples(self) -> np.ndarray:
        """Return a global batch of two examples per replica, cut into the replicas' parts."""
        return np.arange(2.0 * self.replicas, dtype=np.float32).reshape([-1, 2])

    def _batch(self) -> list[Any]:
        """Return each replica's part of the global batch."""
        data = tf.data.Dataset.from_tensor_slices(self._examples().reshape(-1))
        batches = data.batch(2 * self.replicas, drop_remainder=True)
        return self.local(next(iter(self.strategy.experimental_distribute_dataset(batches))))


class CollectivesInside(StrategySuite):
    """Claims about collectives that a replica function calls."""

    group = "collectives inside a replica function"

    def all_reduce_SUM(self) -> Outcome:
        """Check that every replica gets the sum over the replicas."""
        found = self.on_ranks(lambda x: _context().all_reduce("SUM", x))
        return close(self.everywhere(self.ranks.sum()), found)

    def all_reduce_MEAN(self) -> Outcome:
        """Check that every replica gets the mean over the replicas."""
        found = self.on_ranks(lambda x: _context().all_reduce("MEAN", x))
        return close(self.everywhere(self.ranks.mean()), found, self.tolerance())

    def all_reduce_of_bfloat16(self) -> Outcome:
        """Check that values in bfloat16 are added up."""
        return self._summed("bfloat16")

    def all_reduce_of_int32(self) -> Outcome:
        """Check that values in int32 are added up."""
        return self._summed("int32")

    def all_reduce_of_int64(self) -> Outcome:
        """Check that values in int64 are refused."""
        return refused(lambda: self._summed("int64").found)

    def all_reduce_of_a_nest(self) -> Outcome:
        """Check that each tensor of a nest is reduced."""

        def step(x: Any) -> Any:
            reduced = _context().all_reduce("SUM", {"a": x, "b": [x * 2.0]})
            return reduced["b"][0] - reduced["a"]

        return close(self.everywhere(self.ranks.sum()), self.on_ranks(step))

    def all_reduce_in_a_loop(self) -> Outcome:
        """Check that a loop may reduce in every round."""

        def step(x: Any) -> Any:
            for _ in tf.range(3):
                x = _context().all_reduce("MEAN", x) + 1.0
            return x

        expected = self.everywhere(self.ranks.mean() + 3.0)
        return close(expected, self.on_ranks(step), self.tolerance())

    def all_gather(self) -> Outcome:
        """Check that every replica gets the values of all replicas, in order."""
        found = self.on_ranks(lambda x: _context().all_gather(x[None], axis=0))
        return close(self.everywhere(self.ranks), found)

    def all_gather_along_axis_1(self) -> Outcome:
        """Check that values are concatenated along any axis."""
        found = self.on_ranks(lambda x: _context().all_gather(tf.fill([2, 1], x), axis=1))
        return close(self.everywhere([self.ranks, self.ranks]), found)

    def gradient_of_all_reduce(self) -> Outcome:
        """Check that the gradient of a sum is summed over the replicas."""

        def step(x: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = _context().all_reduce("SUM", x * x)
            return tape.gradient(y, x)

        return close(self.ranks * 2.0 * self.replicas, self.on_ranks(step), self.tolerance())

    def sum_in_groups(self) -> Outcome:
        """Check that `CrossReplicaSum` adds up the replicas of a group."""
        self.need_replicas()
        parities = [list(range(first, self.replicas, 2)) for first in (0, 1)]
        found = self.on_ranks(
            lambda x: tf.raw_ops.CrossReplicaSum(input=x, group_assignment=parities)
        )
        sums = [self.ranks[group].sum() for group in parities]
        return close([sums[replica % 2] for replica in range(self.replicas)], found)

    def permute(self) -> Outcome:
        """Check that `CollectivePermute` sends the value of each replica to another."""
        return close(np.roll(self.ranks, 1), self._sent_on(self.replicas))

    def permute_to_some(self) -> Outcome:
        """Check that a replica to which nothing is sent gets zeros."""
        return close([0.0, 1.0, *[0.0] * (self.replicas - 2)], self._sent_on(1))

    def all_to_all(self) -> Outcome:
        """Check that `AllToAll` gives replica k the k-th piece of every replica."""
        self.need_replicas()
        count = self.replicas

        def step(x: Any) -> Any:
            return tf.raw_ops.AllToAll(
                input=x * tf.range(1.0, count + 1.0),
                group_assignment=[list(range(count))],
                concat_dimension=0,
                split_dimension=0,
                split_count=count,
            )

        return close(np.outer(self.ranks, self.ranks), self.on_ranks(step))

    def _summed(self, dtype: str) -> Outcome:
        def step(x: Any) -> Any:
            return tf.cast(_context().all_reduce("SUM", tf.cast(x % 4.0, dtype)), tf.float32)

        return close(self.everywhere((self.ranks % 4.0).sum()), self.on_ranks(step))

    def _sent_on(self, senders: int) -> list[Any]:
        """Return the replicas' values after the first `senders` send theirs to the next."""
        self.need_replicas()
        pairs = [(replica, (replica + 1) % self.replicas) for replica in range(senders)]
        return self.on_ranks(
            lambda x: tf.raw_ops.CollectivePermute(input=x, source_target_pairs=pairs)
        )


class CollectivesOutside(StrategySuite):
    """Claims about `strategy.reduce` and `strategy.gather`."""

    group = "collectives outside"

    def reduce_SUM(self) -> Outcome:
        """Check that `strategy.reduce` adds up the replicas' values."""
        found = self.strategy.reduce("SUM", self.each(self.ranks), axis=None)
        return close(self.ranks.sum(), found)

    def reduce_MEAN(self) -> Outcome:
        """Check that `strategy.reduce` takes the mean of the replicas' values."""
        found = self.strategy.reduce("MEAN", self.each(self.ranks), axis=None)
        return close(self.ranks.mean(), found, self.tolerance())

    def reduce_along_axis_0(self) -> Outcome:
        """Check that `strategy.reduce` with an axis takes the mean of all examples."""
        rows = np.stack([self.ranks, self.ranks + 1.0], axis=1)
        found = self.strategy.reduce("MEAN", self.each(rows), axis=0)
        return close(rows.mean(), found, self.tolerance())

    def reduce_in_a_function(self) -> Outcome:
        """Check that `strategy.reduce` works in a `tf.function`, after `strategy.run`."""

        @tf.function  # type: ignore[untyped-decorator]
        def step(x: Any) -> Any:
            squares = self.strategy.run(lambda y: y * y, args=(x,))
            return self.strategy.reduce("SUM", squares, axis=None)

        found = step(self.each(self.ranks))
        return close((self.ranks**2).sum(), found, self.tolerance())

    def gather(self) -> Outcome:
        """Check that `strategy.gather` concatenates the replicas' values in their order."""
        values = self.each(self.ranks[:, None])
        return close(self.ranks, self.strategy.gather(values, axis=0))

    def gather_along_axis_1(self) -> Outcome:
        """Check that `strategy.gather` concatenates along any axis."""
        values = self.each(np.repeat(self.ranks[:, None, None], 2, axis=1))
        return close([self.ranks, self.ranks], self.strategy.gather(values, axis=1))


class Variables(StrategySuite):
    """Claims about variables, which have a copy on every core."""

    group = "variables"

    def broadcast(self) -> Outcome:
        """Check that a value assigned outside reaches the copy of every core."""
        variable = self.variable(1.0)
        variable.assign(7.0)
        return close(self.everywhere(7.0), self.run(lambda: variable + 0.0))

    def assign_SUM(self) -> Outcome:
        """Check that all copies get the sum of the values that the replicas assign."""
        return close(self.everywhere(self.ranks.sum()), self._assigned("SUM"))

    def assign_MEAN(self) -> Outcome:
        """Check that all copies get the mean of the values that the replicas assign."""
        expected = self.everywhere(self.ranks.mean())
        return close(expected, self._assigned("MEAN"), self.tolerance())

    def assign_ONLY_FIRST_REPLICA(self) -> Outcome:
        """Check that all copies get the value that the first replica assigns."""
        return close(self.everywhere(1.0), self._assigned("ONLY_FIRST_REPLICA"))

    def assign_NONE(self) -> Outcome:
        """Check that each copy has the value its replica assigned, without aggregation."""
        return close(self.ranks, self._assigned("NONE"))

    def sync_on_read(self) -> Outcome:
        """Check that each replica has its own value, and that reading the variable adds them."""
        variable = self.variable(
            0.0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
        self.on_ranks(lambda x: variable.assign_add(x))
        return close(self.ranks.sum(), variable.read_value())

    def _assigned(self, aggregation: str) -> list[Any]:
        """Return the value of each copy after each replica has assigned its rank."""
        variable = self.variable(0.0, aggregation=tf.VariableAggregation[aggregation])
        self.on_ranks(lambda x: variable.assign(x))
        return self.local(variable)
