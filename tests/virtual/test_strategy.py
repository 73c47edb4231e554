"""The virtual TPU as a strategy: its classes, its refusals, its errors."""

from __future__ import annotations

import gc
import inspect
import weakref
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.strategies import each, local, replica_id, run, strategy_of

from tpunb.errors import AcceleratorTypeError, VirtualDevicesError
from tpunb.virtual import VirtualTPUClusterResolver, VirtualTPUStrategy, devices

SUM = tf.distribute.ReduceOp.SUM


def test_it_is_a_tpu_strategy(four: Any) -> None:
    assert isinstance(four, tf.distribute.TPUStrategy)
    assert four.num_replicas_in_sync == 4
    assert repr(four) == "<virtual TPUStrategy of 4 replicas>"
    assert repr(VirtualTPUClusterResolver("v3-8")) == "<resolver of a virtual TPU v3-8>"
    assert isinstance(four.cluster_resolver, tf.distribute.cluster_resolver.ClusterResolver)
    with four.scope():
        assert tf.distribute.get_strategy() is four
        assert tf.distribute.in_cross_replica_context()


def test_pure_eager_run_is_refused(four: Any) -> None:
    with pytest.raises(NotImplementedError, match="pure eager"):
        four.run(lambda: tf.constant(1.0))


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

    @tf.function
    def step(x: Any) -> Any:
        def replica(x: Any) -> Any:
            traces.append(x.shape.as_list())
            return x + 1

        return four.run(replica, args=(x,))

    for _ in range(3):
        step(each(four, [1, 2, 3, 4]))
    assert traces == [[]]
    step(each(four, [[1], [2], [3], [4]]))
    assert traces == [[], [1]]


def test_printing_results_looks_as_tensorflow_prints_them(four: Any) -> None:
    @tf.function
    def step() -> Any:
        return four.run(lambda: replica_id())

    result = step()
    assert type(result).__module__.startswith("tensorflow.")
    lines = [f"  {k}: tf.Tensor({k}, shape=(), dtype=int32)" for k in range(4)]
    assert str(result) == "PerReplica:{\n" + ",\n".join(lines) + "\n}"


@pytest.mark.parametrize(
    ("tpu", "hosts", "replicas"), [("v3-8", 1, 8), ("v3-32", 4, 32), (3, 1, 3), ("v5e-1", 1, 1)]
)
def test_hosts_and_devices(tpu: Any, hosts: int, replicas: int) -> None:
    strategy = strategy_of(tpu)
    extended = strategy.extended
    assert strategy.num_replicas_in_sync == replicas
    assert extended.num_hosts == hosts
    assert extended.num_replicas_per_host == replicas // hosts
    assert len(extended.worker_devices) == replicas
    assert len(set(extended.worker_devices)) == replicas
    ids = local(strategy, tf.function(lambda: strategy.run(lambda: replica_id()))())
    assert ids == list(range(replicas))


def replica_id_as_float() -> Any:
    return tf.cast(replica_id(), tf.float32)


def test_results_are_on_their_cores(four: Any) -> None:
    # Numbers in int32 show the host's memory instead.
    result = tf.function(lambda: four.run(replica_id_as_float))()
    devices = [value.backing_device for value in result.values]
    assert devices == [
        tf.DeviceSpec.from_string(d).replace(job="localhost").to_string()
        for d in four.extended.worker_devices
    ]


def test_a_device_assignment_of_two_cores_a_replica() -> None:
    whole = strategy_of("v3-8")
    assignment = tf.tpu.experimental.DeviceAssignment.build(
        whole.topology, computation_shape=[1, 1, 1, 2], num_replicas=4
    )
    strategy = strategy_of("v3-8", device_assignment=assignment)
    assert strategy.num_replicas_in_sync == 4

    def step(x: Any) -> Any:
        x = strategy.experimental_assign_to_logical_device(x + 1.0, 1)
        return tf.distribute.get_replica_context().all_reduce(SUM, x)

    assert run(strategy, step, each(strategy, [1.0, 2.0, 3.0, 4.0])) == [14.0] * 4
    with pytest.raises((ValueError, AssertionError)):
        run(strategy, lambda x: strategy.experimental_assign_to_logical_device(x, 2), 1.0)


def test_two_strategies_side_by_side() -> None:
    two, eight = strategy_of(2), strategy_of("v5e-8")
    total = lambda: tf.distribute.get_replica_context().all_reduce(SUM, 1.0)  # noqa: E731
    assert run(two, total) == [2.0] * 2
    assert run(eight, total) == [8.0] * 8
    assert run(two, total) == [2.0] * 2


@pytest.mark.parametrize("tpu", ["v9-8", "v5e-7", 0, -1, True, None, 2.5, "", "v3-8 "])
def test_wrong_types(tpu: Any) -> None:
    if tpu == "v3-8 ":
        assert VirtualTPUStrategy(tpu).num_replicas_in_sync == 8
        return
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
        y = tf.distribute.get_replica_context().all_reduce(SUM, x)
        x = tf.debugging.check_numerics(tf.math.log(x), "wrong") + y
    return x


# TensorFlow shows the lines of the last of several root errors. Where each replica
# runs a body for itself, that may be one that was merely cancelled, and has none.
SHOWN = [in_place, in_a_function, in_a_loop_with_collectives]
FAILING = [*SHOWN, in_an_assertion, in_a_branch, in_a_loop]


@pytest.mark.parametrize("replica", FAILING)
def test_an_error_on_one_replica_ends_the_step(four: Any, replica: Any) -> None:
    @tf.function
    def step(x: Any) -> Any:
        return four.run(replica, args=(x,))

    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        step(each(four, [1.0, 2.0, -3.0, 4.0]))
    message = str(caught.value)
    assert "wrong" in message
    start = replica.__code__.co_firstlineno
    lines = range(start + 1, start + 1 + len(inspect.getsource(replica).splitlines()))
    if replica in SHOWN:
        assert any(f'{__file__}", line {line}, in ' in message for line in lines), message
    # The strategy works after, and so does the same function.
    good = local(four, step(each(four, [50.0] * 4)))
    assert np.isfinite(good).all()


def test_an_error_while_tracing_keeps_its_type(four: Any) -> None:
    def replica() -> Any:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        run(four, replica)
    with pytest.raises(ValueError, match=r"[Ss]hape|[Dd]imension"):
        run(four, lambda: tf.ones([2]) + tf.ones([3]))
    assert run(four, lambda: tf.constant(1)) == [1] * 4


def nothing() -> dict[str, Any]:
    return {}


def test_results_of_every_structure(four: Any) -> None:
    @tf.function
    def step() -> Any:
        results = (
            four.run(lambda: None),
            four.run(lambda: (tf.constant(1), [tf.constant(2)], {"a": tf.constant(3)})),
            four.run(nothing),
            four.run(lambda: 5.0),
            four.run(lambda: (tf.constant(1), None)),
        )
        assert results[0] is None
        assert results[2] == {}
        assert results[4][1] is None
        return results[1], results[3]

    (one, (two,), three), number = step()
    first = four.experimental_local_results
    assert [int(first(value)[3]) for value in (one, two, three["a"])] == [1, 2, 3]
    assert float(first(number)[0]) == 5.0


def test_operations_as_results(four: Any) -> None:
    with four.scope():
        v = tf.Variable(0.0)

    @tf.function
    def step() -> Any:
        def replica() -> Any:
            return v.assign_add(1.0, read_value=False)

        assert four.run(replica) is None
        return four.run(lambda: [tf.constant(3), v.assign_add(1.0, read_value=False)])

    assert local(four, step()[0]) == [3] * 4
    assert v.numpy() == 2.0


def test_a_result_that_is_no_tensor_is_refused(four: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        run(four, lambda: object())


def test_python_loops_of_runs(four: Any) -> None:
    @tf.function
    def step(x: Any) -> Any:
        for _ in range(3):
            x = four.run(lambda x: x * 2.0, args=(x,))
        return x

    assert local(four, step(each(four, [1.0, 2.0, 3.0, 4.0]))) == [8.0, 16.0, 24.0, 32.0]


def test_merge_call_and_update_are_tpustrategys_own(four: Any) -> None:
    with four.scope():
        v = tf.Variable(1.0, aggregation=tf.VariableAggregation.MEAN)

    def step(x: Any) -> Any:
        v.assign_add(x)
        return v.read_value()

    assert run(four, step, each(four, [1.0, 2.0, 3.0, 4.0])) == [3.5] * 4


def test_user_devices_inside_a_replica_function(four: Any) -> None:
    def step(x: Any) -> Any:
        with tf.device("/CPU:0"):
            x = x + 1.0
        return x * 2.0

    assert run(four, step, each(four, [1.0, 2.0, 3.0, 4.0])) == [4.0, 6.0, 8.0, 10.0]


def test_a_model_saves_and_loads(four: Any, tmp_path: Any) -> None:
    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.v = tf.Variable([1.0, 2.0])

    with four.scope():
        model = Model()
    run(four, lambda: model.v.assign_add([1.0, 1.0]))
    checkpoint = tf.train.Checkpoint(model=model)
    path = checkpoint.save(str(tmp_path / "c"))
    run(four, lambda: model.v.assign_add([1.0, 1.0]))
    checkpoint.restore(path)
    np.testing.assert_array_equal(run(four, lambda: model.v.read_value()), [[2.0, 3.0]] * 4)


def test_traced_graphs_are_freed() -> None:
    strategy = strategy_of(2)
    with strategy.scope():
        v = tf.Variable(1.0)

    def once() -> Any:
        @tf.function
        def step(x: Any) -> Any:
            return strategy.run(lambda x: v.assign_add(x), args=(x,))

        step(each(strategy, [1.0, 2.0]))
        graph = step.get_concrete_function(each(strategy, [1.0, 2.0])).graph
        return weakref.ref(graph)

    graphs = [once() for _ in range(4)]
    gc.collect()
    assert sum(graph() is not None for graph in graphs) <= 1
    assert len(strategy.extended._options.divergence._replications) <= 1


def test_too_few_devices_say_how_many_cores_there_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_available", lambda needed: 33)
    with pytest.raises(VirtualDevicesError) as caught:
        strategy_of(32)
    assert "or connect to one of at most 28 cores." in str(caught.value)  # and 4 hosts
    strategy_of(28)
