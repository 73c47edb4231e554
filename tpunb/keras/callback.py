"""Live training curves of `fit`, for Keras 3 and tf_keras."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

from tpunb import framework
from tpunb._util.interrupts import Stopped, is_tracing
from tpunb.display.describe.history_description import is_shown
from tpunb.display.live_progress import CurvesDisplay
from tpunb.keras.log_recorder import RATE, RATE_NAMES, LogRecorder
from tpunb.keras.stopping import TrainingGuard, callback_list
from tpunb.machine.keras_internals import ignored_by_keras
from tpunb.training.history import History, remember_history

_PER = ("auto", "batch", "epoch")


class _Fit(NamedTuple):
    """The state of one training."""

    curves: LogRecorder
    display: CurvesDisplay
    guard: TrainingGuard


@ignored_by_keras
def _ignored(self: Any, *_: Any, **__: Any) -> None:
    """Do nothing in this hook."""


class LiveCurves:
    """A callback that draws the curves of `fit` while it trains.

        model.fit(x, y, epochs=5, callbacks=[tpunb.LiveCurves()])

    The same class serves Keras 3 and tf_keras. If widgets can run, the curves grow live, and a
    picture replaces them at the end. Otherwise the picture is shown once, at the end. Each
    `fit` with the same callback is a separate run, drawn over the earlier runs. A copy of the
    callback starts without runs.

    Steps count batches, over all epochs. With `initial_epoch` they continue where that epoch
    begins. With `steps_per_execution` each execution has one point, at its last step. Within an
    epoch Keras logs the mean since the epoch's start. The curve shows the value of each batch,
    or execution, which follows from that mean. A metric that is not a mean, such as an AUC, has
    points only at the ends of epochs. The learning rate is the metric `learning_rate`, once it
    changes. Values are fetched after later batches have started, so training does not wait for
    them.

    The stop button ends training between two executions with `Stopped`, a `KeyboardInterrupt`.
    Weights and curves are kept, and `model.history` is the value that `fit` would have returned.
    In a notebook, an execution that takes longer than a second is cancelled. A second press is
    an ordinary interrupt.

    Args:
        metrics: Names of metrics or panels to show; the panel `loss` includes `val_loss`. None
            shows all. The history keeps all of them.
        per: `batch` draws a point per batch or execution. `epoch` draws a point at each epoch's
            end, with validation and Keras's means over the epoch. `auto` draws a point per
            batch, and a point per epoch for metrics without values of batches.
        name: The name of the next run, such as `"lr 1e-3"`; None for `run 1`, `run 2`.

    Attributes:
        name: The name of the next run.
        runs: The history of each run, the latest last.

    Raises:
        TypeError: If `metrics` is not a name or an iterable of names, or `name` is not a string.
        ValueError: If `per` is none of the three values.
    """

    # Keras 3 then calls the end of a batch on another thread, and starts the next batch
    # without waiting for values.
    async_safe = True
    # tf_keras then passes tensors, so that this class decides when to fetch the values.
    _supports_tf_logs = True
    _chief_worker_only = None

    def __init__(
        self,
        metrics: Iterable[str] | None = None,
        per: str = "auto",
        *,
        name: str | None = None,
    ) -> None:
        if per not in _PER:
            raise ValueError(f"per must be 'auto', 'batch' or 'epoch', not {per!r}")
        if not isinstance(name, str | None):
            raise TypeError(f"the name of a run must be a string, not {type(name).__name__}")
        self.name = name
        self._metrics: tuple[str, ...] | None = None
        if metrics is not None:
            self._metrics = (metrics,) if isinstance(metrics, str) else tuple(metrics)
            for metric in self._metrics:
                if not isinstance(metric, str):
                    raise TypeError(f"the name of a metric must be a string, not {metric!r}")
        self._per = per
        self._reset()

    def _reset(self) -> None:
        self.runs: list[History] = []
        self.params: dict[str, Any] = {}
        self.model: Any = None
        self._fit: _Fit | None = None
        self._early: Any = None
        self._warned = False
        self._epoch_ends: dict[int, int] = {}

    # A copy, which tuners make, is for another model.
    def __getstate__(self) -> dict[str, Any]:
        return {"metrics": self._metrics, "per": self._per, "name": self.name}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._metrics, self._per, self.name = state["metrics"], state["per"], state["name"]
        self._reset()

    def __repr__(self) -> str:
        shown = "" if self._metrics is None else f"metrics={list(self._metrics)!r}, "
        named = "" if self.name is None else f", name={self.name!r}"
        return f"LiveCurves({shown}per={self._per!r}{named})"

    @property
    def history(self) -> History | None:
        """The history of the last run, or None before the first run."""
        return self.runs[-1] if self.runs else None

    @property
    def summary(self) -> str:
        """The result of the last run with its best epoch, on one line."""
        history = self.history
        if history is None:
            return "no run yet"
        text = f"{history.name}: {history.state} at step {history.last_step or 0}"
        early = self._early
        monitored = getattr(early, "monitor", None) or "val_loss"
        names = (monitored, "val_loss", "loss")
        name = next((each for each in names if each in history.metrics), "")
        epoch = getattr(early, "best_epoch", None)
        if name == monitored and epoch is not None:
            step = self._epoch_ends.get(epoch)
            stopped = getattr(early, "stopped_epoch", 0) > 0
            restored = stopped and getattr(early, "restore_best_weights", False)
            kept = ", whose weights are restored" if restored else ""
            return f"{text}; best {name} in epoch {epoch + 1} (step {step}){kept}"
        try:
            step, value = history.best(name)
        except (KeyError, ValueError):
            return text
        return f"{text}; best {name} {value:.4g} at step {step}"

    # Keras calls these setters.
    def set_params(self, params: dict[str, Any] | None) -> None:
        """Store the training's parameters: epochs and steps."""
        self.params = params or {}

    def set_model(self, model: Any) -> None:
        """Store the model that is trained, evaluated or used to predict."""
        self.model = model

    def _implements_train_batch_hooks(self) -> bool:
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return True

    def _implements_predict_batch_hooks(self) -> bool:
        return False

    on_batch_begin = on_batch_end = on_test_batch_end = on_test_end = _ignored
    on_predict_begin = on_predict_end = _ignored
    on_predict_batch_begin = on_predict_batch_end = _ignored

    def on_train_begin(self, logs: Any = None) -> None:
        """Start a run, and show its curves if widgets can run."""
        from tpunb.connection.tpu_connection import latest_connection

        self._abandon()
        owner = callback_list(self, sys._getframe(1))
        steps, epochs = self.params.get("steps"), self.params.get("epochs")
        history = History(
            self.name or f"run {len(self.runs) + 1}",
            total_steps=steps * epochs if steps and epochs else None,
        )
        history.notes = _notes(self.model)
        self.runs.append(history)
        remember_history(history)
        callbacks = getattr(owner, "callbacks", None) or ()
        self._early = next((each for each in callbacks if hasattr(each, "stopped_epoch")), None)
        rate = self._metrics is not None and RATE in self._metrics
        # The expected metrics, as far as the model knows them before its first batch.
        known = self._metrics
        if known is None:
            known = getattr(self.model, "metrics_names", None) or ()
        awaited = [name for name in known if isinstance(name, str)]
        connection = latest_connection()
        link = connection.link if connection is not None else ""
        self._warned = False
        self._fit = _Fit(
            LogRecorder(history, self.model, self.params, self._per, rate=rate),
            CurvesDisplay(self.runs, self._metrics, link, awaited=awaited),
            TrainingGuard(owner, self._abandon, self._overdue),
        )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Determine the step at which the epoch begins."""
        if self._fit is None:
            return
        self._stop_if_pressed()
        self._fit.curves.begin_epoch(epoch, self._epoch_ends.get(epoch - 1))

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Collect the logs of earlier batches, and stop training if the button was pressed."""
        fit = self._fit
        if fit is None:
            return
        if fit.guard.button.pressed:
            self._stop_if_pressed()
        fit.curves.begin_batch(batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Store the batch's logs. Keras 3 may call this on another thread."""
        if self._fit is not None:
            self._fit.curves.arrived.append((batch, logs or {}))

    def on_test_begin(self, logs: Any = None) -> None:
        """Show the epoch's values while validation runs."""
        if self._fit is not None:
            self._fit.curves.begin_validation()

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Stop training during validation if the button was pressed."""
        if self._fit is not None and self._fit.guard.button.pressed:
            self._stop_if_pressed()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Add the values that are logged once per epoch, such as validation."""
        if self._fit is None:
            return
        curves = self._fit.curves
        self._epoch_ends[epoch] = curves.end_epoch(logs or {})
        self._warn_of_names(curves, final=False)

    def on_train_end(self, logs: Any = None) -> None:
        """Replace the live curves with the picture."""
        if self._fit is None:
            return
        curves, pressed = self._fit.curves, self._fit.guard.button.pressed
        self._finish(stopped=False)
        self._warn_of_names(curves, final=True)
        if pressed:  # too late to stop training, but not the code after it
            raise Stopped("Training was already complete. Nothing is lost.")

    def _stop_if_pressed(self) -> None:
        fit = self._fit
        if fit is None or not fit.guard.button.pressed:
            return
        fit.curves.wait()
        beside = [each for each in fit.guard.callbacks if isinstance(each, LiveCurves)]
        self._finish(stopped=True)
        for other in beside:  # Keras calls no callback after this
            other._abandon()
        raise Stopped(_account(fit.curves))

    def _overdue(self) -> BaseException:
        """Return the exception that ends a trace or a long batch. The run ends with its cell."""
        if self._fit is None:
            return KeyboardInterrupt()
        self._fit.curves.collect()
        return Stopped(_account(self._fit.curves, half_done=not is_tracing()))

    def _finish(self, *, stopped: bool) -> None:
        fit, self._fit = self._fit, None
        if fit is None:
            return
        fit.guard.leave()
        if stopped and hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()  # within an epoch, its variables are empty
        if stopped and (keras_history := fit.guard.keras_history) is not None:
            self.model.history = keras_history  # Keras does this at the end of training
        fit.curves.collect(all_rows=True)
        fit.curves.history.finish(stopped=stopped)
        fit.display.close()

    def _abandon(self) -> None:
        """End a run after an error, when Keras calls no callback."""
        self._finish(stopped=True)

    def _warn_of_names(self, curves: LogRecorder, *, final: bool) -> None:
        """Warn of requested metrics that do not exist, as soon as that is certain."""
        there = curves.history.metrics
        # Validation may be rare, and the learning rate may change late.
        missing = [
            name
            for name in self._metrics or ()
            if (final or not (name in RATE_NAMES or name.startswith("val_")))
            and not any(is_shown(each, frozenset([name])) for each in there)
        ]
        if missing and not self._warned:
            self._warned = True
            warnings.warn(
                f"LiveCurves: Keras logs no metric {', '.join(map(repr, missing))}. "
                f"The metrics are: {', '.join(there) or 'none'}.",
                UserWarning,
                stacklevel=3,
            )


def _notes(model: Any) -> dict[str, str]:
    """Return notes on this training, including those known before its first step."""
    if "tensorflow" not in sys.modules:
        return {}  # Keras 3 runs on another backend
    return framework.tensorflow().notes_of_fit(model)


def _account(curves: LogRecorder, *, half_done: bool = False) -> str:
    """Return a sentence about the state of a stopped training, and how to continue."""
    done = "1 step" if curves.done == 1 else f"{curves.done} steps"
    epoch = curves.epoch + curves.epoch_is_done
    where, kept = "", "The model keeps its weights"
    if half_done:
        where, kept = "inside a batch, ", "Variables keep the values assigned until then"
    return (
        f"Training ended {where}after {done}, in epoch {curves.epoch + 1}. {kept}, "
        f"and the history keeps its curves. To continue with epoch {epoch + 1}: "
        f"fit(..., initial_epoch={epoch})."
    )
