"""Replicas with several logical devices: values, gradients, variables, annotations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.strategies import (
    SUM,
    SUMMED_ON_READ,
    all_reduce,
    copies,
    each,
    run,
    strategy_of,
    strategy_of_parts,
)

from tpunb.virtual import VirtualTPUStrategy

SHAPES = [
    ("v3-8", [1, 1, 1, 2], 4),
    ("v3-8", [1, 1, 1, 2], 3),
    ("v3-8", [1, 2, 1, 2], 2),
    ("v3-8", [2, 2, 1, 2], 1),
    ("v3-8", [1, 1, 1, 1], 5),
    ("v4-16", [1, 2, 2, 1], 2),
    ("v4-16", [2, 2, 2, 1], 1),
    ("v3-32", [2, 2, 1, 2], 4),
]


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "spmd"])
def pairs(request: Any) -> Any:
    """Four replicas with two logical devices each."""
    return strategy_of_parts(4, spmd=request.param)


@pytest.fixture(scope="module")
def plain() -> Any:
    return strategy_of_parts(4)


def everywhere(variable: Any) -> list[list[Any]]:
    """For each replica, a variable's value on each logical device that holds it."""
    parts = [getattr(component, "variables", [component]) for component in variable.values]
    return [[copy.numpy().tolist() for copy in copies] for copies in parts]


@pytest.mark.parametrize("spmd", [False, True], ids=["plain", "spmd"])
@pytest.mark.parametrize(("tpu", "shape", "replicas"), SHAPES)
def test_every_shape(tpu: str, shape: list[int], replicas: int, spmd: bool) -> None:
    strategy = strategy_of_parts(replicas, shape, tpu, spmd=spmd)
    parts = int(np.prod(shape))
    assert strategy.num_replicas_in_sync == replicas
    devices = strategy.extended._tpu_devices
    assert devices.shape == (replicas, parts)
    assert len(set(devices.ravel())) == replicas * parts

    def step(x: Any) -> Any:
        x = strategy.experimental_split_to_logical_devices(x, [parts, 1])
        y = strategy.experimental_replicate_to_logical_devices(x * 2.0)
        return all_reduce(tf.reduce_sum(y))

    values = [np.full([8, 2], k, np.float32) for k in range(replicas)]
    total = 2.0 * 16 * sum(range(replicas))
    assert run(strategy, step, each(strategy, values)) == [total] * replicas


def test_cores_chosen_by_hand() -> None:
    whole = strategy_of("v3-8")
    # Replicas on the cores of a chip, the last chip first, with swapped cores.
    cores = [[[x, y, 0, core] for core in (1, 0)] for x, y in ((1, 1), (0, 1), (0, 0))]
    assignment = tf.tpu.experimental.DeviceAssignment(whole.topology, core_assignment=cores)
    strategy = VirtualTPUStrategy("v3-8", device_assignment=assignment)
    flat = whole.extended._tpu_devices[:, 0]
    assert strategy.extended._tpu_devices.tolist() == [
        [flat[7], flat[6]],
        [flat[5], flat[4]],
        [flat[1], flat[0]],
    ]
    with strategy.scope(), strategy.extended.experimental_logical_device(1):
        v = tf.Variable(1.0)
    assert [part.device for part in v.values] == [flat[6], flat[4], flat[0]]
    assert run(strategy, lambda x: x * v, 3.0) == [3.0] * 3


def test_variables_on_logical_devices(plain: Any) -> None:
    devices = plain.extended._tpu_devices
    with plain.scope():
        first = tf.Variable(2.0)
        with plain.extended.experimental_logical_device(1):
            second = tf.Variable(3.0)
            total = tf.Variable(0.0, **SUMMED_ON_READ)
    assert [part.device for part in first.values] == list(devices[:, 0])
    assert [part.device for part in second.values] == list(devices[:, 1])

    def step(x: Any) -> Any:
        context = tf.distribute.get_replica_context()
        with context.experimental_logical_device(0):
            y = x * first
        with context.experimental_logical_device(1):
            z = y * second
        total.assign_add(z)
        second.assign_add(context.all_reduce(SUM, x))
        first.assign(second)
        return z, y.device, z.device

    asked = []

    def results(x: Any) -> Any:
        z, *devices = step(x)
        asked.append(devices)
        return z

    assert run(plain, results, each(plain, [1.0, 2.0, 3.0, 4.0])) == [6.0, 12.0, 18.0, 24.0]
    assert asked == [["/device:TPU_REPLICATED_CORE:0", "/device:TPU_REPLICATED_CORE:1"]]
    assert copies(second) == [13.0] * 4
    assert copies(first) == [13.0] * 4
    assert copies(total) == [6.0, 12.0, 18.0, 24.0]
    assert total.numpy() == 60.0


def test_operations_run_on_their_core(plain: Any) -> None:
    def step(x: Any) -> Any:
        with plain.extended.experimental_logical_device(1):
            y = x + 1.0
        return plain.experimental_assign_to_logical_device(y * 2.0, 1)

    x = each(plain, [1.0, 2.0, 3.0, 4.0])
    whole = tf.function(lambda x: plain.run(step, args=(x,))).get_concrete_function(x)
    graph = whole.graph.as_graph_def()
    called = {node.attr["f"].func.name for node in graph.node}
    functions = [
        function for function in graph.library.function if function.signature.name in called
    ]
    nodes = {node.name: node.device for function in functions for node in function.node_def}
    cores = plain.extended._tpu_devices
    for replica, suffix in enumerate(["", "/replica_1", "/replica_2", "/replica_3"]):
        assert nodes[f"add{suffix}"] == cores[replica][1]
        assert nodes[f"mul{suffix}"] == cores[replica][0]
        assert nodes[f"XlaSharding{suffix}"] == cores[replica][1]


def test_loops_and_branches_on_logical_devices(pairs: Any) -> None:
    with pairs.scope(), pairs.extended.experimental_logical_device(1):
        v = tf.Variable(2.0)

    def step(x: Any) -> Any:
        for _ in tf.range(3):
            with pairs.extended.experimental_logical_device(1):
                x = x * v
            x = pairs.experimental_replicate_to_logical_devices(x)
        if x > 20.0:
            v.assign(x)
        return x

    assert run(pairs, step, each(pairs, [1.0, 2.0, 3.0, 4.0])) == [8.0, 16.0, 24.0, 32.0]
    assert [parts[-1] for parts in everywhere(v)] == [2.0, 2.0, 24.0, 32.0]


def test_loops_with_collectives(pairs: Any) -> None:
    with pairs.scope(), pairs.extended.experimental_logical_device(1):
        v = tf.Variable(1.0)

    def step(x: Any) -> Any:
        for _ in tf.range(2):
            total = all_reduce(x * v)
            v.assign_add(total)
            x = total
        return x

    assert run(pairs, step, 1.0) == [80.0] * 4
    assert {value for parts in everywhere(v) for value in parts} == {85.0}


def test_gradients_and_training_equal_one_device(pairs: Any) -> None:
    """All replicas train a model with a part on each logical device."""
    generator = np.random.default_rng(0)
    w0, w1 = generator.normal(size=[4, 6]), generator.normal(size=[6, 2])
    x, y = generator.normal(size=[8, 4]), generator.normal(size=[8, 2])
    w0, w1, x, y = (array.astype(np.float32) for array in (w0, w1, x, y))
    strategy, spmd = pairs, pairs.extended._use_spmd_for_xla_partitioning
    with strategy.scope():
        a = tf.Variable(w0)
        with strategy.extended.experimental_logical_device(1):
            b = tf.Variable(w1)
        optimizer = tf.keras.optimizers.Adam(0.1)
        optimizer.build([a, b])

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            x = strategy.experimental_split_to_logical_devices(x, [1, 2])
            hidden = tf.nn.tanh(x @ a)
            if not spmd:
                hidden = strategy.experimental_assign_to_logical_device(hidden, 1)
            with strategy.extended.experimental_logical_device(1):
                loss = tf.reduce_sum((hidden @ b - y) ** 2)
        gradients = tape.gradient(loss, [a, b])
        optimizer.apply_gradients(zip(gradients, [a, b], strict=True))
        return loss

    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8, drop_remainder=True).repeat(3)
    train = tf.function(lambda batch: strategy.run(step, args=batch))
    for batch in strategy.experimental_distribute_dataset(data):
        train(batch)

    one, two = tf.Variable(w0), tf.Variable(w1)
    alone = tf.keras.optimizers.Adam(0.1)
    alone.build([one, two])
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((tf.nn.tanh(x @ one) @ two - y) ** 2)
        alone.apply_gradients(zip(tape.gradient(loss, [one, two]), [one, two], strict=True))
    np.testing.assert_allclose(a.numpy(), one.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(b.numpy(), two.numpy(), rtol=1e-4, atol=1e-5)
    for parts in (*everywhere(a), *everywhere(b)):
        assert all(part == parts[0] for part in parts)


def test_checkpoints_and_saved_models(pairs: Any, tmp_path: Any) -> None:
    with pairs.scope():
        model = tf.Module()
        model.v = tf.Variable([1.0, 2.0])
        with pairs.extended.experimental_logical_device(1):
            model.w = tf.Variable([3.0, 4.0])
    inputs = tf.constant([1.0, 1.0])
    run(pairs, lambda: model.v.assign_add(all_reduce(inputs)))
    checkpoint = tf.train.Checkpoint(model=model)
    path = checkpoint.save(str(tmp_path / "c"))
    model.v.assign([9.0, 9.0])
    checkpoint.restore(path).assert_consumed()
    assert all(part == [5.0, 6.0] for parts in everywhere(model.v) for part in parts)
    plain = tf.Module()
    plain.v, plain.w = tf.Variable([0.0, 0.0]), tf.Variable([0.0, 0.0])
    tf.train.Checkpoint(model=plain).restore(path).assert_consumed()
    assert plain.v.numpy().tolist() == [5.0, 6.0]
    spec = [tf.TensorSpec([2], tf.float32)]
    model.f = tf.function(lambda x: x * model.v + model.w, input_signature=spec)
    tf.saved_model.save(model, str(tmp_path / "s"))
    loaded = tf.saved_model.load(str(tmp_path / "s"))
    assert loaded.f(tf.constant([1.0, 1.0])).numpy().tolist() == [8.0, 10.0]


def test_variables_under_spmd_are_on_every_logical_device() -> None:
    strategy = strategy_of_parts(2, [1, 2, 1, 2], spmd=True)
    with strategy.scope():
        v = tf.Variable(lambda: tf.random.normal([4]))
    assert type(v).__name__ == "TPUMirroredVariable"
    devices = strategy.extended._tpu_devices
    assert [[part.device for part in c.variables] for c in v.values] == devices.tolist()
    run(strategy, lambda: v.assign_add(tf.ones([4])))
    assert everywhere(v) == [[v.numpy().tolist()] * 4] * 2
    v.assign(tf.zeros([4]))
    assert run(strategy, lambda: v.read_value())[1].tolist() == [0.0] * 4


def test_a_variable_of_other_cores_is_refused(plain: Any) -> None:
    with strategy_of("v3-8").scope():
        everywhere = tf.Variable(5.0)
    assert run(plain, lambda: everywhere.read_value()) == [5.0] * 4
    whole = strategy_of("v3-8")
    cores = [[[1, 1, 0, 0]], [[1, 1, 0, 1]]]
    assignment = tf.tpu.experimental.DeviceAssignment(whole.topology, core_assignment=cores)
    last = VirtualTPUStrategy("v3-8", device_assignment=assignment)
    with last.scope():
        v = tf.Variable(1.0)
    with pytest.raises(ValueError, match="Failed to find a variable on any device in replica 0"):
        run(plain, lambda: v.read_value())


# Refusals.

REFUSED = {
    "device out of range": (
        lambda s, x: s.experimental_assign_to_logical_device(x, 2),
        "Received logical device id 2 but there are only total of 2 logical devices in replica",
    ),
    "a negative device": (
        lambda s, x: s.experimental_assign_to_logical_device(x, -1),
        "Received logical device id -1",
    ),
    "a wrong rank": (
        lambda s, x: s.experimental_split_to_logical_devices(x, [2]),
        r"Length of `partition_dimensions` must equal to the rank of `tensor.shape` \(2\)",
    ),
    "a size that does not divide": (
        lambda s, x: s.experimental_split_to_logical_devices(x, [1, 2]),
        r"`partition_dimensions\[1\]` must be divisible by corresponding value",
    ),
    "a wrong product": (
        lambda s, x: s.experimental_split_to_logical_devices(x, [2, 3]),
        r"should be the same as the number of logical devices \(=2\)",
    ),
    "device out of range for operations": (
        lambda s, x: _inside(s, 2),
        r"`logical_device_id` not in range \(was 2, but there are only 2 logical devices",
    ),
}


def _inside(strategy: Any, device: int) -> Any:
    with strategy.extended.experimental_logical_device(device):
        return tf.constant(1.0)


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(plain: Any, name: str) -> None:
    annotate, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        run(plain, lambda x: annotate(plain, x), tf.ones([4, 3]))


def test_assigning_is_refused_under_spmd() -> None:
    strategy = strategy_of_parts(4, spmd=True)
    with pytest.raises(ValueError, match="Cannot assign a tensor to a logical device in SPMD mode"):
        run(strategy, lambda x: strategy.experimental_assign_to_logical_device(x, 0), 1.0)


def test_assignments_that_do_not_fit() -> None:
    topology = strategy_of("v3-8").topology
    build = tf.tpu.experimental.DeviceAssignment.build
    with pytest.raises(ValueError, match="does not fit in TPU topology shape"):
        build(topology, computation_shape=[1, 2, 2, 2], num_replicas=1)
    with pytest.raises(ValueError, match="requested 5 replicas but only 4 replicas"):
        build(topology, computation_shape=[1, 1, 1, 2], num_replicas=5)
