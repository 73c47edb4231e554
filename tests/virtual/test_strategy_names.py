"""Every public name of TensorFlow's TPU strategies, on the virtual TPU.

The tables in docs/strategy.md list the names; here, each of them is used.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.strategies import local, replica_id, run

import tpunb
from tpunb.virtual import (
    TPUStrategy,
    TPUStrategyV2,
    VirtualTPUClusterResolver,
    VirtualTPUStrategy,
)

DOCS = Path(__file__).parents[2] / "docs" / "strategy.md"
GENERATIONS = {
    "today": (tf.distribute.TPUStrategy, TPUStrategyV2),
    "experimental": (tf.distribute.experimental.TPUStrategy, TPUStrategy),
}


def table(heading: str) -> dict[str, dict[str, str]]:
    """A table in the docs, as name -> generation -> "TF", "added" or ""."""
    section = DOCS.read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|([^|]*)\|([^|]*)\| \S.* \|$", section, re.MULTILINE)
    return {
        name: dict(zip(GENERATIONS, (cell.strip() for cell in cells), strict=True))
        for name, *cells in rows
    }


NAMES = table("Properties and methods")
ARGUMENTS = table("Arguments")


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def arguments(kind: type) -> set[str]:
    return set(inspect.signature(kind).parameters)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_the_docs_list_exactly_the_public_names(generation: str) -> None:
    theirs, ours = GENERATIONS[generation]
    listed = {name for name, where in NAMES.items() if where[generation] == "TF"}
    added = {name for name, where in NAMES.items() if where[generation] == "added"}
    assert listed == public(theirs)
    assert listed | added == public(ours)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_the_docs_list_exactly_the_arguments(generation: str) -> None:
    theirs, ours = GENERATIONS[generation]
    listed = {name for name, where in ARGUMENTS.items() if where[generation] == "TF"}
    added = {name for name, where in ARGUMENTS.items() if where[generation] == "added"}
    assert listed == arguments(theirs) == arguments(ours)
    assert list(inspect.signature(theirs).parameters) == list(inspect.signature(ours).parameters)
    assert added == (arguments(VirtualTPUStrategy) if generation == "today" else set())


def test_each_name_and_argument_has_a_test() -> None:
    assert set(BEHAVIOURS) == set(NAMES)
    assert set(ARGUMENT_TESTS) == set(ARGUMENTS)


@pytest.fixture(scope="module")
def resolver() -> Any:
    return VirtualTPUClusterResolver(2)


@pytest.fixture(scope="module", params=GENERATIONS)
def strategy(request: Any, resolver: Any) -> Any:
    created = GENERATIONS[request.param][1](resolver)
    created.generation = request.param
    return created


@pytest.mark.parametrize("name", NAMES)
def test_a_name(strategy: Any, resolver: Any, name: str) -> None:
    if not NAMES[name][strategy.generation]:
        assert not hasattr(strategy, name)
        return
    BEHAVIOURS[name](strategy)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_isinstance_of_tensorflows_class(generation: str, resolver: Any) -> None:
    theirs, ours = GENERATIONS[generation]
    created = ours(resolver)
    assert isinstance(created, theirs)
    assert isinstance(created, tf.distribute.Strategy)
    assert type(created).__name__.startswith("TPUStrategy")
    others = [kind for kind, _ in GENERATIONS.values() if kind is not theirs]
    assert not isinstance(created, tuple(others))


# Checks of each name.


def two(strategy: Any) -> Any:
    """A value with 1.0 on the first replica and 2.0 on the second."""
    step = tf.function(lambda: strategy.run(lambda: tf.cast(replica_id() + 1, tf.float32)))
    return step()


def batches() -> tf.data.Dataset:
    return tf.data.Dataset.range(8).batch(4, drop_remainder=True)


def all_of(strategy: Any, distributed: Any) -> list[Any]:
    return [np.asarray(part).tolist() for part in strategy.experimental_local_results(distributed)]


def check_cluster_resolver(strategy: Any) -> None:
    assert isinstance(strategy.cluster_resolver, VirtualTPUClusterResolver)


def check_colocate_vars_with(strategy: Any) -> None:
    with strategy.scope():
        v = tf.Variable(1.0)
        with strategy.colocate_vars_with(v):
            w = tf.Variable(2.0)
    assert [part.device for part in w.values] == [part.device for part in v.values]
    assert is_deprecated(strategy.colocate_vars_with)


def check_configure(strategy: Any) -> None:
    config = tf.compat.v1.ConfigProto()
    strategy.configure(config)
    assert config.isolate_session_state
    assert is_deprecated(strategy.configure)


def is_deprecated(method: Any) -> bool:
    """Whether TensorFlow's deprecation decorator wraps the method; it warns once."""
    return "Instructions for updating" in (method.__doc__ or "")


def check_distribute_datasets_from_function(strategy: Any) -> None:
    contexts = []

    def dataset_fn(context: Any) -> Any:
        contexts.append(context)
        return tf.data.Dataset.range(8).batch(context.get_per_replica_batch_size(4))

    distributed = strategy.distribute_datasets_from_function(dataset_fn)
    assert all_of(strategy, next(iter(distributed))) == [[0, 1], [2, 3]]
    assert [(c.num_input_pipelines, c.num_replicas_in_sync) for c in contexts] == [(1, 2)]


def check_experimental_distribute_datasets_from_function(strategy: Any) -> None:
    method = strategy.experimental_distribute_datasets_from_function
    distributed = method(lambda context: tf.data.Dataset.range(8).batch(2))
    assert all_of(strategy, next(iter(distributed))) == [[0, 1], [2, 3]]
    assert is_deprecated(method)


def annotated(strategy: Any, annotate: Callable[[Any], Any]) -> list[Any]:
    return run(strategy, lambda x: annotate(x) * 2.0, tf.constant([[1.0, 2.0]]))


def check_experimental_assign_to_logical_device(strategy: Any) -> None:
    assign = strategy.experimental_assign_to_logical_device
    assert annotated(strategy, lambda x: assign(x, 0))[0].tolist() == [[2.0, 4.0]]
    with pytest.raises(ValueError, match="`logical_core_id` to assign must be lower"):
        annotated(strategy, lambda x: assign(x, 1))


def check_experimental_split_to_logical_devices(strategy: Any) -> None:
    split = strategy.experimental_split_to_logical_devices
    assert annotated(strategy, lambda x: split(x, [1, 1]))[1].tolist() == [[2.0, 4.0]]
    with pytest.raises(ValueError, match="product of `partition_dimensions`"):
        annotated(strategy, lambda x: split(x, [1, 2]))


def check_experimental_replicate_to_logical_devices(strategy: Any) -> None:
    replicate = strategy.experimental_replicate_to_logical_devices
    assert annotated(strategy, replicate)[0].tolist() == [[2.0, 4.0]]


def check_experimental_distribute_dataset(strategy: Any) -> None:
    values = [
        all_of(strategy, batch) for batch in strategy.experimental_distribute_dataset(batches())
    ]
    assert values == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


def check_experimental_distribute_values_from_function(strategy: Any) -> None:
    values = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(context.replica_id_in_sync_group * 10)
    )
    assert run(strategy, lambda x: x + 1, values) == [1, 11]


def check_experimental_local_results(strategy: Any) -> None:
    results = strategy.experimental_local_results(two(strategy))
    assert isinstance(results, tuple)
    assert [float(value) for value in results] == [1.0, 2.0]
    assert strategy.experimental_local_results(5) == (5,)


def check_experimental_make_numpy_dataset(strategy: Any) -> None:
    features, labels = np.arange(8.0).reshape(4, 2), np.arange(4)
    dataset = strategy.experimental_make_numpy_dataset((features, labels))
    assert [int(label) for _, label in dataset] == [0, 1, 2, 3]
    batch = next(iter(strategy.experimental_distribute_dataset(dataset.batch(4))))
    assert all_of(strategy, batch[0]) == [features[:2].tolist(), features[2:].tolist()]
    assert is_deprecated(strategy.experimental_make_numpy_dataset)


def check_experimental_run(strategy: Any) -> None:
    iterator = strategy.make_dataset_iterator(batches())
    iterator.initialize()
    result = strategy.experimental_run(tf.function(lambda x: x * 2), iterator)
    assert all_of(strategy, result) == [[0, 2], [4, 6]]
    assert is_deprecated(strategy.experimental_run)


def check_experimental_run_v2(strategy: Any) -> None:
    double = tf.function(lambda x, y=0.0: x * 2.0 + y)
    result = strategy.experimental_run_v2(double, args=(two(strategy),), kwargs={"y": 1.0})
    assert local(strategy, result) == [3.0, 5.0]
    assert is_deprecated(strategy.experimental_run_v2)


def check_extended(strategy: Any) -> None:
    extended = strategy.extended
    assert extended.num_hosts == 1
    assert extended.num_replicas_per_host == 2
    assert len(set(extended.worker_devices)) == 2
    assert extended.parameter_devices == extended.worker_devices
    assert extended.steps_per_run == 1
    with strategy.scope():
        total = tf.function(lambda x: extended.reduce_to("SUM", x, destinations="/cpu:0"))
        assert float(total(two(strategy))) == 3.0


def check_gather(strategy: Any) -> None:
    rows = run_to_values(strategy, lambda: tf.reshape(tf.cast(replica_id(), tf.float32), [1, 1]))
    assert strategy.gather(rows, axis=0).numpy().tolist() == [[0.0], [1.0]]
    assert strategy.gather(rows, axis=1).numpy().tolist() == [[0.0, 1.0]]


def run_to_values(strategy: Any, replica: Callable[[], Any]) -> Any:
    return tf.function(lambda: strategy.run(replica))()


def check_group(strategy: Any) -> None:
    with strategy.scope():
        v = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)

    @tf.function
    def step() -> None:
        strategy.group(strategy.run(lambda: v.assign_add(tf.constant(1.0))))

    step()
    assert v.numpy() == 2.0


def check_make_dataset_iterator(strategy: Any) -> None:
    iterator = strategy.make_dataset_iterator(batches())
    iterator.initialize()
    assert [all_of(strategy, iterator.get_next()) for _ in range(2)] == [
        [[0, 1], [2, 3]],
        [[4, 5], [6, 7]],
    ]


def check_make_input_fn_iterator(strategy: Any) -> None:
    iterator = strategy.make_input_fn_iterator(lambda context: tf.data.Dataset.range(8).batch(2))
    iterator.initialize()
    assert all_of(strategy, iterator.get_next()) == [[0, 1], [2, 3]]


def check_num_replicas_in_sync(strategy: Any) -> None:
    assert strategy.num_replicas_in_sync == 2


def check_reduce(strategy: Any) -> None:
    values = two(strategy)
    assert float(strategy.reduce("SUM", values, axis=None)) == 3.0
    assert float(strategy.reduce(tf.distribute.ReduceOp.MEAN, values, axis=None)) == 1.5
    rows = run_to_values(strategy, lambda: tf.range(4, dtype=tf.float32))
    assert float(strategy.reduce("MEAN", rows, axis=0)) == 1.5


def check_run(strategy: Any) -> None:
    result = strategy.run(tf.function(lambda x: x + 1.0), args=(two(strategy),), kwargs=None)
    assert local(strategy, result) == [2.0, 3.0]
    with pytest.raises(NotImplementedError, match="pure eager"):
        strategy.run(lambda: tf.constant(1.0))


def check_scope(strategy: Any) -> None:
    with strategy.scope():
        v = tf.Variable(1.0)
        assert tf.distribute.get_strategy() is strategy
    assert len({part.device for part in v.values}) == 2
    assert strategy.extended.variable_created_in_scope(v)


def check_topology(strategy: Any) -> None:
    assert isinstance(strategy.topology, tf.tpu.experimental.Topology)
    assert strategy.topology.num_tasks == 1
    assert strategy.topology.num_tpus_per_task == 2


def check_unwrap(strategy: Any) -> None:
    assert [float(value) for value in strategy.unwrap(two(strategy))] == [1.0, 2.0]
    assert is_deprecated(strategy.unwrap)


def check_update_config_proto(strategy: Any) -> None:
    config = tf.compat.v1.ConfigProto()
    assert strategy.update_config_proto(config).isolate_session_state
    assert not config.isolate_session_state


BEHAVIOURS = {
    name.removeprefix("check_"): check
    for name, check in list(globals().items())
    if name.startswith("check_")
}


# Checks of each argument.


def assignment_of(parts: int) -> Any:
    topology = VirtualTPUStrategy("v3-8").topology
    return tf.tpu.experimental.DeviceAssignment.build(
        topology, computation_shape=[1, 1, 1, parts], num_replicas=2
    )


def argument_tpu_cluster_resolver() -> None:
    eight = VirtualTPUClusterResolver("v3-8")
    for _, ours in GENERATIONS.values():
        assert ours(eight).extended._tpu_cluster_resolver is eight
        assert ours().num_replicas_in_sync == 8
        with pytest.raises(TypeError, match="VirtualTPUClusterResolver, not a str"):
            ours("v3-8")


def argument_experimental_device_assignment() -> None:
    strategy = TPUStrategyV2(
        VirtualTPUClusterResolver("v3-8"), experimental_device_assignment=assignment_of(2)
    )
    assert strategy.num_replicas_in_sync == 2
    assert strategy.extended._tpu_devices.shape == (2, 2)


def argument_experimental_spmd_xla_partitioning() -> None:
    strategy = TPUStrategyV2(VirtualTPUClusterResolver(2), None, True)
    with pytest.raises(ValueError, match="SPMD mode"):
        strategy.experimental_assign_to_logical_device(tf.constant(1.0), 0)


def argument_device_assignment() -> None:
    resolver = VirtualTPUClusterResolver("v3-8")
    for kind in (VirtualTPUStrategy, TPUStrategy):
        strategy = kind(resolver, device_assignment=assignment_of(2))
        assert strategy.num_replicas_in_sync == 2
        assert len(strategy.extended.worker_devices) == 2


def argument_tpu() -> None:
    assert VirtualTPUStrategy().num_replicas_in_sync == 8
    assert VirtualTPUStrategy("v5e-4").num_replicas_in_sync == 4
    assert VirtualTPUStrategy(3).num_replicas_in_sync == 3


def argument_spmd() -> None:
    strategy = VirtualTPUStrategy(2, spmd=True)
    with pytest.raises(ValueError, match="SPMD mode"):
        strategy.experimental_assign_to_logical_device(tf.constant(1.0), 0)


def argument_strict() -> None:
    assert VirtualTPUStrategy(2, strict=False).num_replicas_in_sync == 2


def argument_arithmetic() -> None:
    x = tf.constant([[1.001]])
    for arithmetic, square in (("cpu", np.float32(1.001) ** 2), ("tpu", 1.0)):
        strategy = VirtualTPUStrategy(2, arithmetic=arithmetic)
        result = tf.function(strategy.run)(tf.matmul, args=(x, x))
        np.testing.assert_allclose(result.values[1], [[square]], rtol=1e-6)


def argument_at_once() -> None:
    strategy = VirtualTPUStrategy(4, at_once=1)
    steps = tf.function(lambda: strategy.run(lambda: tf.constant(1.0) + 1.0))
    assert all_of(strategy, steps()) == [2.0] * 4


def argument_joined() -> None:
    for joined in (True, False):
        strategy = VirtualTPUStrategy(4, joined=joined)
        steps = tf.function(
            lambda strategy=strategy: strategy.run(lambda: tf.constant([1.0]) + 1.0)
        )
        assert [list(value) for value in all_of(strategy, steps())] == [[2.0]] * 4


ARGUMENT_TESTS = {
    name.removeprefix("argument_"): check
    for name, check in list(globals().items())
    if name.startswith("argument_")
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_argument(name: str) -> None:
    ARGUMENT_TESTS[name]()


# A strategy from a single call.


def test_a_strategy_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUNB_TPU", "v3-8")
    with pytest.warns(UserWarning, match="TPUNB_TPU requests this virtual TPU"):
        strategy = tpunb.TPUStrategy(tpu="")
    assert isinstance(strategy, tf.distribute.TPUStrategy)
    assert strategy.num_replicas_in_sync == 8
    with pytest.raises(tpunb.TpunbError, match="is a TPU type, not a TPU"):
        tpunb.TPUStrategy("v3-8")


def test_a_missing_tpu_gives_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TPUNB_TPU", raising=False)
    monkeypatch.delenv("TPUNB_REQUIRE_TPU", raising=False)
    monkeypatch.setattr("tpunb.machine.detect.find_tpu", lambda: NoTPU)
    with pytest.warns(UserWarning, match="No TPU was found"):
        assert tpunb.TPUStrategy().num_replicas_in_sync == 8
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert VirtualTPUStrategy(2).num_replicas_in_sync == 2


class NoTPU:
    """The result of `find_tpu` if there is no TPU."""

    tpu = None
    tried = ("no TPU device",)
