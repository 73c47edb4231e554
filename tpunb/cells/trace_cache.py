"""Traced programs of cells: found, traced, remembered."""

from __future__ import annotations

import dataclasses
import functools
import gc
import reprlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import CodeType
from typing import Any, NoReturn, TypeVar

import tensorflow as tf

from tpunb._util.logs import logger
from tpunb.cells.capture import Captured, CaptureKind, Capturer
from tpunb.cells.cell_errors import first_line, line_in, mark, mistake, original
from tpunb.cells.guards import MISSING, is_plain
from tpunb.cells.nests import is_nest
from tpunb.cells.open_batches import opened, silent
from tpunb.cells.optimizers import make_ready
from tpunb.cells.outputs import OutputRecord
from tpunb.cells.printing import Lines, Printer
from tpunb.cells.program import Program
from tpunb.cells.settings import OutputOptions
from tpunb.cells.source import CellSource, StepSource, above
from tpunb.compiler.check import with_verdict
from tpunb.errors.code_problems import Problem
from tpunb.virtual.graph.traced_function import TracedFunction
from tpunb.virtual.rule_check import CheckReport, refuse_other_strategies, report, with_fixed
from tpunb.virtual.stoppable import StoppableCalls
from tpunb.virtual.strict.examination import enforce_open_sizes, examine, observing
from tpunb.virtual.strict.open_sizes import RULE
from tpunb.virtual.strict.traced_anew import traced_anew

_log = logger("cells")

_MOST_PROGRAMS = 32
"""The largest number of programs that are kept; each takes one to five MiB."""

_MOST_GONE = 1024
"""The largest number of cells whose missing program has a remembered reason."""

_T = TypeVar("_T")


class Programs:
    """The programs of one strategy's cells: found, traced and remembered.

    Args:
        strategy: A `tf.distribute.Strategy`.
        calls: Runs the cells' functions, so that interrupts end them.
        lines: Returns the lines that the replicas' processes have written, if this process
            started them.

    Attributes:
        strategy: The strategy.
        calls: The argument `calls`.
        traces: The number of times that a cell has been traced.
    """

    def __init__(self, strategy: Any, calls: StoppableCalls, lines: Lines | None = None) -> None:
        self.strategy = strategy
        self.calls = calls
        self.traces = 0
        self._capturer = Capturer(strategy)
        self._printer = Printer(strategy, lines)
        self._programs: list[Program] = []  # the program used last is at the end
        self._uncollected = 0
        self._gone: dict[int, str] = {}  # by hash of a cell's text: why its program is gone

    def find(
        self,
        cell: StepSource,
        options: OutputOptions,
        namespace: dict[str, Any],
        bound: Mapping[str, Any],
        checked: Program | None = None,
    ) -> tuple[Program, Captured, str]:
        """Return the program that fits, its captured values, and the reason if it must be traced.

        Args:
            cell: The cell.
            options: How results are combined.
            namespace: The notebook's names.
            bound: Values that hide the notebook's.
            checked: A program whose dependencies are known to be unchanged.
        """
        last = self._last_of(cell)
        if last and last.shortcut and last.options == options and last.namespace is namespace:
            captured = self._capturer.again(last.shortcut, namespace, bound)
            if captured is not None and (last is checked or not last.dependencies.change()):
                return last, captured, FIRST_RUN
        captured = self._capturer.capture(cell, namespace, bound)
        made_alike = (
            program
            for program in reversed(self._programs)
            if program.cell is cell
            and program.namespace is namespace
            and program.options == options
            and program.names == captured.key
        )
        fitting = (it for it in made_alike if it is checked or not it.dependencies.change())
        program = next(fitting, None)
        if program is None:
            if last is not None:
                reason = why_new_program(last, captured, options)
            else:
                reason = self._gone.get(hash(cell.text), FIRST_RUN)
            _log.debug("%s has to be traced: %s", cell.filename, reason)
            self._forget_replaced(cell, captured)
            program = Program(
                self.strategy, cell, namespace, captured, self._capturer, options, self._printer
            )
            return program, captured, reason
        if tuple(captured.signature) in program.records:
            return program, captured, FIRST_RUN
        reason = why_new_arguments(program, captured)
        _log.debug("%s has to be traced: %s", cell.filename, reason)
        return program, captured, reason

    def captured(
        self, cell: StepSource, namespace: dict[str, Any], bound: Mapping[str, Any]
    ) -> Captured:
        """Return the values of the names that a cell reads; see `find` for the arguments."""
        return self._capturer.capture(cell, namespace, bound)

    def _last_of(self, cell: StepSource) -> Program | None:
        """Return the program of a cell that ran last; None if it is gone."""
        return next((it for it in reversed(self._programs) if it.cell is cell), None)

    def _forget_replaced(self, cell: StepSource, captured: Captured) -> None:
        """Forget a cell's programs that hold an object which the notebook has replaced.

        They would keep the variables of a former model in the memory of the cores.
        """
        for program in [each for each in self._programs if each.cell is cell]:
            if _was_replaced(program, captured.key):
                self._forget(program, REPLACED)

    def _forget(self, program: Program, reason: str) -> None:
        """Forget a program, and remember the reason."""
        self._programs.remove(program)
        text = hash(program.cell.text)
        self._gone.pop(text, None)
        self._gone[text] = reason
        if len(self._gone) > _MOST_GONE:
            del self._gone[next(iter(self._gone))]
        self._uncollected += 1
        if self._uncollected >= _MOST_PROGRAMS:
            # TensorFlow's graphs are in cycles of references. Python's collector looks at all
            # objects only when their number has grown by a quarter, after hundreds of cells.
            self._uncollected = 0
            gc.collect()

    def execute(self, program: Program, captured: Captured) -> tuple[list[Any], OutputRecord, bool]:
        """Run a program once; return its tensors, their record, and whether it was traced."""
        before = len(program.records)
        try:
            return self.guarded(program, captured, lambda: program.run(captured))
        finally:
            self.traces += len(program.records) - before
            self._remember(program, captured)

    def guarded(self, program: Program, captured: Captured, call: Callable[[], _T]) -> _T:
        """Call a function, and mark its errors with the line of the cell that they come from."""
        try:
            with self.calls:
                return call()
        except Exception as error:
            record = program.records.get(tuple(captured.signature))
            self._raise(error, program, record.graph if record else None)
        finally:
            self._printer.show()

    def check(
        self,
        cell: StepSource,
        namespace: dict[str, Any],
        bound: Mapping[str, Any],
        types: Mapping[str, Sequence[Any]] | None = None,
    ) -> CheckReport:
        """Check whether a cell would compile for a TPU, and run well, without running it.

        Args:
            cell: The cell.
            namespace: The notebook's names.
            bound: Values that hide the notebook's.
            types: The types of a batch whose sizes are not fixed, by the cell's names.

        Raises:
            CheckError: The strategy is not a virtual TPU's.
            Exception: Any error that the cell raises when it is traced.
        """
        try:
            if types:
                functions = self._traced_open(cell, namespace, bound, types)
            else:
                with observing() as functions:
                    self._trace_only(cell, namespace, bound)
            found = [examine(function) for function in functions]
        except Exception as error:
            # Above the line that cannot be traced, there may be code that a TPU refuses.
            lines: Sequence[int] = getattr(error, "tpunb_lines", ())
            part = above(cell, lines[-1]) if lines and isinstance(cell, CellSource) else None
            if part is None or (refused := self.check(part, namespace, bound, types)).ok:
                raise
            reason = getattr(error, "message", None) or first_line(error)
            fix = getattr(error, "fix", "") or "Fix this line first."
            problem = Problem("trace", reason, fix, lines[-1])
            return dataclasses.replace(refused, errors=(*refused.errors, problem))
        choose = functools.partial(line_in, cell)
        return with_verdict(report(found, line_of=choose), found, self.strategy, choose)

    def traced(
        self,
        cell: StepSource,
        namespace: dict[str, Any],
        bound: Mapping[str, Any],
        arguments: Callable[[Captured], list[Any]] | None = None,
    ) -> tuple[Captured, list[TracedFunction]]:
        """Return the values that a cell captures, and its replica functions, without running it.

        A compiler uses these functions. The cell is traced as for its first run.

        Args:
            cell: The cell.
            namespace: The notebook's names.
            bound: Values that hide the notebook's.
            arguments: Returns the values to trace with instead of the captured arguments.
        """
        captured = self._capturer.capture(cell, namespace, bound)
        make_ready(cell, captured, namespace, self.strategy)
        with observing(written=False) as found, traced_anew():
            captured = self._trace_only(cell, namespace, bound, arguments)
        return captured, found

    def enforce_open_sizes(
        self,
        cell: StepSource,
        namespace: dict[str, Any],
        bound: Mapping[str, Any],
        types: Mapping[str, Sequence[Any]],
    ) -> None:
        """Refuse a cell that a TPU does not compile for batches whose sizes are not fixed.

        Raises:
            tf.errors.InvalidArgumentError: A TPU refuses the cell.
        """
        rules = getattr(self.strategy.extended, "strictness", None)
        if rules is None or not rules.holds(RULE):
            return
        make_ready(cell, self._capturer.capture(cell, namespace, bound), namespace, self.strategy)
        with silent():  # the cell is traced again when it runs
            functions = self._traced_open(cell, namespace, bound, types)
        try:
            for one in functions:
                enforce_open_sizes(one, rules)
        except tf.errors.InvalidArgumentError as error:
            mark(error, cell, functions[0].graph)
            raise

    def _traced_open(
        self,
        cell: StepSource,
        namespace: dict[str, Any],
        bound: Mapping[str, Any],
        types: Mapping[str, Sequence[Any]],
    ) -> list[TracedFunction]:
        """Return the cell's replica functions for batches of any size, and of the size read."""
        with observing() as fixed:
            self._trace_only(cell, namespace, bound)
        with observing() as functions, silent():
            self._trace_only(cell, namespace, bound, lambda captured: opened(captured, types))
        return with_fixed(functions, fixed)

    def _trace_only(
        self,
        cell: StepSource,
        namespace: dict[str, Any],
        bound: Mapping[str, Any],
        arguments: Callable[[Captured], list[Any]] | None = None,
    ) -> Captured:
        """Trace a cell and remember nothing; observers of traces see its replica functions."""
        refuse_other_strategies(self.strategy)
        captured = self._capturer.capture(cell, namespace, bound)
        program = Program(
            self.strategy, cell, namespace, captured, self._capturer, OutputOptions(), self._printer
        )
        if arguments is not None:
            captured = dataclasses.replace(captured, arguments=arguments(captured))
        try:
            program.trace(captured)
        except Exception as error:
            self._raise(error, program)
        return captured

    def _raise(self, error: Exception, program: Program, graph: Any = None) -> NoReturn:
        """Raise a program's error with its lines, or an error that explains it better."""
        raised = original(error, program.failure)
        mark(raised, program.cell, graph)
        replicas = self.strategy.num_replicas_in_sync
        explained = mistake(raised, program.cell, in_branch=program.in_branch, replicas=replicas)
        if explained is not None:
            raise explained from raised
        if raised is error:
            raise raised
        raise raised from None

    def clear(self) -> None:
        """Forget every program."""
        self._programs.clear()
        self._gone.clear()

    def _remember(self, program: Program, captured: Captured) -> None:
        if not program.records:  # its trace has failed
            return
        shortcut = program.shortcut
        if (
            shortcut is not None
            and captured.signature is shortcut.signature
            and self._programs[-1:] == [program]
        ):
            return  # it has run again, as it did the last time
        if shortcut is None or shortcut.signature != captured.signature:
            program.shortcut = self._capturer.shortcut(program.cell, captured)
        if program in self._programs:
            self._programs.remove(program)
        self._programs.append(program)
        while len(self._programs) > _MOST_PROGRAMS:
            self._forget(self._programs[0], EVICTED)


def _was_replaced(program: Program, now: Mapping[str, Hashable]) -> bool:
    """Return whether a program holds an object that the notebook has replaced by another."""
    change = program.dependencies.change()
    if change is not None and not is_plain(change.before):
        return True
    return any(
        isinstance(key, tuple) and key[0] is CaptureKind.OBJECT and now.get(name) != key
        for name, key in program.names.items()
    )


FIRST_RUN = "first run"
EVICTED = "its last trace was evicted: too many other cells have run since"
REPLACED = "the notebook has replaced an object that its last trace held"


def why_new_program(last: Program, captured: Captured, options: OutputOptions) -> str:
    """Return the first difference from the program that ran last."""
    for name in (*captured.key, *last.names):
        now, before = captured.key.get(name), last.names.get(name)
        if now != before:
            value = captured.closed.get(name)
            return _sentence(
                f"`{name}`", _of_key(before, last.closed.get(name)), _of_key(now, value), value
            )
    if options != last.options:
        return "its results are combined in another way"
    change = last.dependencies.change()
    if change is None:
        return EVICTED
    if change.now is change.before:
        return f"{change.subject} has changed in place"
    if isinstance(change.now, CodeType):
        return f"{change.subject} has been edited"
    return _sentence(change.subject, _shown(change.before), _shown(change.now), change.now)


def why_new_arguments(program: Program, captured: Captured) -> str:
    """Return the first difference from the arguments of the last run."""
    pairs = zip(captured.owners, captured.signature, program.signature, strict=True)
    for name, now, before in pairs:
        if now != before:
            return f"`{name}` is now {_shape(now)}, was {_shape(before)}"
    return EVICTED


def _sentence(subject: str, before: str, now: str, value: Any) -> str:
    """Return a change as a sentence; its texts may be equal although the values differ."""
    if not before:
        return f"{subject} is new"
    if not now:
        return f"{subject} is gone"
    if now != before:
        return f"{subject} is now {now}, was {before}"
    if is_plain(value) or is_nest(value):
        return f"{subject} has changed"
    return f"{subject} is another {_noun(value)} now"


def _of_key(key: Hashable, value: Any) -> str:
    """Describe a captured value by its key, and a closed-over value by itself; empty for none."""
    if key is None:
        return ""
    if isinstance(key, CaptureKind):
        return key.value
    if isinstance(key, tuple) and key[:1] == (CaptureKind.NEST,) and not isinstance(key[1], int):
        return "a nest with tensors"
    return _shown(value)


def _shown(value: Any) -> str:
    if value is MISSING:
        return ""
    return reprlib.repr(value) if is_plain(value) or is_nest(value) else f"a {_noun(value)}"


def _noun(value: Any) -> str:
    return "function" if callable(value) and hasattr(value, "__code__") else type(value).__name__


def _shape(signature: Hashable) -> str:
    """Return a dtype and shape as `float32[8, 3]`."""
    if not isinstance(signature, tuple):
        return str(signature)
    if len(signature) != 2 or not isinstance(signature[0], tf.DType):
        each = list(dict.fromkeys(map(_shape, signature)))
        return f"{', '.join(each)} per replica"
    dtype, shape = signature
    sizes = ["..."] if shape.rank is None else ["?" if n is None else str(n) for n in shape]
    return f"{dtype.name}[{', '.join(sizes)}]"
