"""Claims about refusals of a TPU: each rule of strictness, and harmless known errors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb.errors import TpuWarning
from tpunb.errors.catalogue import ENTRIES
from tpunb.machine.detect import find_tpu
from tpunb.tensorflow.verification.strategy_suite import StrategySuite
from tpunb.tensorflow.virtual.runtime.tensorflow_state import soft_placement
from tpunb.verification.suite import (
    NotRunError,
    Outcome,
    Program,
    Suite,
    close,
    compared,
    refused,
)
from tpunb.virtual.strictness import RULES, UNCHECKED

_TEBIBYTE = (2**19, 2**19)  # of float32, which no core holds


def refused_by_a_tpu(code: str | None = None) -> Callable[[Callable[[Any], Any]], Program]:
    """Return a decorator that turns a method, which a TPU refuses to run, into a program.

    Args:
        code: The known error that the method ends with; None to claim only the refusal.
    """

    def decorate(method: Callable[[Any], Any]) -> Program:
        def program(suite: Suite) -> Outcome:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                outcome = refused(lambda: method(suite), code)
            unchecked = [text for warned in caught if UNCHECKED in (text := str(warned.message))]
            if unchecked and outcome.status != "holds":
                raise NotRunError(unchecked[0])
            return outcome

        program.__doc__ = f"Known error {code}: {ENTRIES[code].title}." if code else ""
        return program

    return decorate


def warned_of(method: Callable[[Any], tuple[Any, Any]]) -> Program:
    """Turn a method, which runs on a TPU but warns on a virtual one, into a program.

    The method returns the expected numbers and the numbers that the TPU computed.
    """

    def program(suite: Suite) -> Outcome:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            outcome = close(*method(suite), tolerance=suite.tolerance())
        is_warned = any(issubclass(warned.category, TpuWarning) for warned in caught)
        if suite.is_virtual and not is_warned:
            return compared(False, f"{outcome.expected}; a warning", f"{outcome.found}; no warning")
        return outcome

    return program


class Rules(StrategySuite):
    """A claim for each rule of strictness. The claim's program breaks the rule."""

    group = "rules"

    @classmethod
    def claims(cls) -> Mapping[str, str]:
        """Return what a TPU does, by the rule's name."""
        return RULES

    @refused_by_a_tpu("32")
    def eager_run(self) -> Any:
        return self.strategy.run(lambda x: x + 1.0, args=(self.each(self.ranks),))

    @refused_by_a_tpu("22")
    def unsupported_op(self) -> Any:
        return self._on_each(lambda x: tf.strings.length(tf.strings.as_string(x)))

    @refused_by_a_tpu("24")
    def unsupported_type(self) -> Any:
        return self._on_each(lambda _: tf.constant("text"))

    @refused_by_a_tpu("27")
    def constant_size(self) -> Any:
        return self._on_each(lambda x: tf.reduce_sum(tf.range(tf.cast(x[0], tf.int32) + 2)))

    @refused_by_a_tpu("29")
    def list_size(self) -> Any:
        def growing(x: Any) -> Any:
            array = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
            for i in tf.range(3):
                array = array.write(i, x)
            return array.stack()

        return self._on_each(growing)

    @refused_by_a_tpu()
    def compile(self) -> Any:
        def changing_its_shape(x: Any) -> Any:
            _, grown = tf.while_loop(
                lambda i, _: i < 2,
                lambda i, y: (i + 1, tf.concat([y, y], 0)),
                (0, x),
                shape_invariants=(tf.TensorShape([]), tf.TensorShape([None])),
            )
            return tf.reduce_sum(grown)

        return self._on_each(changing_its_shape)

    @refused_by_a_tpu()
    def dynamic_batch(self) -> Any:
        self.need_replicas()
        batches = [np.ones([replica + 1, 2], np.float32) for replica in range(self.replicas)]
        return self.run(lambda x: tf.reduce_sum(x[::2]), self.each(batches))

    @refused_by_a_tpu("25")
    def x64_op(self) -> Any:
        return self._on_each(lambda x: tf.tensordot(*[tf.cast(x, tf.int64)] * 2, 1))

    @refused_by_a_tpu("30")
    def memory(self) -> Any:
        # A result, because a compiler cannot remove it.
        return self._on_each(lambda x: tf.fill(_TEBIBYTE, x[0]))

    @refused_by_a_tpu("34")
    def scope(self) -> Any:
        variable = tf.Variable(2.0)
        return self.on_ranks(lambda x: variable.assign(x))

    @refused_by_a_tpu()
    def unknown_rank(self) -> Any:
        @tf.function(input_signature=[tf.TensorSpec(None)])  # type: ignore[untyped-decorator]
        def step(x: Any) -> Any:
            return self.strategy.run(lambda y: y * 2.0, args=(x,))

        return self.local(step(tf.constant(3.0)))

    @refused_by_a_tpu("40")
    def gather_shapes(self) -> Any:
        self.need_replicas()
        shapes = [np.ones([replica + 1], np.float32) for replica in range(self.replicas)]
        return self.strategy.gather(self.each(shapes), axis=0)

    @refused_by_a_tpu()
    def collective_branch(self) -> Any:
        self.need_replicas()
        if not self.is_virtual:
            raise NotRunError("the program hangs on a TPU")
        context = tf.distribute.get_replica_context

        def on_the_first_replica(x: Any) -> Any:
            is_first = tf.equal(context().replica_id_in_sync_group, 0)
            return tf.cond(is_first, lambda: context().all_reduce("SUM", x), lambda: x)

        return self._on_each(on_the_first_replica)

    @warned_of
    def host_op(self) -> tuple[Any, Any]:
        def digits(x: Any) -> Any:
            return tf.strings.length(tf.strings.as_string(tf.cast(x, tf.int32)))

        with soft_placement():
            return [len(str(int(rank))) for rank in self.ranks], self.on_ranks(digits)

    @warned_of
    def dynamic_shape(self) -> tuple[Any, Any]:
        found = self._on_each(lambda x: tf.reduce_sum(tf.boolean_mask(x, x > 1.0)))
        return self.everywhere(2.0), found

    @warned_of
    def bounded_shape(self) -> tuple[Any, Any]:
        def step(x: Any) -> Any:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            return tf.reduce_sum(x[replica : replica + 1])

        return self.ranks, self.run(step, self.each(self.everywhere(self.ranks)))

    @warned_of
    def unchecked(self) -> tuple[Any, Any]:
        raise NotRunError(
            "the rule is about crashes of TensorFlow's compiler, which are not provoked"
        )

    @warned_of
    def seed(self) -> tuple[Any, Any]:
        def step() -> Any:
            return tf.floor(tf.random.uniform([], seed=1))  # XLA draws any number from 0 to 1

        return self.ranks * 0.0, self.run(step)

    @warned_of
    def float64(self) -> tuple[Any, Any]:
        values = self.ranks.astype(np.float64)
        return values * 2.0, self.run(lambda x: x * 2.0, self.each(values))

    def _on_each(self, function: Callable[[Any], Any]) -> list[Any]:
        """Run a function of two numbers on every replica."""
        return self.run(function, self.each(self.everywhere(np.array([1.0, 2.0], np.float32))))


class KnownErrors(StrategySuite):
    """Claims about errors in the catalogue that can be provoked and that no rule covers."""

    group = "known errors"

    @refused_by_a_tpu("5")
    def TPUStrategy_without_a_TPU(self) -> Any:
        if not self.is_virtual or find_tpu().tpu is not None:
            raise NotRunError("there is a TPU")
        return tf.distribute.TPUStrategy(tf.distribute.cluster_resolver.TPUClusterResolver("local"))

    @refused_by_a_tpu("21")
    def ragged_batches(self) -> Any:
        rows = tf.ragged.constant([[1], [2, 3]] * self.replicas)
        batches = tf.data.Dataset.from_tensor_slices(rows).batch(2 * self.replicas)
        return next(iter(self.strategy.experimental_distribute_dataset(batches)))

    @refused_by_a_tpu("33")
    def a_per_replica_value_as_a_tensor(self) -> Any:
        self.need_replicas()  # with a single replica, the value is a tensor
        return self.each(self.ranks) + 1.0

    @refused_by_a_tpu("34")
    def a_model_from_outside_the_scope(self) -> Any:
        return self._fitted(compile_inside=False)

    @refused_by_a_tpu("34")
    def a_model_compiled_inside_the_scope(self) -> Any:
        return self._fitted(compile_inside=True)

    @refused_by_a_tpu("35")
    def a_variable_in_a_function(self) -> Any:
        return self.on_ranks(lambda x: tf.Variable(1.0) + x)

    @refused_by_a_tpu("38")
    def an_odd_global_batch(self) -> Any:
        self.need_replicas()

        def pipeline(context: Any) -> Any:
            size = context.get_per_replica_batch_size(self.replicas + 1)
            return tf.data.Dataset.range(9).batch(size)

        return self.strategy.distribute_datasets_from_function(pipeline)

    @refused_by_a_tpu("39")
    def an_axis_of_numbers(self) -> Any:
        self.need_replicas()
        return self.strategy.reduce("SUM", self.each(self.ranks), axis=0)

    @refused_by_a_tpu("40")
    def a_sum_of_unequal_shapes(self) -> Any:
        self.need_replicas()
        shapes = self.each([np.ones([replica % 2 + 1]) for replica in range(self.replicas)])
        return self.run(lambda x: tf.distribute.get_replica_context().all_reduce("SUM", x), shapes)

    @refused_by_a_tpu("41")
    def a_logical_device_too_far(self) -> Any:
        far = self.connection.describe().logical_devices
        assign = self.strategy.experimental_assign_to_logical_device
        return self.on_ranks(lambda x: assign(x, far))

    @refused_by_a_tpu("42")
    def replicas_larger_than_the_mesh(self) -> Any:
        topology = self.connection.topology
        wide = [int(size) + 1 for size in topology.mesh_shape]
        return tf.tpu.experimental.DeviceAssignment.build(topology, computation_shape=wide)

    def _fitted(self, *, compile_inside: bool) -> Any:
        """Fit a model that was made, and perhaps compiled, outside the scope."""
        keras = tf.keras
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
        if not compile_inside:
            model.compile("sgd", "mse")
        with self.strategy.scope():
            if compile_inside:
                model.compile("sgd", "mse")
            rows = np.ones([self.replicas, 3], np.float32)
            return model.fit(rows, rows[:, :1], batch_size=self.replicas, verbose=0)
