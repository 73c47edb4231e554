"""The virtual TPU as a strategy: its classes, refusals and errors."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.strategies import all_reduce, each, local, replica_id, run, stepper, strategy_of

from tpunb.errors import AcceleratorTypeError, VirtualDevicesError
from tpunb.tensorflow.virtual.runtime import devices
from tpunb.virtual import VirtualTPUClusterResolver, VirtualTPUStrategy


def test_it_is_a_tpu_strategy(four: Any) -> None:
    assert isinstance(four, tf.distribute.TPUStrategy)
    assert four.num_replicas_in_sync == 4
    assert repr(four) == "<virtual TPUStrategy of 4 replicas>"
    assert repr(VirtualTPUClusterResolver("v3-8")) == "<resolver of a virtual TPU v3-8>"
    assert isinstance(four.cluster_resolver, tf.distribute.cluster_resolver.ClusterResolver)
    with four.scope():
        assert tf.distribute.get_strategy() is four
        assert tf.distribute.in_cross_replica_context()


def test_eager_run_of_a_tf_function(four: Any) -> None:
    traces = []

    @tf.function
    def double(x: Any) -> Any:
        traces.append(1)
        if x > 2.0:
            x += 100.0
        return x * 2.0

    values = each(four, [1.0, 2.0, 3.0, 4.0])
    for _ in range(3):
        assert local(four, four.run(double, args=(values,))) == [2.0, 4.0, 206.0, 208.0]
    assert len(traces) == 1


def test_a_replica_function_is_traced_once(four: Any) -> None:
    traces = []

    def replica(x: Any) -> Any:
        traces.append(x.shape.as_list())
        return x + 1

    step = stepper(four, replica)
    for _ in range(3):
        step(each(four, [1, 2, 3, 4]))
    assert traces == [[]]
    step(each(four, [[1], [2], [3], [4]]))
    assert traces == [[], [1]]


def test_results_print_as_in_tensorflow(four: Any) -> None:
    result = tf.function(lambda: four.run(replica_id))()
    assert type(result).__module__.startswith("tensorflow.")
    lines = [f"  {k}: tf.Tensor({k}, shape=(), dtype=int32)" for k in range(4)]
    assert str(result) == "PerReplica:{\n" + ",\n".join(lines) + "\n}"


@pytest.mark.parametrize(
    ("tpu", "hosts", "replicas"), [("v3-8 ", 1, 8), ("v3-32", 4, 32), (3, 1, 3), ("v5e-1", 1, 1)]
)
def test_hosts_and_devices(tpu: Any, hosts: int, replicas: int) -> None:
    strategy = strategy_of(tpu)
    extended = strategy.extended
    assert strategy.num_replicas_in_sync == replicas
    assert extended.num_hosts == hosts
    assert extended.num_replicas_per_host == replicas // hosts
    assert len(extended.worker_devices) == replicas
    assert len(set(extended.worker_devices)) == replicas
    assert run(strategy, replica_id) == list(range(replicas))


def test_results_are_on_their_cores(four: Any) -> None:
    # int32 results would be in the host's memory.
    result = tf.function(lambda: four.run(lambda: tf.cast(replica_id(), tf.float32)))()
    devices = [value.backing_device for value in result.values]
    assert devices == [
        tf.DeviceSpec.from_string(d).replace(job="localhost").to_string()
        for d in four.extended.worker_devices
    ]


@pytest.mark.parametrize("tpu", ["v9-8", "v5e-7", 0, -1, True, None, 2.5, ""])
def test_wrong_types(tpu: Any) -> None:
    with pytest.raises(AcceleratorTypeError):
        VirtualTPUStrategy(tpu)


def test_a_resolver_serves_several_strategies() -> None:
    strategy_of(4)
    resolver = VirtualTPUClusterResolver(4)
    strategy = VirtualTPUStrategy(resolver)
    assert strategy.cluster_resolver is resolver
    assert resolver.num_accelerators() == {"TPU": 4}
    assert resolver.master() == ""


def in_a_function(x: Any) -> Any:
    return tf.function(lambda y: tf.debugging.check_numerics(tf.math.log(y), "wrong"))(x)


def in_place(x: Any) -> Any:
    return tf.debugging.check_numerics(tf.math.log(x), "wrong")


def in_an_assertion(x: Any) -> Any:
    tf.debugging.assert_greater(x, 0.0, message="wrong")
    return x


def in_a_branch(x: Any) -> Any:
    if x < 100.0:
        x = tf.debugging.check_numerics(tf.math.log(x), "wrong")
    return x


def in_a_loop(x: Any) -> Any:
    for _ in tf.range(2):
        if x < 100.0:
            x = tf.debugging.check_numerics(tf.math.log(x), "wrong") + 2.0
    return x


def in_a_loop_with_collectives(x: Any) -> Any:
    for _ in tf.range(2):
        y = all_reduce(x)
        x = tf.debugging.check_numerics(tf.math.log(x), "wrong") + y
    return x


# TensorFlow shows the lines of the last of several root errors. If each replica
# runs a body itself, the last error may be a mere cancellation, without lines.
SHOWN = [in_place, in_a_function, in_a_loop_with_collectives]
FAILING = [*SHOWN, in_an_assertion, in_a_branch, in_a_loop]


@pytest.mark.parametrize("replica", FAILING)
def test_an_error_on_one_replica_ends_the_step(four: Any, replica: Any) -> None:
    step = stepper(four, replica)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        step(each(four, [1.0, 2.0, -3.0, 4.0]))
    message = str(caught.value)
    assert "wrong" in message
    start = replica.__code__.co_firstlineno
    lines = range(start + 1, start + 1 + len(inspect.getsource(replica).splitlines()))
    if replica in SHOWN:
        assert any(f'{__file__}", line {line}, in ' in message for line in lines), message
    # The strategy still works, and so does the same function.
    assert np.isfinite(step(each(four, [50.0] * 4))).all()


def test_an_error_while_tracing_keeps_its_type(four: Any) -> None:
    def replica() -> Any:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        run(four, replica)
    with pytest.raises(ValueError, match=r"[Ss]hape|[Dd]imension"):
        run(four, lambda: tf.ones([2]) + tf.ones([3]))
    assert run(four, lambda: tf.constant(1)) == [1] * 4


def test_python_loops_of_runs(four: Any) -> None:
    @tf.function
    def step(x: Any) -> Any:
        for _ in range(3):
            x = four.run(lambda x: x * 2.0, args=(x,))
        return x

    assert local(four, step(each(four, [1.0, 2.0, 3.0, 4.0]))) == [8.0, 16.0, 24.0, 32.0]


def test_user_devices_inside_a_replica_function(four: Any) -> None:
    def step(x: Any) -> Any:
        with tf.device("/CPU:0"):
            x = x + 1.0
        return x * 2.0

    assert run(four, step, each(four, [1.0, 2.0, 3.0, 4.0])) == [4.0, 6.0, 8.0, 10.0]


def test_the_error_of_too_few_devices_names_the_possible_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "_available", lambda needed: 33)
    with pytest.raises(VirtualDevicesError) as caught:
        strategy_of(32)
    assert "or connect to one of at most 28 cores." in str(caught.value)  # plus 4 hosts
    strategy_of(28)
