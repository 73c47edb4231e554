"""One replica is a TPU too, such as Colab's; all essentials work with a single replica."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.checked_functions import REFUSED, X
from support.keras_models import CASES, assert_same, fitted, keras, squares_lessened
from support.rules import check
from support.strategies import (
    MEAN,
    SUM,
    all_reduce,
    copies,
    each,
    local,
    replica_id,
    run,
    stepper,
    strategy_of,
)
from support.tiers import thorough
from tensorflow.python.tpu.ops import tpu_ops

from tpunb.connection.connect import connect
from tpunb.errors import TpuWarning
from tpunb.tensorflow.cells.runner import CellRunner

pytestmark = [
    pytest.mark.usefixtures("fresh_keras_names"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

ON_READ = tf.VariableSynchronization.ON_READ
SUMMED, FIRST = tf.VariableAggregation.SUM, tf.VariableAggregation.ONLY_FIRST_REPLICA


@pytest.fixture(scope="module")
def tpu() -> Any:
    return strategy_of("v5e-1", strict=True)


def context() -> Any:
    return tf.distribute.get_replica_context()


def test_collectives(tpu: Any) -> None:
    def step(x: Any) -> Any:
        numbers = (
            all_reduce(x),
            context().all_reduce(MEAN, {"x": x})["x"],
            tpu_ops.cross_replica_sum(x),
            tpu_ops.collective_permute(x, [[0, 0]]),
            context().merge_call(lambda strategy, y: strategy.reduce(SUM, y, axis=None), (x,)),
        )
        exchanged = tpu_ops.all_to_all(
            x[None],
            concat_dimension=0,
            split_dimension=0,
            split_count=1,
            group_assignment=[[0]],
        )
        return numbers, context().all_gather(x[None], axis=0), exchanged

    numbers, gathered, exchanged = run(tpu, step, 3.0)[0]
    assert numbers == (3.0,) * 5
    assert gathered.tolist() == exchanged.tolist() == [3.0]


def test_collectives_in_loops_and_branches(tpu: Any) -> None:
    def step(x: Any) -> Any:
        total = 0.0
        for _ in tf.range(3):
            total += all_reduce(x)
            if total > 0.0:
                total += all_reduce(0.0 * x)
        return total + x

    assert run(tpu, step, 2.0) == [8.0]


def test_gradients_are_summed(tpu: Any) -> None:
    with tpu.scope():
        v = tf.Variable(1.0)

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = v * x
        gradient = all_reduce(tape.gradient(loss, v))
        v.assign_add(gradient)
        return gradient

    assert run(tpu, step, 3.0) == [3.0]
    assert copies(v) == [4.0]


def test_variables_of_all_kinds(tpu: Any) -> None:
    with tpu.scope():
        kept = tf.Variable(1.0, aggregation=SUMMED)
        first = tf.Variable(0.0, aggregation=FIRST)
        total = tf.Variable(0.0, synchronization=ON_READ, aggregation=SUMMED)
        table = tf.Variable(tf.zeros([3, 2]))

    def step(x: Any) -> Any:
        kept.assign_add(x)
        first.assign(x)
        total.assign_add(x)
        return total + 0.0, tf.gather(table, [1, 2]) + x

    [(results, rows)] = run(tpu, step, 3.0)
    assert (results, kept.numpy(), first.numpy(), total.numpy()) == (3.0, 4.0, 3.0, 3.0)
    assert rows.tolist() == [[3.0, 3.0]] * 2


def test_variables_created_in_the_first_step(tpu: Any) -> None:
    created: list[Any] = []

    def replica(x: Any) -> Any:
        if not created:
            created.append(tf.Variable(2.0))
        for _ in tf.range(2):  # a check compiles the body of a loop
            x = x * created[0]
        return x

    step = stepper(tpu, replica)
    for _ in range(2):
        assert step(tf.constant(1.0)) == [4.0]


def test_reduce_and_gather(tpu: Any) -> None:
    inputs = each(tpu, [[3.0]])
    assert tpu.reduce(SUM, inputs, axis=None).numpy() == [3.0]
    assert tpu.reduce(MEAN, inputs, axis=0).numpy() == 3.0
    assert tpu.gather(inputs, axis=0).numpy() == [3.0]

    @tf.function
    def inside(x: Any) -> Any:
        doubled = tpu.run(lambda y: 2.0 * y, args=(x,))
        return tpu.reduce(SUM, doubled, axis=0), tpu.gather(doubled, axis=0)

    total, rows = inside(inputs)
    assert total.numpy() == 6.0
    assert rows.numpy().tolist() == [6.0]


def test_uneven_batches_and_replica_ids(tpu: Any) -> None:
    data = tf.data.Dataset.range(5).batch(2)
    step = stepper(tpu, lambda y: (y, replica_id()))
    batches = [step(batch)[0] for batch in tpu.experimental_distribute_dataset(data)]
    assert [rows.tolist() for rows, _ in batches] == [[0, 1], [2, 3], [4]]
    assert {int(replica) for _, replica in batches} == {0}


def test_data_from_functions_and_steps_in_a_loop(tpu: Any) -> None:
    def pipeline(options: Any) -> Any:
        return tf.data.Dataset.range(100).batch(options.get_per_replica_batch_size(8))

    iterator = iter(tpu.distribute_datasets_from_function(pipeline))

    @tf.function
    def steps() -> Any:
        total = tf.constant(0, tf.int64)
        for _ in tf.range(3):
            found = tpu.run(lambda x: tf.reduce_sum(x), args=(next(iterator),))
            total += tpu.reduce(SUM, found, axis=None)
        return total

    assert steps().numpy() == sum(range(24))


@pytest.mark.parametrize("rule", REFUSED)
def test_what_a_tpu_refuses(tpu: Any, rule: str) -> None:
    function, message, _ = REFUSED[rule]
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        run(tpu, function, each(tpu, [np.ones(X.shape, np.float32)] * tpu.num_replicas_in_sync))
    report = check(function, X, strategy=tpu)
    assert rule in [problem.code for problem in report.errors]


def test_pure_eager_and_variables_out_of_scope(tpu: Any) -> None:
    with pytest.raises(NotImplementedError, match="pure eager"):
        tpu.run(lambda x: x, args=(1.0,))
    outside = tf.Variable(2.0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Trying to access resource"):
        run(tpu, lambda x: outside.assign(x), 1.0)


def test_cells(tpu: Any) -> None:
    names: dict[str, Any] = {"tf": tf, "x": each(tpu, [1.0]), "__name__": "__main__"}
    runner = CellRunner(tpu)
    names.update(runner.run("y = x * 2.0", names).assigned)
    runner.close()
    assert local(tpu, names["y"]) == [2.0]


def train(strategy: Any, optimizer: str, steps: int = 3) -> tuple[list[float], list[Any]]:
    """A custom loop whose optimizer creates its slots in the first step."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])
        model.build((None, 4))
        made = keras.optimizers.get(optimizer)

    @tf.function
    def step(x: Any) -> Any:
        losses = strategy.run(functools.partial(squares_lessened, model, made), args=(x,))
        return strategy.reduce(SUM, losses, axis=None)

    x = each(strategy, [np.ones([2, 4], np.float32)])
    losses = [float(step(x)) for _ in range(steps)]
    return losses, [weight.numpy() for weight in model.trainable_variables]


@pytest.mark.parametrize("optimizer", ["adam", *thorough(["lion"])])
def test_a_custom_loop_with_an_optimizer_that_is_not_built(tpu: Any, optimizer: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", TpuWarning)
        losses, weights = train(tpu, optimizer)
    expected, others = train(tf.distribute.get_strategy(), optimizer)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    for actual, weight in zip(weights, others, strict=True):
        np.testing.assert_allclose(actual, weight, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["steps per execution", *thorough(["not built"])])
def test_keras_3(tpu: Any, name: str) -> None:
    plain_model, expected = fitted(None, **CASES[name])
    model, history = fitted(tpu, **CASES[name])
    assert_same(plain_model, model)
    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=1e-4)
    inputs = CASES[name]["x"]
    predictions = [each.predict(inputs, verbose=0) for each in (model, plain_model)]
    np.testing.assert_allclose(*predictions, 1e-3)


@pytest.mark.parametrize("simulate", ["v5e-1", *thorough([1])])
def test_a_connection(simulate: Any) -> None:
    expected = train(tf.distribute.get_strategy(), "adam")[0]
    with connect(simulate=simulate) as connection:
        assert connection.strategy.num_replicas_in_sync == 1
        assert train(connection.strategy, "adam")[0] == expected
