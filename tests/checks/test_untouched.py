"""A check does not change its arguments, although tracing builds, caches and counts."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.rules import check
from support.strategies import strategy_of
from support.tiers import THOROUGH, thorough_except

from tpunb.tensorflow.checks.rule_check import CheckError
from tpunb.tensorflow.checks.untouched import untouched

tf_keras = pytest.importorskip("tf_keras")
pytestmark = [
    pytest.mark.usefixtures("fresh_keras_names"),
    pytest.mark.filterwarnings("ignore:Seed 1 from outer graph:UserWarning"),
    pytest.mark.filterwarnings("ignore:To make it possible to preserve:UserWarning"),
]

X = np.random.default_rng(0).normal(size=[32, 4]).astype(np.float32)
Y = X[:, :1] * 2


@pytest.fixture(scope="module")
def strategy() -> Any:
    return strategy_of(2)


class Own:
    """A user's class around a model; its step creates variables in its first run."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.scale: Any = None
        self.calls = 0

    def step(self, x: Any, y: Any) -> Any:
        self.calls += 1
        if self.scale is None:
            self.scale = tf.Variable(1.0)
        return self.model.train_step((x * self.scale, y))


def model_of(library: Any, strategy: Any, *, built: bool) -> Any:
    library.utils.set_random_seed(1)
    with strategy.scope():
        layers = [library.layers.Dense(3, "relu"), library.layers.BatchNormalization()]
        first = [library.layers.Input((4,))] if built else []
        model = library.Sequential([*first, *layers, library.layers.Dense(1)])
        model.compile("adam", "mse", metrics=["mae"])
    return model


def losses(model: Any) -> Any:
    history = model.fit(X, Y, batch_size=16, epochs=2, shuffle=False, verbose=0).history
    return history, model.evaluate(X, Y, batch_size=16, verbose=0)


@functools.cache
def losses_without_a_check(library: Any, strategy: Any, *, built: bool) -> Any:
    return losses(model_of(library, strategy, built=built))


def state(model: Any) -> Any:
    known = (model.built, model.train_function, model.test_function, len(vars(model)))
    optimizer = getattr(model.optimizer, "variables", ())
    return known, len(optimizer() if callable(optimizer) else optimizer), len(model.metrics)


CHECKED: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "model": lambda model: (model, X[:16], Y[:16]),
    "fit": lambda model: (model.fit, X[:16], Y[:16]),
    "evaluate": lambda model: (model.evaluate, X[:16], Y[:16]),
    "predict": lambda model: (model.predict, X[:16]),
    "train_on_batch": lambda model: (model.train_on_batch, X[:16], Y[:16]),
    "a custom step": lambda model: (Own(model).step, X[:16], Y[:16]),
    "what calls fit": lambda model: (lambda: model.fit(X, Y, verbose=0),),
}


LIBRARIES = {"keras": keras, "tf_keras": tf_keras}
QUICK = {("a custom step", "unbuilt", "keras")}
"""A call that trains, with an unbuilt model: a check could change it most."""
CASES = [*itertools.product(CHECKED, ("built", "unbuilt"), LIBRARIES)]


@pytest.mark.parametrize(
    ("what", "built", "library"),
    thorough_except(QUICK, CASES),
)
def test_models_train_the_same_without_a_check(
    strategy: Any, what: str, built: str, library: str
) -> None:
    api = LIBRARIES[library]
    expected = losses_without_a_check(api, strategy, built=built == "built")
    model = model_of(api, strategy, built=built == "built")
    before, given = state(model), CHECKED[what](model)
    if what == "what calls fit":
        with pytest.raises((RuntimeError, ValueError)):
            check(*given, strategy=strategy)
    else:
        assert check(*given, strategy=strategy).ok
    assert state(model) == before
    if isinstance(owner := getattr(given[0], "__self__", None), Own):
        assert (owner.scale, owner.calls) == (None, 0)
    tf.nest.map_structure(np.testing.assert_array_equal, losses(model), expected)


@THOROUGH
def test_trained_models(strategy: Any) -> None:
    model = model_of(keras, strategy, built=True)
    losses(model)
    weights, function = model.get_weights(), model.train_function
    assert check(model.fit, X, Y, strategy=strategy).ok
    assert model.train_function is function
    tf.nest.map_structure(np.testing.assert_array_equal, model.get_weights(), weights)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda model: (model,), "A model's step takes a batch."),
        (lambda model: (model, X), "was compiled with a loss"),
        (lambda _: (keras.Sequential([keras.layers.Dense(1)]), X), "is not compiled"),
    ],
)
def test_arguments_that_cannot_be_checked(
    strategy: Any, make: Callable[[Any], tuple[Any, ...]], reason: str
) -> None:
    model = model_of(keras, strategy, built=False)
    with pytest.raises(CheckError, match=reason) as raised:
        check(*make(model), strategy=strategy)
    assert raised.value.fix
    assert str(raised.value).count("\n") == 1


def test_functions_and_their_variables(strategy: Any) -> None:
    made: list[Any] = []
    log: list[int] = []
    late = None

    @tf.function
    def replica(x: Any) -> Any:
        nonlocal late
        log.append(1)
        if not made:
            made.append(tf.Variable(2.0))
        if late is None:
            late = tf.Variable(3.0)
        return x * made[0] * late

    assert check(replica, tf.TensorSpec([4]), strategy=strategy).ok
    assert (made, late) == ([], None)
    assert log  # the function's own code wrote the log, so it stays
    assert replica.experimental_get_tracing_count() == 0
    np.testing.assert_array_equal(replica(tf.ones([4])), np.full(4, 6.0))


def test_traces_are_kept(strategy: Any) -> None:
    function = tf.function(lambda x: x + 1.0)
    function(tf.ones([2]))
    assert check(function, tf.TensorSpec([4]), strategy=strategy).ok
    assert function.experimental_get_tracing_count() == 1


def test_random_numbers_are_the_same_without_a_check(strategy: Any) -> None:
    def numbers() -> Any:
        return np.random.rand(), tf.random.uniform([]).numpy(), keras.random.uniform([]).numpy()

    def replica(x: Any) -> Any:
        return x + np.random.rand() + tf.random.uniform([4]) + keras.random.uniform([4])

    keras.backend.clear_session(False)  # In older releases the generator outlives its seed.
    keras.utils.set_random_seed(5)
    expected = numbers()
    keras.backend.clear_session(False)
    keras.utils.set_random_seed(5)
    check(replica, tf.TensorSpec([4]), strategy=strategy)
    assert numbers() == expected


def test_containers_of_libraries() -> None:
    module = tf.Module()
    module.held = {"a": [1]}
    model = keras.Sequential()
    with untouched(module, model):
        module.held["b"] = tf.Variable(1.0)
        module.more = 1
        model.add(keras.layers.Dense(1))
    assert dict(module.held) == {"a": [1]}
    assert not hasattr(module, "more")
    assert model.layers == []
