"""LiveCurves with both Keras 2 and Keras 3: what it records, what it shows, and how it stops."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import math
import os
import pickle
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.interrupts import When, press
from support.patience import wait_until
from support.strategies import strategy_of
from support.tiers import THOROUGH, thorough

import tpunb
from tpunb._util.interrupts import Stopped
from tpunb.display.widgets import frontend
from tpunb.keras import LiveCurves, log_recorder
from tpunb.keras.batch_values import BatchValues
from tpunb.tensorflow.virtual.runtime.stoppable import StoppableCalls
from tpunb.training import history as histories
from tpunb.training.history import History

# Keras 2 runs in the same process as Keras 3, which stays `tf.keras`.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "0")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("fresh_keras_names"),
    pytest.mark.filterwarnings("ignore:non-integer arguments to randrange:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*shuffle=True. was passed:UserWarning"),
    # When Keras saves variables, it converts them to arrays the NumPy 1 way.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

ROWS, BATCH, STEPS = 72, 8, 9
random = np.random.default_rng(0)
X = random.normal(size=[ROWS, 4]).astype(np.float32)
Y = (X @ random.normal(size=[4, 1])).astype(np.float32)


@functools.cache
def virtual_tpu() -> Any:
    return strategy_of(2)


@pytest.fixture(params=["keras", *thorough(["tf_keras"])])
def keras(request: pytest.FixtureRequest) -> Any:
    return pytest.importorskip(request.param)


ONE_KERAS = pytest.mark.parametrize("keras", ["keras"], indirect=True)
"""For tests of our own code, which does not depend on the Keras release."""


@pytest.fixture(autouse=True)
def published(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Record what is shown, and check that the handler of interrupts is restored."""
    monkeypatch.setenv(frontend.VARIABLE, "never")
    shown: list[Any] = []

    def publish(data: Any, metadata: Any, *, display_id: str, update: bool) -> None:
        shown.append((data, display_id, update))

    monkeypatch.setattr(frontend, "publish", publish)
    monkeypatch.setattr(frontend, "is_kernel", lambda: True)
    before = signal.getsignal(signal.SIGINT)
    yield shown
    assert signal.getsignal(signal.SIGINT) is before


traced: dict[str, Any] = {}
"""Traced models, with their initial weights and learning rates."""


def compiled(keras: Any, strategy: Any = None, **options: Any) -> Any:
    """Return a model with the same initial weights each time; it is reused, as tracing takes long.

    Tests that need a second model, or interrupt it, call `new_model`.
    """
    key = f"{keras.__name__} {id(strategy)} {sorted(options.items())}"
    if callable(options.get("optimizer")):
        return new_model(keras, strategy, **options)
    if key not in traced:
        model = new_model(keras, strategy, **options)
        traced[key] = model, model.get_weights(), float(model.optimizer.learning_rate.numpy())
    model, weights, rate = traced[key]
    model.set_weights(weights)
    model.optimizer.learning_rate = rate
    model.optimizer.iterations.assign(0)
    return model


def new_model(keras: Any, strategy: Any = None, **options: Any) -> Any:
    options = {"optimizer": "sgd", "loss": "mse", **options}
    with strategy.scope() if strategy else contextlib.nullcontext():
        keras.utils.set_random_seed(3)
        layers = [keras.layers.Dense(6, "tanh"), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((4,)), *layers])
        optimizer = options.pop("optimizer")
        model.compile(optimizer() if callable(optimizer) else optimizer, **options)
    return model


def fit(model: Any, *callbacks: Any, **options: Any) -> Any:
    options = {"batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0, **options}
    return model.fit(X, Y, callbacks=list(callbacks), **options).history


def at_batch(keras: Any, number: int, action: Callable[[], None]) -> Any:
    """Return a callback that acts once, after a number of batches."""
    remaining = number

    def end(batch: int, logs: Any) -> None:
        nonlocal remaining
        remaining -= 1
        if remaining == 0:
            action()

    return keras.callbacks.LambdaCallback(on_train_batch_end=end)


@pytest.mark.parametrize(("replicas", "size"), [(2, 1), *thorough([(2, 4), (None, 4)])])
def test_a_fit(keras: Any, replicas: int | None, size: int) -> None:
    """The points are at the right steps, and the weights are the same as without LiveCurves."""
    strategy = virtual_tpu() if replicas else None
    reference = compiled(keras, strategy, metrics=["mae"], steps_per_execution=size)
    options = {"validation_data": (X[:16], Y[:16])}
    expected = fit(reference, **options)
    weights = reference.get_weights()
    model = compiled(keras, strategy, metrics=["mae"], steps_per_execution=size)
    live = LiveCurves()
    logged = fit(model, live, **options)
    history = live.history
    assert history is not None
    assert histories.latest_history() is history
    assert history.state == "finished"
    assert (history.name, history.total_steps) == ("run 1", 2 * STEPS)
    ends = [*range(size, STEPS, size), STEPS]
    steps = [*ends, *(STEPS + end for end in ends)]
    assert history.steps("loss").tolist() == steps
    assert history.steps("mae").tolist() == steps
    for name in ("val_loss", "val_mae"):
        assert history.steps(name).tolist() == [STEPS, 2 * STEPS]
        np.testing.assert_allclose(history.values(name), logged[name])
    for name in ("loss", "mae"):
        # All batches have the same size, so Keras's mean over an epoch is the mean of our points.
        lengths = np.diff([0, *ends])
        for epoch, points in enumerate(np.split(history.values(name), 2)):
            mean = np.average(points, weights=lengths)
            np.testing.assert_allclose(mean, logged[name][epoch], rtol=1e-5)
        np.testing.assert_allclose(logged[name], expected[name], rtol=1e-5)
    for expected_weight, weight in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_allclose(weight, expected_weight, rtol=0, atol=1e-6)


def losses_by_hand(model: Any, batch: int, size: int, epochs: int = 2) -> list[float]:
    """Compute the loss of each execution with NumPy, by plain gradient descent."""
    w0, b0, w1, b1 = (np.float64(each) for each in model.get_weights())
    losses: list[float] = []
    for _ in range(epochs):
        batch_losses = []
        for start in range(0, ROWS, batch):
            x, y = X[start : start + batch].astype(np.float64), Y[start : start + batch]
            hidden = np.tanh(x @ w0 + b0)
            error = hidden @ w1 + b1 - y
            batch_losses.append((len(x), float(np.mean(error**2))))
            slope = 2 * error / len(x)
            back = (slope @ w1.T) * (1 - hidden**2)
            w1, b1 = w1 - 0.01 * hidden.T @ slope, b1 - 0.01 * slope.sum(0)
            w0, b0 = w0 - 0.01 * x.T @ back, b0 - 0.01 * back.sum(0)
        for start_batch in range(0, len(batch_losses), size):
            rows, values = zip(*batch_losses[start_batch : start_batch + size], strict=True)
            losses.append(float(np.average(values, weights=rows)))
    return losses


@pytest.mark.parametrize(("batch", "size"), [(10, 1), (10, 4), *thorough([(8, 4), (ROWS, 1)])])
def test_the_loss_of_each_batch(keras: Any, batch: int, size: int) -> None:
    """The losses are NumPy's, even for a smaller last batch, and so is the best loss."""
    live = LiveCurves()
    model = compiled(keras, steps_per_execution=size)
    expected = losses_by_hand(model, batch, size)
    fit(model, live, batch_size=batch, validation_split=0.0)
    values = live.history.values("loss")
    np.testing.assert_allclose(values, expected, rtol=1e-4)
    step, best = live.history.best("loss")
    assert step == live.history.steps("loss")[np.argmin(expected)]
    assert best == values.min()


@pytest.mark.parametrize(
    ("cuts", "looks"),
    [
        # The second and the third batch together weigh twice as much as the first: 3 + 3 = 6 + 0.
        ([0, 3, 9, 10, 30, 37, 39, 69], {3, 4, 5, 6}),
        ([0, 3, 9, 10, 30, 37, 39, 69], set()),
        # The weights differ only late.
        ([*range(0, 44, 4), 50, 53, 62, 63, 70], {12}),
    ],
    ids=["often", "once", "late"],
)
def test_batches_of_any_size_and_weight(
    keras: Any, monkeypatch: pytest.MonkeyPatch, cuts: list[int], looks: set[int]
) -> None:
    """The mean of the points is Keras's mean, whenever the weights are examined."""
    now = itertools.count(0, 10).__next__  # each examination is later than the one before
    clock = SimpleNamespace(monotonic=lambda: at, sleep=time.sleep)
    monkeypatch.setattr(log_recorder, "time", clock)
    at = now()

    def begin(batch: int, logs: Any) -> None:
        nonlocal at
        if batch in looks:
            at = now()

    pairs = list(itertools.pairwise(cuts))
    importances = [np.linspace(0, 2, stop - start) for start, stop in pairs]

    def batches() -> Iterator[Any]:
        for (start, stop), importance in zip(pairs, importances, strict=True):
            yield X[start:stop], Y[start:stop], importance

    spec = tuple(tf.TensorSpec(shape) for shape in ([None, 4], [None, 1], [None]))
    data = tf.data.Dataset.from_generator(batches, output_signature=spec)
    data = data.apply(tf.data.experimental.assert_cardinality(len(pairs)))
    live = LiveCurves()
    model = new_model(keras, weighted_metrics=["mae"])
    ticking = keras.callbacks.LambdaCallback(on_train_batch_begin=begin)
    found = model.fit(data, epochs=1, verbose=0, callbacks=[ticking, live]).history
    for name, weights in (("loss", np.diff(cuts)), ("mae", [each.sum() for each in importances])):
        steps, values = live.history.columns(name)[1:3]
        assert steps[-1] == len(pairs)
        shares = np.diff([0.0, *np.cumsum(weights)[steps - 1]])
        np.testing.assert_allclose(np.average(values, weights=shares), found[name][0], rtol=1e-5)


@THOROUGH
def test_metrics_without_a_mean_have_a_point_for_each_epoch(keras: Any) -> None:
    live, batch = LiveCurves(), LiveCurves(per="batch")
    metrics = keras.metrics
    model = new_model(keras, metrics=[metrics.RootMeanSquaredError(name="rmse"), "mae"])
    for callback in (live, batch):
        logged = fit(model, callback, validation_data=(X, Y))
        history = callback.history
        assert history.steps("rmse").tolist() == [STEPS, 2 * STEPS]
        np.testing.assert_allclose(history.values("rmse"), logged["rmse"])
        assert len(history.steps("mae")) == 2 * STEPS
    assert "val_rmse" in live.history.metrics
    assert "val_rmse" not in batch.history.metrics
    per_epoch = LiveCurves(per="epoch")
    logged = fit(model, per_epoch)
    np.testing.assert_allclose(per_epoch.history.values("loss"), logged["loss"])


def test_values_of_a_custom_train_step_are_kept(keras: Any) -> None:
    """The loss is not a running mean, but the metric is."""

    class Model(keras.Model):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1)
            self.mean = keras.metrics.Mean(name="error")

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            error = tf.reduce_mean((self(x) - y) ** 2)
            self.mean.update_state(error)
            return {"error": self.mean.result(), "plain": error, "loss": 2 * error}

    model, live = Model(), LiveCurves()
    model.compile("sgd", "mse")
    fit(model, live)
    history = live.history
    assert len(history.steps("error")) == 2 * STEPS
    np.testing.assert_allclose(history.values("error"), history.values("plain"), rtol=1e-4)
    np.testing.assert_allclose(history.values("loss"), 2 * history.values("plain"), rtol=1e-6)


@ONE_KERAS
@pytest.mark.parametrize(("per", "points", "validations"), [("batch", 20, 0), ("epoch", 2, 2)])
def test_per(keras: Any, per: str, points: int, validations: int) -> None:
    live = LiveCurves(per=per)
    fit(compiled(keras), live, validation_split=1 / 3, batch_size=BATCH * 2 // 3)
    history = live.history
    assert len(history) == points
    assert ("val_loss" in history.metrics) == bool(validations)
    if per == "epoch":
        assert history.steps("loss").tolist() == history.steps("val_loss").tolist() == [10, 20]


@pytest.mark.parametrize("per", ["step", "", None])
def test_a_wrong_per(per: Any) -> None:
    with pytest.raises(ValueError, match="'auto', 'batch' or 'epoch'"):
        LiveCurves(per=per)


@pytest.mark.parametrize("metrics", [3, ["loss", 3]])
def test_wrong_metrics(metrics: Any) -> None:
    with pytest.raises(TypeError):
        LiveCurves(metrics)


@ONE_KERAS
def test_metrics_that_are_never_logged(keras: Any) -> None:
    with pytest.warns(
        UserWarning, match="Keras logs no metric 'acuracy'. The metrics are: loss, mae"
    ):
        fit(compiled(keras, metrics=["mae"]), LiveCurves(["loss", "acuracy"]))
    with pytest.warns(UserWarning, match="Keras logs no metric 'val_loss'"):
        fit(compiled(keras), LiveCurves(["val_loss"]))


@ONE_KERAS
def test_chosen_metrics(keras: Any, published: list[Any]) -> None:
    """The display has the chosen metrics, also by their panel's name; the history has all."""
    live = LiveCurves("mae")
    fit(compiled(keras, metrics=["mae"]), live, validation_data=(X, Y))
    ((bundle, _, update),) = published
    assert bundle["text/plain"] == "Training curves · mae · 18 steps"
    assert not update
    assert {"loss", "mae", "val_loss", "val_mae"} == set(live.history.metrics)


@ONE_KERAS
def test_the_static_form_is_the_same_after_every_run(keras: Any, published: list[Any]) -> None:
    for _ in range(2):
        fit(compiled(keras), LiveCurves())
    (first, _, _), (second, _, _) = published
    assert first.keys() == {"text/plain", "image/png"}
    assert first["image/png"][:4] == b"\x89PNG"
    assert first == second


@ONE_KERAS
def test_a_live_display_becomes_a_picture(
    keras: Any, published: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(frontend.VARIABLE, "always")
    during: list[int] = []
    count = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: during.append(len(published)))
    fit(compiled(keras), LiveCurves(), count)
    assert during == [1, 1]
    (live, live_id, update), (static, static_id, is_update) = published
    assert "application/vnd.jupyter.widget-view+json" in live
    assert static.keys() == {"text/plain", "image/png"}
    assert (live_id, update, is_update) == (static_id, False, True)
    assert live["text/plain"] == static["text/plain"]


def test_results_of_fit_can_be_shown(keras: Any) -> None:
    """A single record, several, and named records together with a history of batches."""
    live = LiveCurves()
    model = compiled(keras)
    settings = {"batch_size": BATCH, "shuffle": False, "verbose": 0, "callbacks": [live]}
    first = model.fit(X, Y, epochs=2, **settings)
    second = model.fit(X, Y, epochs=3, **settings)
    widgets = [
        tpunb.show(first),
        tpunb.show([first, second]),
        tpunb.show({"lr 0.1": first, "batches": live.runs[1]}),
    ]
    assert [repr(widget) for widget in widgets] == [
        f"Training curves · loss · {2 * STEPS} steps",
        f"Training curves · 2 runs · loss · {3 * STEPS} steps",
        f"Training curves · 2 runs: lr 0.1, batches · loss · {3 * STEPS} steps",
    ]
    at_epochs, at_batches = widgets[-1].histories
    assert at_epochs.steps("loss").tolist() == [STEPS, 2 * STEPS]
    assert at_epochs.values("loss").tolist() == first.history["loss"]
    assert len(at_batches) == 3 * STEPS
    assert live.runs[1].name == "run 2"  # the names are used only in this comparison
    names = [run["name"] for run in widgets[-1]._stream.delta()[0]["runs"]]
    assert names == ["lr 0.1", "batches"]
    for widget in widgets:
        widget.close()


@ONE_KERAS
def test_runs_are_compared(keras: Any, published: list[Any]) -> None:
    live = LiveCurves()
    model = compiled(keras)
    fit(model, live)
    fit(model, live, initial_epoch=2, epochs=3)
    assert [run.name for run in live.runs] == ["run 1", "run 2"]
    assert live.runs[1].steps("loss").tolist() == list(range(2 * STEPS + 1, 3 * STEPS + 1))
    assert live.runs[1].total_steps == 3 * STEPS
    assert published[-1][0]["text/plain"] == "Training curves · 2 runs · loss · 27 steps"


@ONE_KERAS
def test_names_of_runs(keras: Any) -> None:
    live = LiveCurves(name="lr 1e-2")
    model = compiled(keras)
    fit(model, live, epochs=1)
    live.name = None
    fit(model, live, epochs=1)
    assert [run.name for run in live.runs] == ["lr 1e-2", "run 2"]
    assert repr(LiveCurves(name="a")) == "LiveCurves(per='auto', name='a')"
    with pytest.raises(TypeError, match="a run must be a string, not int"):
        LiveCurves(name=3)  # type: ignore[arg-type]


def batches() -> Iterator[Any]:
    for start in range(0, ROWS, BATCH):
        yield X[start : start + BATCH], Y[start : start + BATCH]


def unknown_length() -> Any:
    signature = (tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1]))
    return tf.data.Dataset.from_generator(batches, output_signature=signature)


@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
def test_data_of_unknown_length(keras: Any) -> None:
    live = LiveCurves()
    model = compiled(keras)
    model.fit(unknown_length(), epochs=2, verbose=0, callbacks=[live])
    assert live.history.total_steps == 2 * STEPS
    assert live.history.steps("loss").tolist() == list(range(1, 2 * STEPS + 1))
    model.fit(unknown_length(), epochs=3, initial_epoch=2, verbose=0, callbacks=[live])
    assert live.history.steps("loss").tolist() == list(range(2 * STEPS + 1, 3 * STEPS + 1))


def test_evaluate_and_predict(keras: Any, published: list[Any]) -> None:
    live = LiveCurves()
    model = compiled(keras)
    model.evaluate(X, Y, verbose=0, callbacks=[live])
    model.predict(X, verbose=0, callbacks=[live])
    assert live.runs == []
    assert published == []
    fit(model, live)
    model.evaluate(X, Y, verbose=0, callbacks=[live])
    assert len(live.runs) == 1
    assert live.history.state == "finished"


def test_a_constant_learning_rate_is_not_recorded(keras: Any) -> None:
    live, requested = LiveCurves(), LiveCurves(["learning_rate"])
    model = compiled(keras)
    fit(model, live)
    fit(model, requested)
    assert live.history.metrics == ["loss"]
    np.testing.assert_allclose(requested.history.values("learning_rate"), 0.01)


@pytest.mark.parametrize("replicas", [None, *thorough([2])])
def test_the_learning_rate_of_a_schedule(keras: Any, replicas: int | None) -> None:
    def optimizer() -> Any:
        schedule = keras.optimizers.schedules.PolynomialDecay(0.1, 18, 0.01)
        return keras.optimizers.SGD(schedule)

    live = LiveCurves()
    strategy = virtual_tpu() if replicas else None
    fit(compiled(keras, strategy, optimizer=optimizer), live)
    steps = live.history.steps("learning_rate")
    assert steps.tolist() == list(range(1, 19))
    expected = 0.1 - 0.09 * (steps - 1) / 18
    np.testing.assert_allclose(live.history.values("learning_rate"), expected, rtol=1e-5)


def test_a_learning_rate_changed_by_a_callback(keras: Any) -> None:
    live = LiveCurves(per="epoch")
    halve = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.1 / 2**epoch)
    fit(compiled(keras), halve, live, epochs=3)
    rates = dict(zip(*live.history.columns("learning_rate")[1:3], strict=True))
    np.testing.assert_allclose([rates[1], rates[10], rates[19]], [0.1, 0.05, 0.025])
    assert "lr" not in live.history.metrics


def test_early_stopping(keras: Any) -> None:
    early = keras.callbacks.EarlyStopping(
        "val_loss", patience=1, min_delta=10.0, restore_best_weights=True
    )
    live = LiveCurves()
    fit(compiled(keras), live, early, epochs=5, validation_data=(X, Y))
    assert live.history.state == "finished"
    assert live.history.last_step == 2 * STEPS
    assert "best val_loss in epoch 1 (step 9), whose weights are restored" in live.summary


@ONE_KERAS
def test_summaries(keras: Any) -> None:
    live = LiveCurves()
    assert live.summary == "no run yet"
    fit(compiled(keras), live)
    step, value = live.history.best("loss")
    assert live.summary == f"run 1: finished at step 18; best loss {value:.4g} at step {step}"


@pytest.mark.parametrize("replicas", [2, *thorough([None])])
def test_stopping(keras: Any, replicas: int | None, published: list[Any]) -> None:
    """The model has the weights after the finished steps, and training can continue."""
    strategy = virtual_tpu() if replicas else None
    model, live = new_model(keras, strategy), LiveCurves()
    with pytest.raises(
        Stopped, match=r"after 12 steps, in epoch 2\. .*continue with epoch 2: .*initial_epoch=1\)"
    ):
        fit(model, live, at_batch(keras, 12, press), epochs=5)
    assert live.history.state == "stopped"
    assert live.history.steps("loss").tolist() == list(range(1, 13))
    assert len(published) == 1
    assert live.summary.startswith("run 1: stopped at step 12")
    assert model.history.epoch == [0]
    reference = compiled(keras, strategy)
    fit(reference, epochs=1)
    reference.fit(X[:24], Y[:24], batch_size=BATCH, shuffle=False, verbose=0)
    for expected, weight in zip(reference.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(weight, expected, rtol=0, atol=1e-6)
    fit(model, live, initial_epoch=1, epochs=2)
    assert live.history.steps("loss")[0] == STEPS + 1
    assert live.history.state == "finished"


def test_stopping_between_executions(keras: Any) -> None:
    live = LiveCurves()
    model = new_model(keras, steps_per_execution=4)
    with pytest.raises(Stopped, match="after 8 steps, in epoch 1"):
        fit(model, live, at_batch(keras, 2, press))
    assert live.history.steps("loss").tolist() == [4, 8]


def test_stopping_in_validation(keras: Any) -> None:
    live = LiveCurves()
    with pytest.raises(Stopped, match=r"after 9 steps, in epoch 1\. .*initial_epoch=1"):
        fit(
            new_model(keras),
            live,
            at_batch(keras, STEPS, press),
            validation_data=(X, Y),
        )
    assert live.history.metrics == ["loss"]


@ONE_KERAS
def test_a_press_from_a_timer(keras: Any) -> None:
    live, timer = LiveCurves(), threading.Timer(0.5, press)
    start = at_batch(keras, 1, timer.start)
    with pytest.raises(Stopped):
        fit(new_model(keras), live, start, epochs=100_000)
    assert live.history.state == "stopped"
    steps = live.history.steps("loss")
    assert steps.tolist() == list(range(1, len(steps) + 1))


def test_an_endless_batch(keras: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a notebook the batch is cancelled, and the run ends with its cell."""
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    monkeypatch.setattr("tpunb.keras.stopping._GRACE", 0.2)
    rounds = tf.Variable(0.0, trainable=False)

    class Endless(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            def body(y: Any) -> Any:
                rounds.assign_add(1.0)
                return (y + 0.0 * rounds,)

            return tf.while_loop(lambda _: rounds >= 0.0, body, (x,))[0]

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1), Endless()])
    model.compile("sgd", "mse")
    live, calls = LiveCurves(), StoppableCalls()
    shell.push({"fit": lambda: fit(model, live), "calls": calls})
    with When(lambda: rounds.numpy() > 0):
        result = shell.run_cell("with calls:\n    fit()")
    # A loop that was not cancelled would occupy a processor during later tests.
    rounds.assign(-math.inf)
    wait_until(lambda: not calls.left_behind)
    assert isinstance(result.error_in_exec, Stopped)
    assert "ended inside a batch, after 0 steps, in epoch 1" in str(result.error_in_exec)
    assert live.history.state == "stopped"
    assert model.history.params["epochs"] == 2
    calls.close()


@ONE_KERAS
def test_a_callback_is_not_cut_short(keras: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpunb.keras.stopping._GRACE", 0.0)
    live, calls, written = LiveCurves(), StoppableCalls(), []

    def write() -> None:
        press()
        written.extend(time.sleep(0.02) for _ in range(10))  # the reminder arrives meanwhile

    with calls, pytest.raises(Stopped):
        fit(new_model(keras), live, at_batch(keras, 3, write), epochs=100)
    assert len(written) == 10
    live._abandon()
    calls.close()


@ONE_KERAS
def test_two_live_curves_in_one_fit(keras: Any) -> None:
    """A press stops both, and the handler of interrupts is restored (`published` checks this)."""
    both = LiveCurves(per="batch"), LiveCurves(per="epoch")
    fit(compiled(keras), *both)
    assert [live.history.state for live in both] == ["finished", "finished"]
    with pytest.raises(Stopped, match="after 2 steps"):
        fit(compiled(keras), *both, at_batch(keras, 2, press), epochs=3)
    assert [live.history.state for live in both] == ["stopped", "stopped"]


@ONE_KERAS
def test_a_second_press_is_an_ordinary_interrupt(keras: Any) -> None:
    def twice() -> None:
        press()
        press()

    live = LiveCurves()
    with pytest.raises(KeyboardInterrupt) as raised:
        fit(new_model(keras), live, at_batch(keras, 3, twice))
    assert not isinstance(raised.value, Stopped)
    fit(compiled(keras), live)  # closes what the interrupt left open
    assert [run.state for run in live.runs] == ["stopped", "finished"]


def failing(keras: Any, live: LiveCurves) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fit(new_model(keras), live, at_batch(keras, 3, fail))


@ONE_KERAS
def test_an_interrupt_after_an_error_is_not_lost(keras: Any) -> None:
    live = LiveCurves()
    failing(keras, live)
    with pytest.raises(KeyboardInterrupt):
        press()


@ONE_KERAS
def test_an_error_ends_the_run_with_its_cell(
    keras: Any, published: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    live = LiveCurves()
    before = signal.getsignal(signal.SIGINT)
    shell.push({"go": lambda: failing(keras, live)})
    result = shell.run_cell("go()")
    result.raise_error()
    assert live.history.state == "stopped"
    assert len(published) == 1
    assert signal.getsignal(signal.SIGINT) is before
    assert not [
        callback
        for callback in shell.events.callbacks["post_run_cell"]
        if "TrainingGuard" in repr(callback)
    ]


@ONE_KERAS
def test_a_fit_on_another_thread(keras: Any) -> None:
    live = LiveCurves()
    thread = threading.Thread(target=lambda: fit(new_model(keras), live))
    thread.start()
    thread.join()
    assert live.history.state == "finished"
    assert len(live.history) == 2 * STEPS


def test_nan_warns_once(keras: Any) -> None:
    live = LiveCurves()
    model = new_model(keras)
    spoil = at_batch(
        keras, 12, lambda: model.set_weights([w * np.nan for w in model.get_weights()])
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(model, live, spoil)
    messages = [str(warning.message) for warning in caught if warning.category is RuntimeWarning]
    assert len(messages) == 1
    assert messages[0].startswith("'loss' is NaN at step 13 of run 1")
    assert live.history.first_nonfinite("loss") == 13


@ONE_KERAS
@pytest.mark.parametrize(
    "make", [lambda live: pickle.loads(pickle.dumps(live)), *thorough([copy.deepcopy])]
)
def test_copies(keras: Any, make: Callable[[LiveCurves], LiveCurves]) -> None:
    live = LiveCurves(["loss"], per="epoch")
    fit(compiled(keras), live)
    twin = make(live)
    assert repr(twin) == "LiveCurves(metrics=['loss'], per='epoch')"
    assert twin.history is None
    fit(compiled(keras), twin)
    assert isinstance(twin.history, History)
    assert twin.history.steps("loss").tolist() == [9, 18]


def test_other_callbacks(keras: Any, tmp_path: Any) -> None:
    c = keras.callbacks
    live = LiveCurves()
    fit(compiled(keras), c.CSVLogger(str(tmp_path / "a.csv")), live, c.TerminateOnNaN())
    assert len(live.history) == 2 * STEPS


def test_a_loss_that_falls_to_zero_is_never_negative() -> None:
    """The values come from rounded means, which do not give zero to the last digit."""
    losses = np.concatenate([np.geomspace(1.0, 1e-6, 50), np.zeros(400)])
    means = (np.cumsum(losses) / np.arange(1, 451)).astype("float32")
    values = BatchValues(SimpleNamespace())
    rows = [(step, float(mean)) for step, mean in enumerate(means, 1)]
    undone = dict(values._undone("loss", rows, math.nan, ends=True))
    assert min(undone.values()) >= 0.0
    assert len(undone) == 450
    np.testing.assert_allclose([*undone.values()], losses, atol=450 * 2.0**-23)
    # The sign of other values stays.
    rows = [(step, -mean) for step, mean in rows[:50]]
    assert max(value for _, value in values._undone("other", rows, math.nan, ends=True)) < 0.0
