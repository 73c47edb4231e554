"""Checkpoints of a run of many steps, from which the run continues after its kernel has died.

A checkpoint has the variables of the objects that the cell uses, by the names in the notebook, so
that TensorFlow can restore it alone: `tf.train.Checkpoint(model=model).restore(path)`. Beside them
it has the position: the number of steps, the last batch's checksum, the values that steps pass on,
and the curves. Everything is in one checkpoint of TensorFlow, which appears when it is complete.

The batches before the position are read again and dropped, so that every kind of data can continue.
The checksum tells whether they were the same batches.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import inspect
import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tpunb._util.interrupts import Overdue, StopButton
from tpunb._util.units import counted, grouped
from tpunb.cells.batch import Batch, bound_to
from tpunb.cells.batches import Batches
from tpunb.cells.cell_step import CellStep
from tpunb.cells.cell_variables import plain_variable, reachable, variables_of
from tpunb.cells.replica_function import FUNCTION
from tpunb.cells.run_state import RunState
from tpunb.cells.saved_values import decoded, encoded, fingerprint, restore_curves, saved_curves
from tpunb.cells.source import CellSource
from tpunb.errors import CellError, TpuWarning
from tpunb.training.checkpoint_settings import CheckpointSettings
from tpunb.training.history import History
from tpunb.virtual.variable_copies import copies_of

_PREFIX = "step"
_STATE = "tpunb_run"
_OTHERS = "tpunb_other_variables"
_KEPT = 2
"""The number of checkpoints in the folder: the last, and the one before it."""

_SHARE = 0.05
"""The largest share of a run's time that saving takes if the user has not chosen when to save."""

_FORMAT = 1


class _SavedState(tf.train.experimental.PythonState):  # type: ignore[misc]
    """The part of a checkpoint that is not variables, as JSON."""

    def __init__(self, content: Mapping[str, Any] | None = None) -> None:
        self.content = content

    def serialize(self) -> str:
        """Return the content as text."""
        return json.dumps(self.content)

    def deserialize(self, string_value: bytes) -> None:
        """Take the content from a checkpoint."""
        self.content = json.loads(string_value)


class Checkpoints:
    """The checkpoints of one run in a folder.

    Args:
        settings: The folder, and when to save.
        step: The run's step.
        history: The run's curves.
        owners: Returns the objects with variables that the cell uses, by name.
    """

    def __init__(
        self,
        settings: CheckpointSettings,
        step: CellStep,
        history: History,
        owners: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._settings, self._strategy, self._history = settings, step.cache.strategy, history
        self._cell = _hash_of(step)
        self._owners = owners
        self._is_open = False
        self._saved: tuple[int, bool] | None = None
        self._due = time.monotonic() + settings.seconds
        self._has_failed = False

    def resume(
        self,
        batches: Batches | None,
        names: Sequence[str],
        total: int | None,
        button: StopButton,
    ) -> tuple[RunState, str] | None:
        """Restore the last checkpoint, once, before the first step.

        Args:
            batches: The batches. The run has not used the first batch yet.
            names: The cell's names for a batch, or its parts.
            total: The number of steps of the run; None if unknown.
            button: The run's stop button, which is entered.

        Returns:
            The position to continue from, and a sentence about it; None to begin at the first step.

        Raises:
            CellError: The checkpoint belongs to another cell or other variables, or the data ends
                before its position.
            Overdue: The stop button was pressed before the position was reached. No variable has
                changed.
        """
        if self._is_open:
            return None
        folder = self._settings.folder
        try:
            tf.io.gfile.makedirs(folder)
            path = tf.train.latest_checkpoint(folder)
        except (OSError, tf.errors.OpError) as error:
            raise CellError(
                f"Checkpoints cannot be kept in {folder}: {_reason(error)}.",
                fix="Name a folder that can be written: --checkpoint DIR.",
            ) from error
        if path is not None and self._settings.restart:
            self._remove()
            path = None
        if path is None:
            self._is_open = True
            return None
        content = self._read(path)
        owners = self._owners()
        self._refuse_others(content, owners)
        state = RunState(content["done"], content["ended"], self._values(content))
        is_over = state.ended or (total is not None and state.done >= total)
        if batches is not None and not is_over:
            last = self._skip(batches, state.done, button)
            self._warn_of_other_data(content, list(bound_to(names, last.value).values()))
        self._restore(path, owners, content)
        if not self._history.metrics:
            restore_curves(self._history, content["curves"])
            self._history.notes.update(content["notes"])
        self._is_open = True
        self._saved = (state.done, state.ended)
        return state, _said(state.done, total, folder, is_over=is_over)

    @property
    def last(self) -> int | None:
        """The step of the last checkpoint; None before the first checkpoint."""
        return self._saved[0] if self._saved else None

    def room(self, done: int) -> float:
        """Return the number of steps until the next checkpoint; the last of them is made alone.

        Args:
            done: The number of steps made.
        """
        if (every := self._settings.every) is not None:
            return every - done % every
        return 1 if time.monotonic() >= self._due else float("inf")

    def is_due(self, done: int) -> bool:
        """Return whether to save now.

        Args:
            done: The number of steps made.
        """
        if (every := self._settings.every) is not None:
            return done % every == 0
        return time.monotonic() >= self._due

    def save(self, state: RunState) -> None:
        """Save a checkpoint. If that fails, warn once: training goes on.

        Args:
            state: The position of the run.
        """
        if state.done == 0 or self._saved == (state.done, state.ended):
            return
        began = time.monotonic()
        try:
            self._write(state)
        except (OSError, tf.errors.OpError) as error:
            self._warn_of_failure(state, error)
        else:
            self._saved = (state.done, state.ended)
        ended = time.monotonic()
        self._due = ended + max(self._settings.seconds, (ended - began) / _SHARE)

    # Writing

    def _write(self, state: RunState) -> None:
        owners = self._owners()
        saved_values = {name: encoded(value) for name, value in state.values.items()}
        content = {
            "format": _FORMAT,
            "cell": self._cell,
            "done": state.done,
            "ended": state.ended,
            "batch": None if state.batch is None else fingerprint(state.batch),
            "replicas": self._strategy.num_replicas_in_sync,
            "variables": {name: _specs(owner) for name, owner in owners.items()},
            "copies": self._copies(owners),
            "values": {name: saved for name, saved in saved_values.items() if saved is not None},
            "curves": saved_curves(self._history),
            "notes": dict(self._history.notes),
        }
        checkpoint = _checkpoint(owners, _SavedState(content))
        self._manager(checkpoint).save(checkpoint_number=state.done, options=_options())

    def _manager(self, checkpoint: Any) -> Any:
        return tf.train.CheckpointManager(
            checkpoint, self._settings.folder, max_to_keep=_KEPT, checkpoint_name=_PREFIX
        )

    def _warn_of_failure(self, state: RunState, error: Exception) -> None:
        if self._has_failed:
            return
        self._has_failed = True
        warnings.warn_explicit(
            f"No checkpoint at step {grouped(state.done)}: {_reason(error)}. The run goes on; the "
            f"last checkpoint in {self._settings.folder} stays.",
            TpuWarning,
            "%%tpu_run",
            1,
        )

    def _copies(self, owners: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Return the values of copies that differ, by the variable's place among all variables."""
        differing = {}
        for number, variable in enumerate(_variables(owners)):
            if not _may_differ(variable):
                continue
            parts = [tf.convert_to_tensor(copy) for copy in variable.values]
            first = tf.io.serialize_tensor(parts[0]).numpy()
            if any(tf.io.serialize_tensor(part).numpy() != first for part in parts[1:]):
                differing[str(number)] = [encoded(part) for part in parts]
        return differing

    # Reading

    def _read(self, path: str) -> dict[str, Any]:
        """Return the position that a checkpoint has."""
        state = _SavedState()
        checkpoint = tf.train.Checkpoint(**{_STATE: state})
        try:
            checkpoint.restore(path, options=_options()).expect_partial()
        except Exception as error:  # TensorFlow raises many types, also IndexError
            raise CellError(
                f"The checkpoint {path} cannot be read: {_reason(error)}.",
                fix="Name another folder, or begin again with --restart, which removes the "
                "checkpoints.",
            ) from error
        content = state.content
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise self._foreign()
        return content

    def _foreign(self) -> CellError:
        return CellError(
            f"{self._settings.folder} has checkpoints that %%tpu_run did not save.",
            fix="Name another folder: --checkpoint DIR.",
        )

    def _refuse_others(self, content: Mapping[str, Any], owners: Mapping[str, Any]) -> None:
        """Refuse a checkpoint of another cell, or of variables that do not fit."""
        folder, step = self._settings.folder, grouped(content["done"])
        fix = "Name another folder, or begin again with --restart, which removes the checkpoints."
        if content["cell"] != self._cell:
            raise CellError(
                f"The checkpoint in {folder}, at step {step}, is of another cell, or this cell has "
                "changed since.",
                fix=fix,
            )
        then = content["variables"]
        now = {name: _specs(owner) for name, owner in owners.items()}
        if then.keys() != now.keys():
            names = ", ".join(f"`{name}`" for name in sorted(then.keys() ^ now.keys()))
            raise CellError(
                f"The cell now uses other variables than the checkpoint in {folder}, at step "
                f"{step}: the difference is {names}.",
                fix=fix,
            )
        for name in then:
            if then[name] != now[name]:
                raise _other_variables(name, then[name], now[name], owners[name], folder, fix)

    def _skip(self, batches: Batches, count: int, button: StopButton) -> Batch:
        """Read the batches of the steps that are done, and return the last of them."""
        for number in range(count):
            if button.pressed:
                raise Overdue
            with button.work():
                batch = batches.next()
            if batch is None:
                raise CellError(
                    f"The data ends after {number} batches, before step {grouped(count)} of the "
                    f"checkpoint in {self._settings.folder}.",
                    fix="Give the data of the run that was saved, or begin again with --restart.",
                )
        assert batch is not None  # a checkpoint has at least one step
        return batch

    def _warn_of_other_data(self, content: Mapping[str, Any], batch: Sequence[Any]) -> None:
        """Warn if the last batch of the steps that are done is not the batch of that time."""
        known, replicas = content["batch"], self._strategy.num_replicas_in_sync
        if known is None or content["replicas"] != replicas or known == fingerprint(batch):
            return
        number = grouped(content["done"])
        warnings.warn_explicit(
            f"The data is not the same as before: batch {number} differs. The variables "
            "are restored, but some examples come again and others not at all, and the numbers "
            "are not those of an uninterrupted run. Give every random part of the data a seed, as "
            "in `.shuffle(1000, seed=1)`, and make a shuffled dataset again: each time that it is "
            "read, its order differs.",
            TpuWarning,
            "%%tpu_run",
            1,
        )

    def _restore(self, path: str, owners: Mapping[str, Any], content: Mapping[str, Any]) -> None:
        """Set the variables, and the copies that have a value of their own."""
        checkpoint = _checkpoint(owners, _SavedState())
        checkpoint.restore(path, options=_options()).assert_existing_objects_matched()
        if content["replicas"] != self._strategy.num_replicas_in_sync:
            return
        variables = _variables(owners)
        for number, parts in content["copies"].items():
            values = [decoded(part, self._strategy) for part in parts]
            for copy, value in zip(variables[int(number)].values, values, strict=True):
                copy.assign(value)

    def _values(self, content: Mapping[str, Any]) -> dict[str, Any]:
        if content["replicas"] != self._strategy.num_replicas_in_sync:
            return {}
        return {name: decoded(each, self._strategy) for name, each in content["values"].items()}

    def _remove(self) -> None:
        """Remove the checkpoints of `%%tpu_run` in the folder."""
        folder = self._settings.folder
        paths = self._manager(tf.train.Checkpoint()).checkpoints
        if not all(path.rpartition("/")[2].startswith(f"{_PREFIX}-") for path in paths):
            raise self._foreign()  # other programs' checkpoints are not removed
        # First the file that names the others, so that no name leads to a missing file.
        files = [name for name in tf.io.gfile.listdir(folder) if name.startswith(f"{_PREFIX}-")]
        for name in ("checkpoint", *files):
            tf.io.gfile.remove(tf.io.gfile.join(folder, name))


def _checkpoint(owners: Mapping[str, Any], state: _SavedState) -> Any:
    """Return the checkpoint of objects and of the variables that TensorFlow does not find in them.

    Keras 3 hides the states of dropout's random numbers from TensorFlow, and its metrics.
    """
    trackable = {
        name: owner
        for name, owner in owners.items()
        if isinstance(owner, tf.__internal__.tracking.Trackable) and "/" not in name
    }
    known = {id(each) for each in reachable(tf.train.Checkpoint(**trackable))}
    others = [each for each in _variables(owners) if id(each) not in known]
    return tf.train.Checkpoint(**trackable, **{_OTHERS: others, _STATE: state})


def _variables(owners: Mapping[str, Any]) -> list[Any]:
    """Return all variables, each once."""
    every = [variable for name in sorted(owners) for variable in variables_of(owners[name])]
    return list({id(variable): variable for variable in every}.values())


def _may_differ(variable: Any) -> bool:
    """Return whether the copies of a variable may have different values."""
    if not isinstance(variable, tf.distribute.DistributedValues) or len(variable.values) < 2:
        return False
    copies = copies_of(variable.values[0])
    if copies is not None:
        return not (copies.are_together and copies.are_equal)
    is_local = variable.synchronization == tf.VariableSynchronization.ON_READ
    return bool(is_local or variable.aggregation == tf.VariableAggregation.NONE)


def _specs(owner: Any) -> list[list[Any]]:
    """Return the types and shapes of an object's variables."""
    variables = variables_of(owner)
    return [[variable.dtype.name, variable.shape.as_list()] for variable in variables]


def _other_variables(
    name: str, then: list[Any], now: list[Any], owner: Any, folder: str, fix: str
) -> CellError:
    if plain_variable(owner) is not None:
        before, after = _kind(then[0]), _kind(now[0])
        message = f"`{name}` is {after}, and {before} in the checkpoint in {folder}."
    elif len(then) == len(now):
        place = next(place for place, spec in enumerate(then) if spec != now[place])
        message = (
            f"`{name}` is not the same as in the checkpoint in {folder}: variable {place} of "
            f"{len(now)} is {_kind(now[place])}, and {_kind(then[place])} there."
        )
    else:
        message = (
            f"`{name}` has {counted(len(now), 'variable')}, and {len(then)} in the checkpoint in "
            f"{folder}."
        )
        if len(now) < len(then):
            fix = f"If `{name}` is not built yet, build it before the cell. Otherwise: {fix}"
    return CellError(message, fix=fix)


def _kind(spec: list[Any]) -> str:
    dtype, shape = spec
    return f"{dtype}{shape}"


def _hash_of(step: CellStep) -> str:
    """Return a hash of a cell's statements, or of a function's source.

    In a cell, comments and blank lines do not count.
    """
    text = step.cell.text
    if isinstance(step.cell, CellSource):
        text = ast.dump(ast.Module(step.cell.body, type_ignores=[]))
    with contextlib.suppress(OSError, TypeError):  # no function, or no source
        text += inspect.getsource(step.bound.get(FUNCTION))  # type: ignore[arg-type]
    return hashlib.sha256(text.encode()).hexdigest()


def _said(done: int, total: int | None, folder: str, *, is_over: bool) -> str:
    of = "" if total is None else f" of {grouped(total)}"
    if is_over:
        return (
            f"The run was complete, at step {grouped(done)}{of}: variables, names and curves are "
            f"restored from {folder}. To begin again: --restart."
        )
    return f"Continues at step {grouped(done)}{of} from {folder}. To begin again: --restart."


def _options() -> Any:
    """Return options by which this machine writes the files, also for variables of others."""
    return tf.train.CheckpointOptions(experimental_io_device="/job:localhost")


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or getattr(error, "message", None) or str(error)
    return str(text).strip().splitlines()[0].rstrip(".")
