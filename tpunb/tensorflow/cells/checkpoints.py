"""Checkpoints of a run of many steps, from which the run continues after its kernel has died.

A checkpoint has the variables of the objects that the cell uses, by the names in the notebook, so
that TensorFlow can restore it alone: `tf.train.Checkpoint(model=model).restore(path)`. Beside them
it has the position: the number of steps, the last batch's checksum, the values that steps pass on,
and the curves. Everything is in one checkpoint of TensorFlow, which appears when it is complete.

The batches before the position are read again and dropped, so that every kind of data can continue.
The checksum tells whether they were the same batches.
"""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tpunb._util.units import counted, grouped
from tpunb.cells.kept_checkpoints import FORMAT, OTHER_FOLDER, KeptCheckpoints, reason
from tpunb.cells.run_state import RunState
from tpunb.errors import CellError
from tpunb.tensorflow.cells.cell_step import CellStep
from tpunb.tensorflow.cells.cell_variables import plain_variable, reachable, variables_of
from tpunb.tensorflow.cells.replica_function import FUNCTION
from tpunb.tensorflow.cells.saved_values import decoded, encoded, fingerprint
from tpunb.tensorflow.virtual.copies.variable_copies import copies_of
from tpunb.training.checkpoint_settings import CheckpointSettings
from tpunb.training.history import History

_PREFIX = "step"
_STATE = "tpunb_run"
_OTHERS = "tpunb_other_variables"
_KEPT = 2
"""The number of checkpoints in the folder: the last, and the one before it."""


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


class Checkpoints(KeptCheckpoints):
    """The checkpoints of one run of TensorFlow in a folder.

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
        strategy = step.cache.strategy
        replicas = int(strategy.num_replicas_in_sync)
        failures = (OSError, tf.errors.OpError)
        super().__init__(settings, step.cell, _code_of(step), history, replicas, failures)
        self._strategy, self._owners = strategy, owners

    def _newest(self) -> str | None:
        folder = self._settings.folder
        try:
            tf.io.gfile.makedirs(folder)
            path: str | None = tf.train.latest_checkpoint(folder)
        except (OSError, tf.errors.OpError) as error:
            raise CellError(
                f"Checkpoints cannot be kept in {folder}: {reason(error)}.",
                fix="Name a folder that can be written: --checkpoint DIR.",
            ) from error
        return path

    def _fingerprint(self, batch: Any) -> int:
        return fingerprint(batch)

    # Writing

    def _write(self, state: RunState) -> None:
        owners = self._owners()
        saved_values = {name: encoded(value) for name, value in state.values.items()}
        content = {
            **self._position(state),
            "variables": {name: _specs(owner) for name, owner in owners.items()},
            "copies": self._copies(owners),
            "values": {name: saved for name, saved in saved_values.items() if saved is not None},
        }
        checkpoint = _checkpoint(owners, _SavedState(content))
        self._manager(checkpoint).save(checkpoint_number=state.done, options=_options())

    def _manager(self, checkpoint: Any) -> Any:
        return tf.train.CheckpointManager(
            checkpoint, self._settings.folder, max_to_keep=_KEPT, checkpoint_name=_PREFIX
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
                f"The checkpoint {path} cannot be read: {reason(error)}.",
                fix=OTHER_FOLDER,
            ) from error
        content = state.content
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise self._foreign()
        return content

    def _refuse_others(self, content: Mapping[str, Any]) -> None:
        """Refuse a checkpoint of variables that do not fit."""
        folder, step, owners = self._settings.folder, grouped(content["done"]), self._owners()
        then = content["variables"]
        now = {name: _specs(owner) for name, owner in owners.items()}
        if then.keys() != now.keys():
            names = ", ".join(f"`{name}`" for name in sorted(then.keys() ^ now.keys()))
            raise CellError(
                f"The cell now uses other variables than the checkpoint in {folder}, at step "
                f"{step}: the difference is {names}.",
                fix=OTHER_FOLDER,
            )
        for name in then:
            if then[name] != now[name]:
                raise _other_variables(name, then[name], now[name], owners[name], folder)

    def _restore(self, path: str, content: Mapping[str, Any]) -> None:
        """Set the variables, and the copies that have a value of their own."""
        owners = self._owners()
        checkpoint = _checkpoint(owners, _SavedState())
        checkpoint.restore(path, options=_options()).assert_existing_objects_matched()
        if content["replicas"] != self._replicas:
            return
        variables = _variables(owners)
        for number, parts in content["copies"].items():
            values = [decoded(part, self._strategy) for part in parts]
            for copy, value in zip(variables[int(number)].values, values, strict=True):
                copy.assign(value)

    def _values(self, content: Mapping[str, Any]) -> dict[str, Any]:
        if content["replicas"] != self._replicas:
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
    name: str, then: list[Any], now: list[Any], owner: Any, folder: str
) -> CellError:
    fix = OTHER_FOLDER
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


def _options() -> Any:
    """Return options by which this machine writes the files, also for variables of others."""
    return tf.train.CheckpointOptions(experimental_io_device="/job:localhost")


def _code_of(step: CellStep) -> str:
    """Return the source of the function that a step calls; empty for a cell."""
    with contextlib.suppress(OSError, TypeError):  # no function, or no source
        return inspect.getsource(step.bound.get(FUNCTION))  # type: ignore[arg-type]
    return ""
