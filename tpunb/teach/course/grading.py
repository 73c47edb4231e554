"""The check of an answer in a lesson: it finds the answer, grades it and keeps the points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from tpunb.cells.reading.cell_errors import first_line
from tpunb.errors import CellError, NotConnectedError
from tpunb.notebook.extension import loaded
from tpunb.notebook.ran_cells import RanCell
from tpunb.teach.course import scores
from tpunb.teach.course.cells import TpuCell, answer_cell, assigns, attribute_of, tpu_cell
from tpunb.teach.course.failures import in_library, show_users_line
from tpunb.teach.course.seals import plain_text_of, seal
from tpunb.training.history import latest_history

if TYPE_CHECKING:
    from tpunb.teach.course.again import Again


_MOST_BATCHES = 9
"""The largest number of batches of an epoch."""


class Question:
    """The check of an answer. See `tpunb.course.question`.

    Args:
        number: The number of the question.
        points: The points for a right answer.
        names: The names that the answer assigns.
    """

    def __init__(self, number: int, points: int, names: Sequence[str]) -> None:
        self._number, self._points, self._names = number, points, names
        extension = loaded()
        if extension is None:
            raise CellError(
                "The checks of a lesson read the notebook's cells.", fix="Run `%load_ext tpunb`."
            )
        self._session = extension.magics.session
        self._cells: Sequence[RanCell] = extension.ran.cells
        self._namespace: dict[str, Any] = self._session.namespace
        self._before: set[str] = set()

    def __enter__(self) -> Question:
        """Find the answer.

        Raises:
            AssertionError: There is no answer, or its cell has stopped with an error.
        """
        scores.remember(self._number, 0)
        if (reason := self._why_no_answer()) is not None:
            raise _short(AssertionError(reason))
        self._before = {*self._session.namespace}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        frames: TracebackType | None,
    ) -> None:
        """Give the points, or show why there are none. What the check knows is forgotten."""
        for name in {*self._session.namespace} - self._before:
            del self._session.namespace[name]
        if error is None:
            scores.remember(self._number, self._points)
            print(f"Question {self._number}: {self._points} point{'s' * (self._points > 1)}")  # noqa: T201
        elif isinstance(error, NotImplementedError):
            raise _short(AssertionError(self._unanswered())) from None
        elif isinstance(error, AssertionError) and not in_library(frames):
            _short(error)
        elif isinstance(error, NotConnectedError):
            return  # its message says what to do
        elif isinstance(error, Exception) and not show_users_line(error, frames):
            text = f"The check cannot use this answer. It raised {first_line(error)}"
            raise _short(AssertionError(text)) from error

    def on_each_replica(self, name: str) -> list[Any]:
        """Return the value of a name on each replica, as arrays of NumPy.

        Raises:
            AssertionError: The value is the same for all replicas, as in Python.
        """
        parts = self._parts(self._namespace[name])
        assert len(parts) > 1, _same_for_all(name)
        return parts

    def again(self, *names: str, **given: Any) -> Any:
        """Run the answer's cell again with other values, and return its names on each replica.

        The notebook's names do not change. Cells between the other values and the answer run again
        too, if they are `%%tpu_run` cells.

        Args:
            *names: The names to return, also of variables; for several names a list of each.
            **given: By name of the notebook, the other value: a list with a value for each replica,
                a dataset, or the first numbers of a variable. `replica_id` gives the replicas other
                numbers. Variables get their values back.

        Raises:
            AssertionError: The answer is not computed in a `%%tpu_run` cell.
        """
        cell, again = self._tpu_cell(), self._again(given)
        try:
            made = again.results(cell, self._parts)
        except Exception as error:
            text = f"With other numbers, your cell stops with an error: {first_line(error)}"
            raise AssertionError(text) from None
        missing = [name for name in names if name not in made]
        assert not missing, f"Assign `{', '.join(missing)}` in one `%%tpu_run` cell."
        for name in names:
            assert len(made[name]) > 1, _same_for_all(name)
        parts = [made[name] for name in names]
        return parts[0] if len(parts) == 1 else parts

    def collectives(self) -> set[str]:
        """Return the collectives on which the answer's names depend, also by other cells."""
        traces = self._again({}).traces(self._tpu_cell(), self._names)
        return {collective for trace in traces for collective in trace.collectives}

    def predicted(
        self, name: str, right: str, hints: Mapping[Any, str] | None = None, *, hint: str
    ) -> None:
        """Compare a prediction with the seal of the right one.

        Args:
            name: The name of the prediction, which is the salt of its seal.
            right: The seal of the right prediction, from `seal(value, name)`.
            hints: By wrong prediction, what to think about.
            hint: What to think about for any other prediction.

        Raises:
            AssertionError: The prediction is wrong.
        """
        value = self._session.namespace[name]
        try:
            text = plain_text_of(value)
        except (TypeError, ValueError):
            raise AssertionError(
                f"`{name}` has the type {type(value).__name__}. Assign what you predict, as the "
                "question says."
            ) from None
        assert not _is_quoted(value), "Write the number without quotes."
        assert not isinstance(value, list), "Write the number alone, without brackets."
        known = {plain_text_of(wrong): text for wrong, text in (hints or {}).items()}
        assert seal(value, name) == right, f"Not {text}: {known.get(text, hint)}"

    def value(self, path: str) -> Any:
        """Return the value of a name, or of an attribute such as `"trainer.iterations"`.

        The value of a variable is its number, or an array of NumPy.
        """
        value = attribute_of(self._namespace, path)
        return value.numpy() if hasattr(value, "assign") else value

    def curves(self) -> dict[str, list[float]]:
        """Return the values of the last loop's curves, by name."""
        history = latest_history()
        return {} if history is None else {n: list(history.values(n)) for n in history.metrics}

    def epochs(self, name: str, *args: Any) -> list[Any]:
        """Return the type of the dataset that a function returns, and the batches of two epochs.

        Args:
            name: The function.
            *args: Its arguments: arrays, and functions of one tensor.
        """
        dataset = self.value(name)(*args)
        epochs = [list(dataset.take(_MOST_BATCHES).as_numpy_iterator()) for _ in range(2)]
        return [type(dataset).__name__, *epochs]

    def structure(self, name: str, *args: Any) -> tuple[list[str], list[str], bool]:
        """Return how a function of JAX computes its results.

        Args:
            name: The function.
            *args: Its arguments.

        Returns:
            The collectives of its compiled program; those that its code has; whether
            `jax.shard_map` has all of its arithmetic.
        """
        from tpunb.teach.course import jax_answers

        return jax_answers.structure(self._exported(name, jax_answers.types_of(args)), args)

    def _exported(self, name: str, types: Sequence[Any]) -> dict[str, Any]:
        """Return the program of a function of JAX as plain data."""
        from tpunb.teach.course import jax_answers

        return jax_answers.exported(self.value(name), types)

    def _why_no_answer(self) -> str | None:
        cell = answer_cell(self._cells, self._number, self._names)
        if cell is None or cell.is_stub:
            return self._unanswered()
        if cell.error:
            return (
                f"The cell with your answer stopped with an error, {cell.error}. Its message says "
                "what to correct. Run the cell again: the check grades no older answer."
            )
        if missing := [name for name in self._names if not assigns(cell.source, name)]:
            names = " and ".join(f"`{name}`" for name in missing)
            return f"The cell with your answer does not assign {names}."
        return None

    def _unanswered(self) -> str:
        names = " and ".join(self._names)
        todo = f"assign {names}" if names else "write its cell"
        return f"Question {self._number} has no answer yet: {todo}, and run the cell."

    def _parts(self, value: Any) -> list[Any]:
        """Return a value on each replica, or on each device of an array of JAX."""
        if hasattr(value, "addressable_shards"):
            return [np.asarray(shard.data) for shard in value.addressable_shards]
        strategy = self._session.of_tensorflow().strategy
        return [np.asarray(part) for part in strategy.experimental_local_results(value)]

    def _tpu_cell(self) -> TpuCell:
        cell = answer_cell(self._cells, self._number, self._names)
        parsed = tpu_cell(cell.source) if cell is not None else None
        assert parsed is not None, (
            "The replicas compute only in `%%tpu_run` cells: make `%%tpu_run` the first line of "
            "your answer's cell."
        )
        return parsed

    def _again(self, given: Mapping[str, Any]) -> Again:
        from tpunb.teach.course.again import Again  # imports TensorFlow

        strategy = self._session.of_tensorflow().strategy
        return Again(self._cells, self._namespace, strategy, given)


def _same_for_all(name: str) -> str:
    return (
        f"`{name}` is one value for all replicas. Compute a tensor on "
        "each replica with TensorFlow, in a `%%tpu_run` cell."
    )


def _short(error: AssertionError) -> AssertionError:
    """Make IPython show an error's message without the code of the check."""
    lines = [f"Not yet: {error}"]
    error._render_traceback_ = lambda: lines  # type: ignore[attr-defined]
    return error


def _is_quoted(value: Any) -> bool:
    """Return whether a value is a text that holds a number."""
    if not isinstance(value, str):
        return False
    try:
        Fraction(value)
    except ValueError:
        return False
    return True
