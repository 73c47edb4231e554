"""Known errors, provoked by code like users', mostly on a virtual TPU."""

from __future__ import annotations

import importlib
import logging
import threading
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from counterparts.children import WITHOUT_KERAS, run_code
from support.strategies import each, run, strategy_of

import tpunb
from tpunb.errors import CellError, ConnectError
from tpunb.errors.explain import explain
from tpunb.tensorflow.cells.runner import CellRunner

Resolver = tf.distribute.cluster_resolver.TPUClusterResolver
assign = tf.tpu.experimental.DeviceAssignment.build


@pytest.fixture(scope="module")
def two() -> Any:
    return strategy_of(2)


@pytest.fixture(scope="module")
def pairs() -> Any:
    """A v3-8 whose replicas have two logical devices."""
    topology = strategy_of("v3-8").topology
    return strategy_of("v3-8", device_assignment=assign(topology, [1, 1, 1, 2], num_replicas=4))


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name no TPU, and have no metadata server answer."""
    for name in ("TPU_NAME", "TPUNB_TPU", "TPUNB_REQUIRE_TPU", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GCE_METADATA_IP", "no.such.host.invalid")


def provoked(number: int, function: Callable[..., Any], *arguments: Any) -> BaseException:
    """Return a function's error, which must have this entry, also when its traceback is pasted."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  which one is the question
        function(*arguments)
    entry = explain(caught.value)
    assert entry is not None, repr(caught.value)
    assert entry.number == number, (entry, caught.value)
    pasted = "".join(traceback.format_exception(caught.value))
    assert explain(pasted) == entry, pasted
    return caught.value


def per_replica(strategy: Any) -> Any:
    @tf.function
    def step() -> Any:
        return strategy.run(lambda: tf.constant(1.0))

    return step()


def model_of(layers: Any, *, policy: str | None = None) -> Any:
    return layers.Sequential([layers.layers.Input((3,)), layers.layers.Dense(1, dtype=policy)])


def fit(model: Any) -> None:
    model.fit(np.ones((4, 3)), np.ones((4, 1)), batch_size=4, verbose=0)


def test_no_name() -> None:
    provoked(1, Resolver)
    provoked(1, Resolver, "")


def test_without_tpu_support() -> None:
    def initialise() -> None:
        tf.tpu.experimental.initialize_tpu_system(Resolver("local"))

    provoked(3, initialise)


def test_a_strategy_without_a_tpu() -> None:
    provoked(5, lambda: tf.distribute.TPUStrategy(Resolver("local")))


def test_an_address_that_does_not_answer() -> None:
    error = provoked(6, tpunb.connect, "grpc://127.0.0.1:9")
    assert isinstance(error, ConnectError)


class NoService:
    """A Google Cloud client without credentials."""

    def projects(self) -> Any:
        raise OSError("Could not automatically determine credentials.")


def test_a_name_that_cannot_be_looked_up() -> None:
    named = Resolver("my-tpu", zone="us-central1-b", project="p", service=NoService())
    provoked(7, named.cluster_spec)
    provoked(7, Resolver, "my-tpu")
    error = provoked(7, tpunb.connect, "my-tpu")
    assert isinstance(error, ConnectError)


def test_a_checkpoint_that_was_cut_short(tmp_path: Path, two: Any) -> None:
    with two.scope():
        checkpoint = tf.train.Checkpoint(v=tf.Variable([1.0] * 100))
    path = checkpoint.save(str(tmp_path / "model"))
    data = tmp_path / f"{Path(path).name}.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:50])
    provoked(16, checkpoint.restore, path)


def test_ragged_input(two: Any) -> None:
    dataset = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1], [2, 3]])).batch(2)
    provoked(21, two.experimental_distribute_dataset, dataset)


def compiled(function: Callable[..., Any]) -> Any:
    return tf.function(function, jit_compile=True, autograph=True)


def printing(x: Any) -> Any:
    tf.print(x)
    return x


def by_python(x: Any) -> Any:
    return tf.py_function(lambda y: y, [x], tf.float32)


def as_text(x: Any) -> Any:
    return tf.strings.as_string(x)


def ragged(x: Any) -> Any:
    return tf.ragged.range(tf.cast(x, tf.int32)).flat_values


def of_a_random_size(x: Any) -> Any:
    return x + tf.zeros([tf.random.uniform([], 1, 5, tf.int32)])


def gradient_of_an_endless_loop(x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x
        while tf.reduce_sum(y) < 10.0:
            y *= 2.0
    return tape.gradient(y, x)


@pytest.mark.parametrize(
    ("number", "function"),
    [
        (22, by_python),
        (22, as_text),
        (22, ragged),
        (23, printing),
        (27, of_a_random_size),
        (29, gradient_of_an_endless_loop),
    ],
)
def test_refusals_by_xla(number: int, function: Any) -> None:
    provoked(number, compiled(function), tf.constant(1.0))


def test_a_table_and_a_string_in_xla() -> None:
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1], [2]), 0)
    provoked(22, compiled(lambda x: table.lookup(x)), tf.constant([1]))
    provoked(24, compiled(lambda x: x), tf.constant("a"))


def test_pure_eager(two: Any) -> None:
    provoked(32, two.run, lambda: tf.constant(1.0))


def test_per_replica_values_as_tensors(two: Any) -> None:
    value = per_replica(two)
    provoked(33, lambda: value.numpy())
    provoked(33, lambda: value + 1)
    provoked(33, lambda: 1 + value)
    provoked(33, lambda: float(value))
    provoked(33, tf.reduce_mean, value)
    provoked(33, tf.add, value, 1.0)


def test_a_model_outside_the_scope(two: Any) -> None:
    model = model_of(keras)
    model.compile(keras.optimizers.Adam(), "mse")
    with two.scope():
        provoked(72, fit, model)


def test_an_optimizer_outside_the_scope(two: Any) -> None:
    with two.scope():
        model = model_of(keras)
    model.compile(keras.optimizers.Adam(), "mse")
    provoked(72, fit, model)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_only_the_optimizer_in_the_scope(two: Any, optimizer: str) -> None:
    model = model_of(keras)
    with two.scope():
        model.compile(getattr(keras.optimizers, optimizer)(), "mse")
    provoked(34, fit, model)


def test_a_bare_assertion_of_keras() -> None:
    mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    model = model_of(keras)
    with mirrored.scope():
        model.compile(keras.optimizers.SGD(), "mse")
    error = provoked(34, fit, model)
    assert (type(error), str(error)) == (AssertionError, "")


def positional() -> Any:
    class Mine(tf.keras.layers.Layer):  # type: ignore[misc]
        def __init__(self, name: str) -> None:
            super().__init__(name)

    return Mine("mine")


OF_KERAS_2: list[tuple[int, Callable[[Any, str], Any]]] = [
    (51, lambda model, _: model.reset_states()),
    (51, lambda *_: tf.keras.metrics.Mean().reset_states()),
    (52, lambda model, folder: model.save(folder, save_format="tf")),
    (52, lambda model, _: model.save_weights("w.weights.h5", save_format="h5")),
    (53, lambda model, folder: model.save(folder)),
    (53, lambda model, folder: model.save_weights(f"{folder}/w.h5")),
    (53, lambda model, folder: model.load_weights(folder)),
    (53, lambda _, folder: tf.keras.models.load_model(folder)),
    (53, lambda *_: tf.keras.callbacks.ModelCheckpoint("best.ckpt")),
    (53, lambda *_: tf.keras.callbacks.ModelCheckpoint("best.h5", save_weights_only=True)),
    (54, lambda model, _: tf.keras.backend.get_value(model.optimizer.lr)),
    (54, lambda *_: tf.keras.optimizers.Adam(lr=0.1)),
    (55, lambda *_: tf.keras.experimental.CosineDecay(0.1, 100)),
    (55, lambda *_: tf.keras.layers.experimental.preprocessing.Rescaling(1 / 255)),
    (55, lambda *_: tf.keras.mixed_precision.experimental.set_policy("mixed_bfloat16")),
    (55, lambda *_: importlib.import_module("tensorflow.keras.layers.experimental.preprocessing")),
    (56, lambda *_: tf.keras.backend.learning_phase()),
    (56, lambda *_: exec("from tensorflow.keras.backend import placeholder")),
    (57, lambda *_: positional()),
]


@pytest.mark.parametrize(("code", "act"), OF_KERAS_2)
def test_functions_that_keras_3_has_removed(two: Any, code: int, act: Any, tmp_path: Path) -> None:
    with two.scope():
        model = model_of(keras)
        model.compile("adam", "mse")
    error = provoked(code, act, model, str(tmp_path))
    assert "--keras 2" in explain(error).fix


def test_compile_outside_the_scope(two: Any) -> None:
    with two.scope():
        model = model_of(keras)
    model.compile("adam", "mse", metrics=["mae"])
    error = provoked(72, fit, model)
    assert "Mixing different tf.distribute.Strategy objects" in str(error)
    assert "--keras 2" in explain(error).fix


def test_an_optimizer_built_outside_the_scope(two: Any) -> None:
    with two.scope():
        model = model_of(keras)
        model.compile("adam", "mse")
    error = provoked(71, model.optimizer.build, model.trainable_variables)
    assert "with strategy.scope(): optimizer.build" in explain(error).fix
    with two.scope():  # the entry's fix
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
    fit(model)


def test_an_optimizer_of_keras_2_built_outside_the_scope(two: Any, keras2: Any) -> None:
    with two.scope():
        model = model_of(keras2)
        model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    entry = explain(provoked(34, fit, model))
    assert "`optimizer.build`" in entry.cause
    assert "Keras 2" not in entry.fix  # the user has Keras 2


@pytest.fixture
def keras2() -> Any:
    return pytest.importorskip("tf_keras")


def test_keras_2_outside_the_scope(two: Any, keras2: Any) -> None:
    model = model_of(keras2)
    with two.scope():
        provoked(34, model.compile, "adam", "mse")
    model.compile("adam", "mse")
    with two.scope():
        provoked(34, fit, model)


def test_a_slot_of_keras_2_outside_the_scope(two: Any, keras2: Any) -> None:
    model = model_of(keras2)
    optimizer = keras2.optimizers.legacy.Adam()

    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    provoked(34, run, two, step, tf.ones([2, 3]))


def test_the_reduction_of_keras_2(two: Any, keras2: Any) -> None:
    with two.scope():
        loss = keras2.losses.MeanSquaredError()
    provoked(37, run, two, lambda: loss([[1.0]], [[2.0]]))


def test_variables_in_a_function(two: Any) -> None:
    def replica() -> Any:
        return tf.Variable(1.0) + 1.0

    provoked(35, run, two, replica)
    provoked(35, tf.function(lambda x: keras.layers.Dense(1)(x)), tf.ones([2, 3]))


def test_in_cells(two: Any) -> None:
    runner = CellRunner(two)
    names: dict[str, Any] = {"tf": tf, "strategy": two, "value": per_replica(two)}
    provoked(35, runner.run, "v = tf.Variable(1.0)\nv + 1.0", names)
    with two.scope():
        model = model_of(keras)
    names |= {"optimizer": keras.optimizers.Adam(), "model": model, "x": tf.ones([2, 3])}
    source = (
        "with tf.GradientTape() as tape:\n    loss = tf.reduce_mean(model(x))\n"
        "g = tape.gradient(loss, model.trainable_variables)\n"
        "optimizer.apply_gradients(zip(g, model.trainable_variables))"
    )
    with pytest.raises(CellError, match="outside of the strategy's scope"):
        runner.run(source, names)
    runner.close()


def test_a_synchronisation_in_a_nested_function() -> None:
    mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with mirrored.scope():
        v = tf.Variable(1.0, aggregation=tf.VariableAggregation.SUM)

    @tf.function
    def nested() -> Any:
        return tf.distribute.get_replica_context().merge_call(lambda _: v.read_value())

    @tf.function
    def step() -> Any:
        return mirrored.run(lambda: nested())

    provoked(36, step)


@pytest.mark.parametrize("name", ["keras", "tf_keras", "tf_keras.legacy", "TensorFlow 1"])
def test_an_update_outside_of_a_replica_function(two: Any, name: str) -> None:
    with two.scope():
        if name == "TensorFlow 1":
            optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
        elif name == "keras":
            optimizer = keras.optimizers.Adam()
        else:
            package = pytest.importorskip("tf_keras").optimizers
            optimizer = (package.legacy if "legacy" in name else package).Adam()
        variable = tf.Variable(1.0)
        update = tf.function(lambda: optimizer.apply_gradients([(tf.ones([]), variable)]))
        provoked(68, update)


def test_per_replica_values_that_are_not_passed_as_arguments(two: Any) -> None:
    value = per_replica(two)
    add = tf.function(lambda x: x + 1.0)
    provoked(69, run, two, lambda: add(value))
    assert run(two, add, value) is not None  # the entry's fix


def test_a_global_batch_that_does_not_divide(two: Any) -> None:
    def dataset(context: Any) -> Any:
        return tf.data.Dataset.range(9).batch(context.get_per_replica_batch_size(9))

    provoked(38, two.distribute_datasets_from_function, dataset)


def test_reducing_scalars_over_an_axis(two: Any) -> None:
    value = per_replica(two)
    provoked(39, lambda: two.reduce("SUM", value, axis=0))
    provoked(39, lambda: two.reduce("MEAN", value, axis=0))


def test_replicas_that_disagree_about_a_condition(two: Any) -> None:
    def step(x: Any) -> Any:
        ctx = tf.distribute.get_replica_context()
        return tf.cond(x > 0.0, lambda: ctx.all_reduce("SUM", x), lambda: x)

    error = provoked(73, lambda: run(two, step, each(two, [1.0, -1.0])))
    assert "[1 0]" in str(error)
    code = "if x > 0.0:\n    x = ctx.all_reduce('sum', x)"
    with pytest.raises(tf.errors.InvalidArgumentError) as in_a_cell:
        CellRunner(two).run(code, {"tf": tf, "x": each(two, [1.0, -1.0])})
    assert in_a_cell.value.code == "collective-branch"
    assert in_a_cell.value.tpunb_lines == [2]


def test_values_of_unequal_shapes(two: Any) -> None:
    values = each(two, [np.ones((1, 2)), np.ones((2, 2))])
    provoked(40, lambda: two.gather(values, axis=1))

    def total(x: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce("sum", x)

    provoked(40, run, two, total, values)


def test_logical_devices(pairs: Any) -> None:
    def elsewhere() -> Any:
        with pairs.extended.experimental_logical_device(5):
            return tf.ones([2])

    provoked(41, run, pairs, lambda: pairs.experimental_assign_to_logical_device(tf.ones([2]), 2))
    provoked(41, run, pairs, elsewhere)


def test_assigning_in_spmd_mode() -> None:
    strategy = strategy_of("v3-8", spmd=True)
    place = strategy.experimental_assign_to_logical_device
    provoked(41, run, strategy, lambda: place(tf.ones([2]), 0))


def test_computation_shapes() -> None:
    topology = strategy_of("v3-8").topology
    provoked(42, assign, topology, [1, 1, 2], None, 4)
    provoked(42, assign, topology, [4, 4, 1, 2], None, 1)
    provoked(42, assign, topology, [1, 1, 1, 2], None, 8)


def embedding_in(strategy: Any) -> Any:
    """Create embedding tables, which only a TPU has."""
    embedding = tf.tpu.experimental.embedding
    table = embedding.TableConfig(vocabulary_size=8, dim=4, name="table")
    with strategy.scope():
        return embedding.TPUEmbedding(
            embedding.FeatureConfig(table=table), optimizer=embedding.SGD(0.1)
        )


def test_reading_embedding_tables(two: Any) -> None:
    embedding = embedding_in(two)
    provoked(45, lambda: embedding.embedding_tables)


LATE = """
import tensorflow as tf
from tpunb import connect, explain
from tpunb.errors import VirtualDevicesError
from tpunb.virtual import VirtualTPUStrategy
tf.constant(1.0)
cpu = tf.config.list_physical_devices("CPU")[0]
two = [tf.config.LogicalDeviceConfiguration()] * 2
for attempt in (
    lambda: tf.config.set_logical_device_configuration(cpu, two),
    lambda: connect(simulate=2),
):
    try:
        attempt()
    except RuntimeError as error:
        assert explain(error).number == 46, error
        print("explained")
try:
    VirtualTPUStrategy(4)
except VirtualDevicesError as error:
    print("refused:", error)
"""


def test_tensorflow_has_started() -> None:
    process = run_code(WITHOUT_KERAS + LATE)
    assert process.stdout.startswith("explained\nexplained\nrefused: A virtual TPU"), process.stderr
    assert "needs 5 logical CPU devices (4 cores, 1 host)" in process.stdout
    assert "already started with 1" in process.stdout
    assert "Restart the kernel" in process.stdout


def test_retracing() -> None:
    logged: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = logged.append  # type: ignore[method-assign]
    logger = tf.get_logger()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    try:
        for _ in range(8):
            tf.function(lambda x: x + 1)(tf.constant(1.0))
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    entries = [explain(record.getMessage()) for record in logged]
    assert [explanation.code for explanation in entries if explanation] == ["P6"] * len(entries)
    assert entries


def test_explaining_in_threads() -> None:
    entries: list[Any] = []
    threads = [
        threading.Thread(target=lambda: entries.append(explain(KeyError("COLAB_TPU_ADDR"))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [explanation.number for explanation in entries] == [2] * 4


def test_embedding_tables_without_a_tpu(two: Any) -> None:
    embedding = embedding_in(two)
    provoked(48, embedding.build, 8)


def test_collectives_outside_of_replicas() -> None:
    x, group = tf.ones([2, 2]), [[0, 1]]
    sizes = {"concat_dimension": 0, "split_dimension": 0, "split_count": 2}
    provoked(49, lambda: tf.raw_ops.AllToAll(input=x, group_assignment=group, **sizes))
    provoked(49, lambda: tf.raw_ops.CrossReplicaSum(input=x, group_assignment=group))
    provoked(49, lambda: tf.raw_ops.CollectivePermute(input=x, source_target_pairs=group))


@pytest.mark.parametrize("compiled", ["by XLA", "virtual"])
def test_gradient_of_a_branch_with_an_unknown_size(two: Any, compiled: str) -> None:
    def gradient(x: Any, y: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(y)
            z = tf.cond(y[0] > 1, lambda: y, lambda: tf.reduce_sum(tf.tanh(x) * y, 0))
        return tape.gradient(z, y)

    def replicated(x: Any, y: Any) -> Any:
        return two.run(gradient, args=(x, y))

    signature = (tf.TensorSpec([None, 3]), tf.TensorSpec([3]))
    xla = compiled == "by XLA"
    function = tf.function(gradient if xla else replicated, signature, jit_compile=xla or None)
    provoked(50, function, tf.ones([2, 3]), tf.zeros([3]))


def test_an_on_read_variable_that_is_updated_outside(two: Any) -> None:
    with two.scope():
        total = tf.Variable(
            0.0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
    provoked(140, total.assign_add, 1.0)
    provoked(140, total.assign_sub, 1.0)


def test_the_fix_for_a_sparse_ctc_loss_is_the_dense_form(two: Any) -> None:
    logits = tf.zeros([2, 8, 4])

    def sparse() -> Any:
        labels = tf.sparse.from_dense(tf.ones([2, 3], tf.int32))
        return tf.nn.ctc_loss(labels, logits, None, [8, 8], False, blank_index=-1)

    def dense() -> Any:
        return tf.nn.ctc_loss(
            tf.ones([2, 3], tf.int32), logits, [3, 3], [8, 8], False, blank_index=-1
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TensorFlow itself adds in float64
        error = provoked(22, tf.function(lambda: two.run(sparse)))
        assert np.isfinite(run(two, dense)).all()
    assert "`tf.nn.ctc_loss(labels, logits, label_length, logit_length" in str(error)
