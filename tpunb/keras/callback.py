"""Live training curves of `fit`, for Keras 3 and tf_keras."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

from tpunb.display.describe.history_description import is_wanted
from tpunb.display.live_progress import CurvesDisplay
from tpunb.keras.log_recorder import RATE, RATE_NAMES, LogRecorder
from tpunb.keras.stopping import TrainingGuard, callback_list
from tpunb.training.history import History, remember_history
from tpunb.training.stop_button import Stopped
from tpunb.virtual.keras_internals import ignored_by_keras

_PER = ("auto", "batch", "epoch")


class _Fit(NamedTuple):
    """The state of one training."""

    curves: LogRecorder
    display: CurvesDisplay
    guard: TrainingGuard


@ignored_by_keras
def _ignored(self: Any, *_: Any, **__: Any) -> None:
    """A hook that has nothing to do."""


class LiveCurves:
    """A callback that draws the curves of `fit` while it trains.

        model.fit(x, y, epochs=5, callbacks=[tpunb.LiveCurves()])

    The same class serves Keras 3 and tf_keras. Where widgets can run the curves grow
    live, and a picture takes their place at the end; elsewhere the picture is shown once
    at the end. Each `fit` with the same callback is a run of its own, drawn over the
    runs before it. A copy of the callback starts without runs.

    Steps count batches, over all epochs; with `initial_epoch` they continue where that epoch
    begins. With `steps_per_execution` there is a point for each execution, at its last
    step. Within an epoch Keras logs the mean since the epoch's start; what is drawn is the
    value of each batch, or execution, which that mean implies. A metric that is no mean, such
    as an AUC, has points at the epochs' ends only.
    The learning rate is a metric, `learning_rate`, once it changes. Values are fetched
    after later batches have been started, so that training does not wait for them.

    The stop button ends training between two executions with `tpunb.training.stop_button.Stopped`:
    weights and curves are kept, and `model.history` is what `fit` would have returned. In a
    notebook an execution that takes longer than a second is cancelled. A second press is an
    ordinary interrupt.

    Args:
        metrics: Names of metrics to show, or of panels: `loss` is also `val_loss`; None
            for all. The history keeps all of them.
        per: `batch` for a point per batch, or per execution; `epoch` for a point at each
            epoch's end, with validation and Keras's means over the epoch; `auto` for a
            point per batch, and one per epoch of what batches do not have.
        name: The name of the next run, such as `"lr 1e-3"`; None for `run 1`, `run 2`.

    Attributes:
        name: The name of the next run.
        runs: The history of each run, the last one at the end.

    Raises:
        TypeError: If `metrics` is no name and no iterable of names, or `name` no string.
        ValueError: If `per` is none of the three.
    """

    # Keras 3 calls the end of a batch on another thread, then, and waits for no value
    # before it starts the next batch.
    async_safe = True
    # tf_keras leaves it to us to fetch the values from the devices.
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
            raise ValueError(f"per is 'auto', 'batch' or 'epoch', not {per!r}")
        if not isinstance(name, str | None):
            raise TypeError(f"the name of a run is a string, not {type(name).__name__}")
        self.name = name
        self._metrics: tuple[str, ...] | None = None
        if metrics is not None:
            self._metrics = (metrics,) if isinstance(metrics, str) else tuple(metrics)
            for each in self._metrics:
                if not isinstance(each, str):
                    raise TypeError(f"the name of a metric is a string, not {each!r}")
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

    # A copy, as tuners make them, is for another model.
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
        """The history of the last run; None before the first."""
        return self.runs[-1] if self.runs else None

    @property
    def summary(self) -> str:
        """The result of the last run, with its best epoch, in a line."""
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

    # What Keras sets.
    def set_params(self, params: dict[str, Any] | None) -> None:
        """Stores the training's parameters: epochs and steps."""
        self.params = params or {}

    def set_model(self, model: Any) -> None:
        """Stores the model that is trained, evaluated or used to predict."""
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
        """Starts a run, and shows its curves where widgets can run."""
        from tpunb.connection.connection import latest_connection

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
        # The metrics that will come, as far as the model knows them before its first batch.
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
        """Finds the step at which the epoch begins."""
        if self._fit is None:
            return
        self._stop_if_pressed()
        self._fit.curves.begin_epoch(epoch, self._epoch_ends.get(epoch - 1))

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Collects the logs of earlier batches; here training can be stopped."""
        fit = self._fit
        if fit is None:
            return
        if fit.guard.button.pressed:
            self._stop_if_pressed()
        fit.curves.begin_batch(batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes the batch's logs; with Keras 3 this may be on another thread."""
        if self._fit is not None:
            self._fit.curves.arrived.append((batch, logs or {}))

    def on_test_begin(self, logs: Any = None) -> None:
        """Shows the epoch's values while validation runs."""
        if self._fit is not None:
            self._fit.curves.begin_validation()

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Lets training be stopped during validation."""
        if self._fit is not None and self._fit.guard.button.pressed:
            self._stop_if_pressed()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds what is logged once in an epoch, such as validation."""
        if self._fit is None:
            return
        curves = self._fit.curves
        self._epoch_ends[epoch] = curves.end_epoch(logs or {})
        self._warn_of_names(curves, final=False)

    def on_train_end(self, logs: Any = None) -> None:
        """Replaces the live curves by the picture."""
        if self._fit is None:
            return
        curves, pressed = self._fit.curves, self._fit.guard.button.pressed
        self._finish(stopped=False)
        self._warn_of_names(curves, final=True)
        if pressed:  # too late to stop anything here, but not what comes after
            raise Stopped("Training was done when the stop button was noticed; nothing is lost.")

    def _stop_if_pressed(self) -> None:
        fit = self._fit
        if fit is None or not fit.guard.button.pressed:
            return
        fit.curves.wait()
        beside = [each for each in fit.guard.callbacks if isinstance(each, LiveCurves)]
        self._finish(stopped=True)
        for other in beside:  # Keras calls no callback any more
            other._abandon()
        raise Stopped(_account(fit.curves))

    def _overdue(self) -> BaseException:
        """The exception that ends a batch that takes too long; the run ends with its cell."""
        if self._fit is None:
            return KeyboardInterrupt()
        self._fit.curves.collect()
        return Stopped(_account(self._fit.curves, half_done=True))

    def _finish(self, *, stopped: bool) -> None:
        fit, self._fit = self._fit, None
        if fit is None:
            return
        fit.guard.leave()
        if stopped and hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()  # within an epoch its variables hold nothing
        if stopped and (kept := fit.guard.keras_history) is not None:
            self.model.history = kept  # Keras does so at an epoch's end
        fit.curves.collect(all_rows=True)
        fit.curves.history.finish(stopped=stopped)
        fit.display.close()

    def _abandon(self) -> None:
        """Ends a run that an error has ended: Keras calls no callback then."""
        self._finish(stopped=True)

    def _warn_of_names(self, curves: LogRecorder, *, final: bool) -> None:
        """Warns of metrics that were asked for and do not come, as soon as that is clear."""
        there = curves.history.metrics
        # Validation may be seldom, and the rate may change late.
        missing = [
            name
            for name in self._metrics or ()
            if (final or not (name in RATE_NAMES or name.startswith("val_")))
            and not any(is_wanted(each, frozenset([name])) for each in there)
        ]
        if missing and not self._warned:
            self._warned = True
            warnings.warn(
                f"LiveCurves: nothing is logged as {', '.join(map(repr, missing))}; "
                f"there are: {', '.join(there) or 'no metrics'}",
                UserWarning,
                stacklevel=3,
            )


def _notes(model: Any) -> dict[str, str]:
    """Notes about this training; there may be some before its first step."""
    if "tensorflow" not in sys.modules:
        return {}  # another backend of Keras 3
    from tpunb.virtual import fit_notes

    notes = fit_notes.notes_of(model)
    if fit_notes.LOST not in notes and (lost := fit_notes.lost_variables(model)):
        notes[fit_notes.LOST] = lost
    return notes


def _account(curves: LogRecorder, *, half_done: bool = False) -> str:
    """Says what a stopped training has done, and how to continue."""
    done = "1 step" if curves.done == 1 else f"{curves.done} steps"
    epoch = curves.epoch + curves.epoch_is_done
    where, kept = "", "The model keeps its weights"
    if half_done:
        where, kept = "inside a batch, ", "Variables hold what was assigned until then"
    return (
        f"Training was stopped {where}after {done}, in epoch {curves.epoch + 1}. {kept} "
        f"and the history its curves; fit(..., initial_epoch={epoch}) continues with "
        f"epoch {epoch + 1}."
    )
