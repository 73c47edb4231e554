"""Random numbers differ between replicas, and repeat with the same seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.strategies import copies, each, replica_id, run, stepper, strategy_of

pytestmark = pytest.mark.filterwarnings("ignore:A TPU ignores")


def differ(results: Any) -> bool:
    return len({np.asarray(result).tobytes() for result in results}) == len(results)


def in_a_loop() -> Any:
    total = tf.zeros([8])
    for _ in tf.range(2):
        total += tf.random.normal([8])
    return total


def in_a_nested_branch() -> Any:
    total = tf.zeros([8])
    for _ in tf.range(replica_id() * 0 + 2):
        if tf.reduce_sum(total) < 1e9:
            total += tf.random.normal([8])
    return total


def in_a_loop_with_collectives() -> Any:
    total = tf.zeros([8])
    for _ in tf.range(2):
        numbers = tf.random.normal([8])
        context = tf.distribute.get_replica_context()
        total += numbers + 0.0 * context.all_reduce(tf.distribute.ReduceOp.SUM, numbers)
    return total


DRAWS: dict[str, Callable[[], Any]] = {
    "plain": lambda: tf.random.normal([8]),
    "seeded": lambda: tf.random.uniform([8], seed=3),
    "loop": in_a_loop,
    "nested branch": in_a_nested_branch,
    "map": lambda: tf.map_fn(lambda x: x + tf.random.uniform([]), tf.zeros([8])),
    "loop with collectives": in_a_loop_with_collectives,
    "nested function": lambda: tf.function(lambda: tf.random.normal([8]))(),
    "dropout": lambda: tf.nn.dropout(tf.ones([64]), 0.5),
}


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("draw", DRAWS)
def test_each_replica_draws_its_own_numbers(four: Any, draw: str, seed: int | None) -> None:
    tf.random.set_seed(seed) if seed else None
    assert differ(run(four, DRAWS[draw]))


@pytest.mark.parametrize("draw", ["plain", "seeded", "loop", "loop with collectives"])
def test_the_same_seed_gives_the_same_numbers(four: Any, draw: str) -> None:
    def twice() -> Any:
        tf.random.set_seed(11)
        step = stepper(four, DRAWS[draw])
        return [step(), step()]

    first, again = twice(), twice()
    np.testing.assert_array_equal(first, again)
    assert differ(first[0] + first[1])


def test_stateless_numbers_are_equal_on_all_replicas(four: Any) -> None:
    results = run(four, lambda: tf.random.stateless_normal([4], seed=[1, 2]))
    np.testing.assert_array_equal(results, [results[0]] * 4)
    np.testing.assert_array_equal(results[0], tf.random.stateless_normal([4], seed=[1, 2]))


def test_stateless_numbers_with_a_seed_for_each_replica(four: Any) -> None:
    def step() -> Any:
        return tf.random.stateless_normal([4], seed=tf.stack([replica_id(), 2]))

    results = run(four, step)
    for replica, result in enumerate(results):
        np.testing.assert_array_equal(result, tf.random.stateless_normal([4], seed=[replica, 2]))


def test_a_shuffle_differs_between_replicas(four: Any) -> None:
    tf.random.set_seed(3)
    results = run(four, lambda x: tf.random.shuffle(x), each(four, [np.arange(32)] * 4))
    assert differ(results)
    for result in results:
        np.testing.assert_array_equal(np.sort(result), np.arange(32))


def test_a_keras_dropout_layer(four: Any) -> None:
    import keras

    keras.utils.set_random_seed(1)
    with four.scope():
        layer = keras.layers.Dropout(0.5)
        layer.build((None, 64))
    results = run(four, lambda: layer(tf.ones([1, 64]), training=True))
    for result in results:
        assert set(np.unique(result)) == {0.0, 2.0}


# Generators.


def generator(strategy: Any, seed: int) -> tf.random.Generator:
    with strategy.scope():
        return tf.random.Generator.from_seed(seed)


def drawing(strategy: Any, source: tf.random.Generator) -> Any:
    def replica() -> Any:
        return source.normal([3]), source.uniform([2]), source.make_seeds(2)

    return stepper(strategy, replica)


def same(results: Any, others: Any) -> None:
    tf.nest.map_structure(np.testing.assert_array_equal, results, others)


def test_a_generator_differs_between_replicas_and_steps(four: Any) -> None:
    source = generator(four, 1)
    draw = drawing(four, source)
    first, second = draw(), draw()
    for part in range(3):
        assert differ([result[part] for result in first + second])
    # The state advances equally everywhere; numbers differ because they also use the replica ID.
    states = copies(source.state)
    np.testing.assert_array_equal(states, [states[0]] * 4)


def test_a_generator_is_saved_and_reset(four: Any, tmp_path: Any) -> None:
    source = generator(four, 3)
    draw = drawing(four, source)
    first = draw()
    saved = tf.train.Checkpoint(generator=source)
    path = saved.save(str(tmp_path / "c"))
    second = draw()
    saved.restore(path)
    same(draw(), second)
    source.reset_from_seed(3)
    same(draw(), first)


def test_a_generator_loads_on_another_number_of_replicas(four: Any, tmp_path: Any) -> None:
    source = generator(four, 9)
    path = tf.train.Checkpoint(generator=source).save(str(tmp_path / "c"))
    eight = strategy_of(8)
    more = generator(eight, 1)
    tf.train.Checkpoint(generator=more).restore(path).assert_consumed()
    same(drawing(eight, more)()[:4], drawing(four, source)())
    plain = tf.random.Generator.from_seed(1)
    tf.train.Checkpoint(generator=plain).restore(path).assert_consumed()
    np.testing.assert_array_equal(plain.state, tf.random.Generator.from_seed(9).state)


def test_a_generator_splits_across_replicas(four: Any) -> None:
    with four.scope():
        parts = tf.random.Generator.from_seed(3).split(2)
    assert differ([result[0] for part in parts for result in drawing(four, part)()])
