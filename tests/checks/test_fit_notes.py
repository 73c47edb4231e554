"""Warnings before a fit: replicas without examples, lost variables, no strategy."""

from __future__ import annotations

import contextlib
import itertools
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.tiers import thorough, thorough_except

import tpunb
from tpunb.display.widgets import frontend
from tpunb.errors import TpuWarning
from tpunb.machine import keras_internals
from tpunb.tensorflow.cells.batches import Batches
from tpunb.tensorflow.checks import empty_shares, fit_notes
from tpunb.tensorflow.virtual.runtime.stoppable import StoppableCalls

tf_keras = pytest.importorskip("tf_keras")
pytestmark = [
    pytest.mark.usefixtures("fresh_keras_names"),
    pytest.mark.filterwarnings("ignore:.*shuffle=True. was passed:UserWarning"),
]

X, Y = np.ones([74, 4], np.float32), np.ones([74, 1], np.float32)
EMPTY = r"has {} examples? for 8 replicas: {} of them gets? none.* Use .*{}"


@pytest.fixture(scope="module")
def connection() -> Iterator[Any]:
    with tpunb.connect(simulate="v3-8") as connection:
        yield connection


def model_of(library: Any) -> Any:
    layers = [library.layers.Input((4,)), library.layers.BatchNormalization()]
    model = library.Sequential([*layers, library.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


@pytest.fixture(scope="module", params=[keras, *thorough([tf_keras])], ids=["keras", "tf_keras"])
def traced_model(request: pytest.FixtureRequest, connection: Any) -> tuple[Any, list[Any]]:
    """A model in the scope with its initial weights, traced once because tracing is slow."""
    with connection.strategy.scope():
        model = model_of(request.param)
    return model, model.get_weights()


@pytest.fixture
def model(traced_model: tuple[Any, list[Any]]) -> Any:
    """One model for all tests, with its initial weights and without notes."""
    model, weights = traced_model
    model.set_weights(weights)
    fit_notes.notes_of(model).clear()
    return model


def warnings_of(call: Callable[[], Any]) -> list[str]:
    """The warnings of a call, which must point to this file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    ours = [warning for warning in caught if issubclass(warning.category, TpuWarning)]
    assert all(warning.filename == __file__ for warning in ours)
    return [str(warning.message) for warning in ours]


def batches(size: int, **options: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(size, **options)


def generated() -> tf.data.Dataset:
    signature = (tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1]))
    return tf.data.Dataset.from_generator(
        lambda: ((X[:n], Y[:n]) for n in (16, 2)), output_signature=signature
    )


@pytest.mark.parametrize(
    ("data", "examples", "none", "fix"),
    [
        pytest.param(lambda: {"x": X, "y": Y, "batch_size": 64}, 10, 3, "such as 80", id="arrays"),
        pytest.param(lambda: {"x": X[:8], "y": Y[:8], "batch_size": 4}, 4, 4, "8", id="small"),
        pytest.param(lambda: {"x": batches(64).prefetch(2)}, 10, 3, "drop_remainder", id="batches"),
        pytest.param(
            lambda: {"x": batches(4, drop_remainder=True)}, 4, 4, "such as 8", id="each batch"
        ),
        pytest.param(
            lambda: {"x": batches(64).map(lambda x, y: (x, y))}, 10, 3, "drop", id="size known late"
        ),
        pytest.param(lambda: {"x": X[:3], "y": Y[:3]}, 3, 5, "at least 8 examples", id="few"),
        pytest.param(lambda: {"x": generated()}, 2, 6, "drop_remainder", id="generated"),
    ],
)
def test_replicas_without_examples(
    model: Any, data: Callable[[], dict[str, Any]], examples: int, none: int, fix: str
) -> None:
    (messages,) = warnings_of(lambda: model.fit(**data(), epochs=2, verbose=0))
    assert re.search(EMPTY.format(examples, none, fix), messages)
    assert fit_notes.notes_of(model) == {empty_shares.EMPTY: messages}


@pytest.mark.parametrize(
    "data",
    [
        lambda: {"x": X, "y": Y, "batch_size": 80},
        lambda: {"x": X, "y": Y, "batch_size": 58},
        lambda: {"x": batches(64, drop_remainder=True)},
        lambda: {"x": batches(37).map(lambda x, y: (x, y))},
    ],
)
def test_batches_that_fit(model: Any, data: Callable[[], dict[str, Any]]) -> None:
    assert warnings_of(lambda: model.fit(**data(), epochs=2, verbose=0)) == []


def test_validation_data(connection: Any, model: Any) -> None:
    """Nothing is averaged over validation batches."""
    short = (X[:5], Y[:5])
    whole = {"x": X[:64], "y": Y[:64], "batch_size": 64, "verbose": 0}
    assert warnings_of(lambda: model.fit(**whole, validation_data=short, epochs=2)) == []
    dataset = tf.data.Dataset.from_tensor_slices(short).batch(64)
    assert (
        warnings_of(
            lambda: model.fit(**whole, validation_data=dataset, validation_freq=2, epochs=2)
        )
        == []
    )


def test_other_releases_of_keras_give_no_warning(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another release, its training data might be taken for its validation data."""
    monkeypatch.setattr(keras_internals, "_TRAINING_DATA", frozenset({"renamed"}))
    assert warnings_of(lambda: model.fit(X, Y, batch_size=64, verbose=0)) == []


def test_other_uses_of_data(connection: Any, model: Any) -> None:
    """Predictions are right, and custom steps may sum, so only a fit gives a warning."""
    strategy = connection.strategy
    assert warnings_of(lambda: model.predict(X, batch_size=64, verbose=0)) == []
    assert warnings_of(lambda: list(strategy.experimental_distribute_dataset(batches(64)))) == []


def test_lost_variables(connection: Any, model: Any) -> None:
    model.layers[-1].kernel.assign(np.full([4, 1], np.nan))
    (message,) = warnings_of(lambda: model.fit(X[:64], Y[:64], batch_size=32, verbose=0))
    assert re.match(f"1 variable of the model {model.name} held NaN before .*kernel", message)
    assert "load its weights" in message


@pytest.mark.parametrize("library", [keras, *thorough([tf_keras])])
@pytest.mark.parametrize("method", ["fit", *thorough(["evaluate", "predict"])])
def test_models_created_outside_of_the_scope(connection: Any, library: Any, method: str) -> None:
    model = model_of(library)
    data = (X[:32],) if method == "predict" else (X[:32], Y[:32])
    (message,) = warnings_of(lambda: getattr(model, method)(*data, verbose=0))
    assert f"The model {model.name} was made outside of the strategy's scope: `{method}`" in message
    assert "`with strategy.scope():`" in message
    assert warnings_of(lambda: model.fit(X[:32], Y[:32], verbose=0)) == []  # already warned
    assert fit_notes.OUTSIDE in fit_notes.notes_of(model)


@pytest.mark.parametrize("library", [keras, *thorough([tf_keras])])
def test_models_of_a_closed_connection(connection: Any, library: Any) -> None:
    with tpunb.connect(simulate=2) as other, other.strategy.scope():
        model = model_of(library)
    (message,) = warnings_of(lambda: model.fit(X[:64], Y[:64], batch_size=32, verbose=0))
    assert f"The model {model.name} belongs to a connection that is closed: `fit` runs" in message
    assert "on its 2 replicas, not on the 8 replicas of the present connection" in message
    assert fit_notes.notes_of(model) == {fit_notes.CLOSED: message}
    assert warnings_of(lambda: model.evaluate(X[:64], Y[:64], verbose=0)) == []  # already warned


def test_closing_the_connection_removes_everything() -> None:
    default = vars(fit_notes._default())
    before = dict(default)
    with tpunb.connect(simulate="v3-8"):
        assert "_experimental_distribute_dataset" in default
    assert default == before
    if not before:
        model = model_of(keras)
        assert warnings_of(lambda: model.fit(X[:32], Y[:32], verbose=0)) == []


NOTES = itertools.product(("empty share", "lost", "outside", "rate"), ("keras", "tf_keras"))
QUICK = {("empty share", "keras"), ("outside", "keras")}


@pytest.mark.parametrize(("kind", "name"), thorough_except(QUICK, NOTES))
def test_live_curves_show_the_warning(
    connection: Any, kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The display shows it, and the advice about a NaN loss does."""
    shown: list[Any] = []
    monkeypatch.setattr(frontend, "publish", lambda bundle, *_, **__: shown.append(bundle))
    library = {"keras": keras, "tf_keras": tf_keras}[name]
    scope = contextlib.nullcontext() if kind == "outside" else connection.strategy.scope()
    with scope:
        model = model_of(library)
    if kind == "lost":
        model.layers[-1].kernel.assign(np.full([4, 1], np.nan))
    live = tpunb.LiveCurves()
    x = X * np.nan if kind in ("rate", "empty share") else X
    rows = 74 if kind == "empty share" else 64
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(x[:rows], Y[:rows], batch_size=64, epochs=2, verbose=0, callbacks=[live])
    messages = [str(warning.message) for warning in caught if warning.category is RuntimeWarning]
    notes = [] if live.history is None else list(live.history.notes.values())
    lines = shown[-1]["text/plain"].splitlines()
    assert [line for line in lines if line.startswith("Note: ")] == [
        f"Note: {note}" for note in notes
    ]
    assert lines[-1].startswith("run 1: loss ")
    advice = {"lost": "held NaN before", "empty share": "has 10 examples", "rate": "learning rate"}
    assert len(notes) == (kind != "rate")
    assert (
        [advice[kind] in message for message in messages] == [True]
        if kind in advice
        else messages == []
    )


def test_data_of_a_cell(connection: Any) -> None:
    with pytest.warns(TpuWarning, match=EMPTY.format(10, 3, "such as")) as caught:
        Batches(connection.strategy, batches(64), StoppableCalls())
    assert caught[0].filename == "%%tpu_run"


def test_a_check_of_a_dataset(model: Any) -> None:
    report = tpunb.check(model.fit, batches(64))
    (problem,) = [warning for warning in report.warnings if warning.code == "empty-share"]
    assert "10 examples for 8 replicas" in problem.cause
    assert problem.fix.startswith("Use")


class Count(keras.metrics.Metric):
    """A metric that counts examples."""

    def __init__(self, *, combined: bool) -> None:
        super().__init__(name="count")
        self.seen = self.add_weight(name="seen", initializer="zeros")
        self._combined = combined

    def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> None:
        self.seen.assign_add(tf.cast(tf.shape(predicted)[0], tf.float32))

    def result(self) -> Any:
        return self.seen + 0 if self._combined else self.seen


@pytest.mark.parametrize("combined", [False, True])
def test_a_metric_that_returns_its_variable(connection: Any, combined: bool) -> None:
    with connection.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=[Count(combined=combined)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = model.fit(X[:64], Y[:64], batch_size=32, verbose=0).history
    said = [str(each.message) for each in caught if each.category is TpuWarning]
    # Older releases of Keras keep the variable itself.
    counts = [float(keras.ops.convert_to_numpy(count)) for count in history["count"]]
    assert counts == [64.0 if combined else 8.0]
    assert [text.partition(":")[0] for text in said] == (
        [] if combined else ["The metric count returns its variable `self.seen`"]
    )
