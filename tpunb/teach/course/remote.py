"""Answers in another kernel, which a check of this process grades.

The check's code, and what it expects, never reach the kernel with the student's code. The kernel
gives programs and values as plain data. A program runs here; a function of Python, and a cell with
variables, compute there with arguments that the kernel has not seen before.
"""

from __future__ import annotations

import ast
import atexit
import base64
import functools
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpunb._util.plain_data import packed, unpacked
from tpunb.errors import CellError
from tpunb.notebook.files import STUDENT, code_cells, read_notebook
from tpunb.notebook.ran_cells import RanCell
from tpunb.teach.course import jax_answers
from tpunb.teach.course.cells import check_of, is_marked
from tpunb.teach.course.grading import Question

_PATIENCE = 300


class RemoteQuestion(Question):
    """The check of an answer in another kernel. See `Question`."""

    def __init__(self, number: int, points: int, names: Sequence[str]) -> None:
        super().__init__(number, points, names)
        self._solution: dict[str, Any] = {}
        self._known: tuple[str, ...] | None = None

    def __enter__(self) -> RemoteQuestion:
        """Put the student's answers in the place of the solution's."""
        _student().run_until(self._number)
        super().__enter__()
        names = self._session.namespace
        if missing := [name for name in self._names if name not in names]:
            raise CellError(f"The solution's cell has not run to its end: {missing[0]} is missing.")
        self._solution = {name: names[name] for name in self._names}
        for name in self._names:
            is_function = self.ask("is_function", name)
            names[name] = _function(self, name) if is_function else self.value(name)
        return self

    def __exit__(self, *error: Any) -> None:
        """Give the points, and put the solution back."""
        self._session.namespace.update(self._solution)
        super().__exit__(*error)

    def ask(self, method: str, *args: Any) -> Any:
        """Return what a method of `Here` gives in the student's kernel."""
        question = self._number, self._points, self._names
        request = base64.b64encode(pickle.dumps((question, method, args))).decode()
        return _student().ask(f'__import__("{__name__}", fromlist=["said"]).said("{request}")')

    def on_each_replica(self, name: str) -> list[Any]:
        """Return the value of a name on each replica or device."""
        return list(map(np.asarray, self.ask("on_each_replica", name)))

    def value(self, path: str) -> Any:
        """Return a value of the student's kernel."""
        value, kind = self.ask("value_and_type", path)
        return jax_answers.placed(value, kind) if kind else value

    def again(self, *names: str, **given: Any) -> Any:
        """Run the answer's program here with other values; its cell there if it has variables."""
        if given.keys().isdisjoint(self.ask("variables")):
            self._fetch_programs(tuple(given))
            return super().again(*names, **given)
        sent = {name: _elements(value) for name, value in given.items()}
        return self.ask("again_with", names, sent)

    def collectives(self) -> set[str]:
        """Return the collectives on which the answer's names depend."""
        self._fetch_programs()
        return super().collectives()

    def curves(self) -> dict[str, list[float]]:
        """Return the values of the curves of the student's last loop."""
        return dict(self.ask("curves"))

    def epochs(self, name: str, *args: Any) -> list[Any]:
        """Return two epochs of the dataset that a function returns there."""
        sent = [("program", _traced(each)) if callable(each) else each for each in args]
        return list(self.ask("epochs_with", name, sent))

    def _why_no_answer(self) -> str | None:
        return self.ask("why")  # type: ignore[no-any-return]

    def _exported(self, name: str, types: Sequence[Any]) -> dict[str, Any]:
        return dict(self.ask("exported", name, types))

    def _fetch_programs(self, known: tuple[str, ...] = ()) -> None:
        """Put the programs of the student's cells in the place of the cells."""
        if self._known == known:
            return
        self._known = known
        from tpunb.teach.puzzles.tensorflow_programs import imported

        cells, programs = [], {}
        for number, traced in enumerate(reversed(self.ask("programs", known))):
            program = f"program_of_cell_{number}"
            programs[program] = imported(traced)
            call = f"{', '.join(traced['names'])}, = {program}({', '.join(traced['owners'])})"
            cells.append(RanCell(f"{traced['magic']}\n{call}"))
        self._cells = [*self._cells, *cells]
        self._namespace = {**self._session.namespace, **programs}


class Here(Question):
    """A question about the answers of this kernel, for another process."""

    def why(self) -> str | None:
        """Return why there is no answer; None if there is one."""
        return self._why_no_answer()

    def is_function(self, name: str) -> bool:
        """Return whether an answer is a function."""
        return callable(self.value(name))

    def value_and_type(self, path: str) -> tuple[Any, Any]:
        """Return a value, and the type and place of an array of JAX."""
        value = self.value(path)
        return value, jax_answers.types_of([value])[0] if jax_answers.are_of_jax([value]) else None

    def call(self, name: str, args: Sequence[Any]) -> Any:
        """Return the result of a function."""
        return self.value(name)(*args)

    def exported(self, name: str, types: Sequence[Any]) -> dict[str, Any]:
        """Return the program of a function of JAX."""
        return self._exported(name, types)

    def programs(self, known: Sequence[str]) -> list[dict[str, Any]]:
        """Return the programs of the answer's cell and of the cells behind it."""
        traces = self._again({}).traces(self._tpu_cell(), self._names, known)
        return [each.data for each in traces]

    def variables(self) -> list[str]:
        """Return the names of the notebook's variables."""
        names = self._namespace.items()
        return [name for name, value in names if hasattr(value, "assign_add")]

    def again_with(self, names: Sequence[str], given: Mapping[str, Any]) -> Any:
        """Run the answer's cell with other values."""
        return self.again(*names, **{name: _dataset(value) for name, value in given.items()})

    def epochs_with(self, name: str, args: Sequence[Any]) -> list[Any]:
        """Return two epochs of a dataset."""
        return self.epochs(name, *map(_function_of_tensor, args))


def said(request: str) -> str:
    """Answer a request of `RemoteQuestion.ask`, in the student's kernel."""
    question, method, args = pickle.loads(base64.b64decode(request))
    try:
        return packed(getattr(Here(*question), method)(*args))
    except Exception as error:
        name = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
        return packed({"failed": f"{name}{error}"})


class Student:
    """A student's notebook in a kernel of its own, without its checks.

    Args:
        path: The notebook.
    """

    def __init__(self, path: Path) -> None:
        from jupyter_client.manager import start_new_kernel

        self._cells = code_cells(read_notebook(path))
        environment = {name: value for name, value in os.environ.items() if name != STUDENT}
        self._manager, self._client = start_new_kernel(
            _PATIENCE, cwd=str(path.parent), env=environment, extra_arguments=["--log-level=50"]
        )
        atexit.register(self._manager.shutdown_kernel, now=True)

    def run_until(self, question: int) -> None:
        """Run the cells above the check of a question, and go on after a cell that fails.

        If the check is missing, run the cells to the answer.
        """
        checks = [n for n, text in enumerate(self._cells) if check_of(text) == question]
        answers = [n for n, text in enumerate(self._cells, 1) if is_marked(text, question)]
        end = max(checks or answers, default=0)
        above, self._cells = self._cells[:end], self._cells[end:]
        for text in above:
            if check_of(text) is None:
                self._execute(text)

    def ask(self, expression: str) -> Any:
        """Return the plain data that an expression gives.

        Raises:
            CellError: The kernel gives no answer.
            AssertionError: The answer fails.
        """
        reply = self._execute("", silent=True, user_expressions={"said": expression})
        found = reply["content"].get("user_expressions", {}).get("said", {})
        if found.get("status") != "ok":
            text = f"{found.get('ename', 'no answer')}: {found.get('evalue', '')}"
            raise CellError(f"The student's kernel failed: {text[:400]}")
        data = unpacked(ast.literal_eval(found["data"]["text/plain"]))
        if isinstance(data, dict) and "failed" in data:
            raise AssertionError(str(data["failed"]))
        return data

    def _execute(self, text: str, **options: Any) -> Any:
        if not self._manager.is_alive():
            raise CellError("The student's kernel has ended.")
        return self._client.execute_interactive(
            text, timeout=_PATIENCE, allow_stdin=False, output_hook=lambda _: None, **options
        )


@functools.cache
def _student() -> Student:
    return Student(Path(os.environ[STUDENT]))


def _function(question: RemoteQuestion, name: str) -> Callable[..., Any]:
    """Return a student's function: its program if it is of JAX, or its results there."""
    programs: dict[str, Any] = {}

    def answer(*args: Any) -> Any:
        if not args or not jax_answers.are_of_jax(args):
            return question.ask("call", name, args)
        types = jax_answers.types_of(args)
        if str(types) not in programs:
            program = question.ask("exported", name, types)
            programs[str(types)] = jax_answers.runner(program, args)
        return programs[str(types)](*args)

    return answer


def _elements(value: Any) -> Any:
    """Return the first batch of a dataset, which can be sent; of others their numbers."""
    if hasattr(value, "as_numpy_iterator"):
        return "batch", next(value.as_numpy_iterator())
    return value.numpy() if hasattr(value, "numpy") else value


def _dataset(value: Any) -> Any:
    if not (isinstance(value, tuple) and value[:1] == ("batch",)):
        return value
    import tensorflow as tf

    return tf.data.Dataset.from_tensors(value[1])


def _traced(fn: Callable[..., Any]) -> Any:
    """Return a function of a vector of float32 as plain data."""
    import tensorflow as tf

    graph = tf.function(fn).get_concrete_function(tf.TensorSpec([None], tf.float32)).graph
    return {
        "graph": graph.as_graph_def().SerializeToString(),
        "arguments": [tensor.name for tensor in graph.inputs],
        "constants": {},
        "results": [tensor.name for tensor in graph.outputs],
    }


def _function_of_tensor(value: Any) -> Any:
    if not (isinstance(value, tuple) and value[:1] == ("program",)):
        return value
    from tpunb.teach.puzzles.tensorflow_programs import imported

    run = imported(value[1])
    return lambda tensor: run(tensor)[0]
