"""Checkpoints of a run of steps: when to save, and how a run continues, for any framework."""

from __future__ import annotations

import abc
import ast
import hashlib
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from tpunb._util.interrupts import Overdue, StopButton
from tpunb._util.units import grouped
from tpunb.cells.batch import Batch, bound_to
from tpunb.cells.reading.source import CellSource, StepSource
from tpunb.cells.run_state import RunState
from tpunb.cells.saved_curves import restore_curves, saved_curves
from tpunb.cells.step_batches import BatchSource
from tpunb.errors import CellError, TpuWarning
from tpunb.training.checkpoint_settings import CheckpointSettings
from tpunb.training.history import History

FORMAT = 1

_SHARE = 0.05
"""The largest share of a run's time that saving takes if the user has not chosen when to save."""

OTHER_FOLDER = "Name another folder, or begin again with --restart, which removes the checkpoints."
"""The fix if the checkpoints of a folder do not fit a run."""


class KeptCheckpoints(abc.ABC):
    """The checkpoints of one run in a folder.

    The batches before a checkpoint's position are read again and dropped, so that every kind of
    data can continue. A checksum tells whether they were the same batches.

    Args:
        settings: The folder, and when to save.
        cell: The cell or the function.
        code: The source of a function; empty for a cell.
        history: The run's curves.
        replicas: The number of replicas.
        failures: The errors of a folder that cannot be written.
    """

    def __init__(
        self,
        settings: CheckpointSettings,
        cell: StepSource,
        code: str,
        history: History,
        replicas: int,
        failures: tuple[type[Exception], ...] = (OSError,),
    ) -> None:
        self._settings, self._failures = settings, failures
        self._history, self._replicas = history, replicas
        self._cell = _hash_of(cell, code)
        self._is_open = False
        self._saved: tuple[int, bool] | None = None
        self._due = time.monotonic() + settings.seconds
        self._has_failed = False

    @abc.abstractmethod
    def _newest(self) -> str | None:
        """Return the path of the last checkpoint, and make the folder if it is missing.

        Raises:
            CellError: The folder cannot be used.
        """

    @abc.abstractmethod
    def _remove(self) -> None:
        """Remove the checkpoints of `%%tpu_run` in the folder."""

    @abc.abstractmethod
    def _read(self, path: str) -> dict[str, Any]:
        """Return the position that a checkpoint has: what `_position` has returned, and more."""

    @abc.abstractmethod
    def _refuse_others(self, content: Mapping[str, Any]) -> None:
        """Refuse a checkpoint of variables or values that do not fit the run's."""

    @abc.abstractmethod
    def _values(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the cell's names that a checkpoint has."""

    @abc.abstractmethod
    def _restore(self, path: str, content: Mapping[str, Any]) -> None:
        """Set what a run changes beside the cell's names."""

    @abc.abstractmethod
    def _fingerprint(self, batch: Any) -> int:
        """Return a checksum of a batch's values."""

    @abc.abstractmethod
    def _write(self, state: RunState) -> None:
        """Write a checkpoint."""

    def resume(
        self,
        batches: BatchSource | None,
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
        path = self._newest()
        if path is not None and self._settings.restart:
            self._remove()
            path = None
        if path is None:
            self._is_open = True
            return None
        content = self._read(path)
        if content.get("format") != FORMAT:
            raise self._foreign()
        self._refuse_other_cell(content)
        self._refuse_others(content)
        state = RunState(content["done"], content["ended"], self._values(content))
        is_over = state.ended or (total is not None and state.done >= total)
        if batches is not None and not is_over:
            last = self._skip(batches, state.done, button)
            self._warn_of_other_data(content, list(bound_to(names, last.value).values()))
        self._restore(path, content)
        if not self._history.metrics:
            restore_curves(self._history, content["curves"])
            self._history.notes.update(content["notes"])
        self._is_open = True
        self._saved = (state.done, state.ended)
        return state, said(state.done, total, self._settings.folder, is_over=is_over)

    def _position(self, state: RunState) -> dict[str, Any]:
        """Return the position of a run, as JSON."""
        return {
            "format": FORMAT,
            "cell": self._cell,
            "done": state.done,
            "ended": state.ended,
            "batch": None if state.batch is None else self._fingerprint(state.batch),
            "replicas": self._replicas,
            "curves": saved_curves(self._history),
            "notes": dict(self._history.notes),
        }

    def _foreign(self) -> CellError:
        return CellError(
            f"{self._settings.folder} has checkpoints that %%tpu_run did not save.",
            fix="Name another folder: --checkpoint DIR.",
        )

    def _refuse_other_cell(self, content: Mapping[str, Any]) -> None:
        if content["cell"] != self._cell:
            raise CellError(
                f"The checkpoint in {self._settings.folder}, at step {grouped(content['done'])}, "
                "is of another cell, or this cell has changed since.",
                fix=OTHER_FOLDER,
            )

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
        except self._failures as error:
            self._warn_of_failure(state, error)
        else:
            self._saved = (state.done, state.ended)
        ended = time.monotonic()
        self._due = ended + max(self._settings.seconds, (ended - began) / _SHARE)

    def _warn_of_failure(self, state: RunState, error: Exception) -> None:
        if self._has_failed:
            return
        self._has_failed = True
        warnings.warn_explicit(
            f"No checkpoint at step {grouped(state.done)}: {reason(error)}. The run goes on; the "
            f"last checkpoint in {self._settings.folder} stays.",
            TpuWarning,
            "%%tpu_run",
            1,
        )

    def _skip(self, batches: BatchSource, count: int, button: StopButton) -> Batch:
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
        known = content["batch"]
        if known is None or content["replicas"] != self._replicas:
            return
        if known == self._fingerprint(batch):
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


def said(done: int, total: int | None, folder: str, *, is_over: bool) -> str:
    """Return the sentence about a run that continues from a checkpoint."""
    of = "" if total is None else f" of {grouped(total)}"
    if is_over:
        return (
            f"The run was complete, at step {grouped(done)}{of}: variables, names and curves are "
            f"restored from {folder}. To begin again: --restart."
        )
    return f"Continues at step {grouped(done)}{of} from {folder}. To begin again: --restart."


def reason(error: Exception) -> str:
    """Return an error's own words in a line."""
    text = getattr(error, "strerror", None) or getattr(error, "message", None) or str(error)
    return str(text).strip().splitlines()[0].rstrip(".")


def _hash_of(cell: StepSource, code: str) -> str:
    """Return a hash of a cell's statements, or of a function's source.

    In a cell, comments and blank lines do not count.
    """
    text = cell.text
    if isinstance(cell, CellSource):
        text = ast.dump(ast.Module(cell.body, type_ignores=[]))
    return hashlib.sha256(f"{text}{code}".encode()).hexdigest()
