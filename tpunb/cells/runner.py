"""Runs cells on every replica and remembers how they were traced."""

from __future__ import annotations

import functools
import linecache
import time
import types
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..checking import CheckReport, innermost, refuse_other_strategies, report
from ..histories import History
from ..virtual.strict.examination import observed
from ..virtual.strict.places import Place
from .asking import checked_options, refuse_counts, total_steps
from .capture import Captured, Capturer, Kind
from .feed import open_feed
from .lines import mark
from .outputs import LAST, Record
from .pace import Pace
from .program import Options, Program, program_key
from .reasons import FIRST_RUN, FORGOTTEN, why_new_arguments, why_new_program
from .source import CellSource, parse_cell
from .steps import Steps
from .timings import Timings

__all__ = ["CellResult", "CellRunner", "bind"]

_MOST_PROGRAMS = 64
_NOTHING: Mapping[str, Any] = types.MappingProxyType({})
_T = TypeVar("_T")


@dataclass(frozen=True)
class CellResult:
    """What a run of a cell leaves behind.

    Attributes:
        value: The last expression's value: per-replica values where it is made
            of tensors, else the Python value; None if there is none.
        assigned: The names that go back to the notebook, with their values.
        traced: Whether TensorFlow traced the cell in this run.
        trace_reason: Why it did.
        quiet: Whether the last expression ends with a semicolon.
        withheld: Names that were assigned but stay in the cell: what is
            assigned only in loops or branches over tensors, tapes, iterators,
            and functions that need any of these.
        timings: Times, if they were asked for.
    """

    value: Any
    assigned: Mapping[str, Any]
    traced: bool
    trace_reason: str | None
    quiet: bool = False
    withheld: tuple[str, ...] = ()
    timings: Timings | None = None


def bind(result: CellResult, namespace: dict[str, Any]) -> None:
    """Puts the names that a cell assigned into the notebook's namespace."""
    namespace.update(result.assigned)


class CellRunner:
    """Runs cells with one strategy.

    Args:
        strategy: A `tf.distribute.Strategy`.

    Attributes:
        traces: How many times a cell has been traced.
        strategy: The strategy.
    """

    def __init__(self, strategy: Any) -> None:
        self.traces = 0
        self.strategy = strategy
        self._capturer = Capturer(strategy)
        self._cells: dict[str, CellSource] = {}
        self._programs: OrderedDict[Hashable, Program] = OrderedDict()
        self._latest: dict[str, Program | None] = {}  # None: forgotten since

    def run(
        self,
        source: str,
        namespace: dict[str, Any],
        *,
        filename: str | None = None,
        reduce: Mapping[str, str] | None = None,
        gather: Mapping[str, int] | None = None,
        timed: bool = False,
    ) -> CellResult:
        """Runs a cell's body on every replica.

        Args:
            source: The body: what stands below the magic's line, which is line 1.
            namespace: Where the cell's names come from. It is not written to;
                see `bind`.
            filename: What tracebacks call the cell at its first run.
            reduce: Names to combine over the replicas, by `mean` or `sum`; `_`
                is the last expression.
            gather: Names to concatenate over the replicas, with the axis.
            timed: Whether to measure.

        Raises:
            SyntaxError: The cell is not Python.
            CellError: The cell cannot run on the replicas.
            Exception: What the cell raises, with `tpunb_lines`: the cell's
                lines that it came from.
        """
        started = time.perf_counter()
        cell = self._cell(source, filename)
        options = checked_options(cell, reduce, gather) if reduce or gather else Options()
        program, captured, reason = self.program(cell, options, namespace)
        outputs, record, traced = self.execute(program, captured)
        ended = time.perf_counter()
        traced_at = program.traced_at if traced else None
        values = record.values(outputs)
        value = values.pop(LAST, None)
        return CellResult(
            value=value,
            assigned=values,
            traced=traced,
            trace_reason=reason if traced else None,
            quiet=cell.quiet,
            withheld=tuple(name for name in record.withheld if name != LAST),
            timings=Timings.of(started, ended, traced_at) if timed else None,
        )

    def check(
        self, source: str, namespace: dict[str, Any], *, filename: str | None = None
    ) -> CheckReport:
        """Checks whether a cell would compile for a TPU, and run well; runs nothing.

        Args:
            source: The body, as for `run`.
            namespace: Where the cell's names come from.
            filename: What tracebacks call the cell.

        Raises:
            SyntaxError: The cell is not Python.
            CheckError: The strategy is not a virtual TPU's.
            Exception: What the cell raises when it is traced, as from `run`.
        """
        return self.check_cell(self._cell(source, filename), namespace)

    def check_cell(
        self, cell: CellSource, namespace: dict[str, Any], bound: Mapping[str, Any] = _NOTHING
    ) -> CheckReport:
        """The same for a cell that has been parsed, with values that hide the notebook's."""
        refuse_other_strategies(self.strategy)
        captured = self._capturer.capture(cell, namespace, bound)
        program = Program(self.strategy, cell, namespace, captured, self._capturer, Options())
        with observed() as found:
            try:
                program.trace(captured)
            except Exception as error:
                raised = _original(error, program.failure)
                mark(raised, cell)
                if raised is error:
                    raise
                raise raised from None
        return report(found, line_of=functools.partial(_line_in, cell))

    def steps(
        self,
        source: str,
        namespace: dict[str, Any],
        *,
        data: Any = None,
        names: Sequence[str] = ("batch",),
        steps: int | None = None,
        steps_per_loop: int | None = None,
        plot: Sequence[str] = (),
        reduce: Mapping[str, str] | None = None,
        gather: Mapping[str, int] | None = None,
        history: History | None = None,
        filename: str | None = None,
        timed: bool = False,
        bound: Mapping[str, Any] = _NOTHING,
    ) -> Steps:
        """A run of many steps of a cell; its `go` makes them.

        Args:
            source: The body, as for `run`.
            namespace: Where the cell's names come from.
            data: Where the batches come from, as `open_feed` takes it; None for
                steps without data.
            names: What a batch is called in the cell; several for its parts.
            steps: How many; with data and None, to its end.
            steps_per_loop: How many to make in one call; None to choose by measuring.
            plot: Names whose values to keep of every step.
            reduce: Names to combine over the replicas, as for `run`.
            gather: Names to concatenate over the replicas.
            history: Takes what is plotted; a new one by default.
            filename: What tracebacks call the cell.
            timed: Whether to measure in the loop how long steps wait for batches.
            bound: Values that hide the namespace's.

        Raises:
            SyntaxError: The cell is not Python.
            CellError: What is asked for contradicts itself, the cell or the data.
        """
        cell = self._cell(source, filename)
        refuse_counts(steps, steps_per_loop)
        feed = None if data is None else open_feed(self.strategy, data, repeat=steps is not None)
        total = total_steps(steps, feed)
        options = checked_options(cell, reduce, gather, tuple(plot))
        loopable = feed is None or (feed.distributed and feed.left is not None)
        return Steps(
            runner=self,
            cell=cell,
            namespace=namespace,
            feed=feed,
            names=tuple(names) if feed is not None else (),
            total=total,
            options=options,
            pace=Pace(steps_per_loop, loopable=loopable),
            history=history if history is not None else History(total_steps=total),
            timed=timed,
            bound=dict(bound),
        )

    def execute(self, program: Program, captured: Captured) -> tuple[list[Any], Record, bool]:
        """Runs a program once: its tensors, what they are, and whether it was traced."""
        try:
            return self.guarded(program, captured, lambda: program.run(captured))
        finally:
            self._remember(program, captured)

    def guarded(self, program: Program, captured: Captured, call: Callable[[], _T]) -> _T:
        """What a call returns; its errors say which line of the cell they come from."""
        try:
            return call()
        except Exception as error:
            raised = _original(error, program.failure)
            mark(raised, program.cell, program.graph(captured))
            if raised is error:
                raise
            raise raised from None

    def close(self) -> None:
        """Forgets every cell and every trace."""
        for cell in self._cells.values():
            linecache.cache.pop(cell.filename, None)
        self._cells.clear()
        self._programs.clear()
        self._latest.clear()

    def _cell(self, source: str, filename: str | None) -> CellSource:
        cell = self._cells.get(source)
        if cell is None:
            cell = self._cells[source] = parse_cell(source, filename)
        return cell

    def program(
        self,
        cell: CellSource,
        options: Options,
        namespace: dict[str, Any],
        bound: Mapping[str, Any] = _NOTHING,
    ) -> tuple[Program, Captured, str]:
        """The program that fits, what to run it with, and why it would have to trace.

        Args:
            cell: The cell.
            options: How results are combined.
            namespace: The notebook's.
            bound: Values that hide the notebook's.
        """
        last = self._latest.get(cell.text)
        if last and last.shortcut and last.options == options and last.namespace is namespace:
            captured = self._capturer.again(last.shortcut, namespace, bound)
            if captured is not None:
                return last, captured, FIRST_RUN
        captured = self._capturer.capture(cell, namespace, bound)
        program = self._programs.get(program_key(cell, captured.key, options, namespace))
        if program is None:
            reason = self._reason(cell, captured, options)
            self._forget_replaced(cell, captured)
            program = Program(self.strategy, cell, namespace, captured, self._capturer, options)
            return program, captured, reason
        if tuple(captured.signature) in program.records:
            return program, captured, FIRST_RUN
        return program, captured, why_new_arguments(program, captured)

    def _reason(self, cell: CellSource, captured: Captured, options: Options) -> str:
        if cell.text not in self._latest:
            return FIRST_RUN
        last = self._latest[cell.text]
        return why_new_program(last, captured, options) if last else FORGOTTEN

    def _remember(self, program: Program, captured: Captured) -> None:
        if not program.records:  # its trace has failed
            return
        if self._is_unchanged(program, captured):
            return
        self.traces += len(program.records) - program.counted
        program.counted = len(program.records)
        if program.shortcut is None or program.shortcut.signature != captured.signature:
            program.shortcut = self._capturer.shortcut(program.cell, captured)
        self._programs[program.key] = program
        self._programs.move_to_end(program.key)
        self._latest[program.cell.text] = program
        while len(self._programs) > _MOST_PROGRAMS:
            _, oldest = self._programs.popitem(last=False)
            if self._latest[oldest.cell.text] is oldest:
                self._latest[oldest.cell.text] = None

    def _is_unchanged(self, program: Program, captured: Captured) -> bool:
        """Whether the last run's program has run again, as it did then."""
        return (
            program.shortcut is not None
            and captured.signature is program.shortcut.signature
            and program.counted == len(program.records)
            and self._latest.get(program.cell.text) is program
            and next(reversed(self._programs.values()), None) is program
        )

    def _forget_replaced(self, cell: CellSource, captured: Captured) -> None:
        """Drops the cell's programs that hold an object which the notebook has replaced.

        They would keep a model's variables in the memory of the cores.
        """
        for key, program in list(self._programs.items()):
            if program.cell is cell and _was_replaced(program.names, captured.key):
                del self._programs[key]


def _line_in(cell: CellSource, places: Sequence[Place]) -> tuple[str, int] | None:
    """The innermost line of the cell that led to a place; else the place itself."""
    inside = range(2, len(cell.lines) + 1)
    for place in places:
        if place.file == cell.filename and place.line in inside:
            return "", cell.first_line(place.line)
    return innermost(places)


def _was_replaced(before: Mapping[str, Hashable], now: Mapping[str, Hashable]) -> bool:
    return any(
        isinstance(key, tuple) and key[0] is Kind.OBJECT and now.get(name) != key
        for name, key in before.items()
    )


def _original(error: Exception, failure: BaseException | None) -> BaseException:
    """The cell's own exception, where AutoGraph could not keep its type."""
    if type(error).__name__ == "StagingError" and failure is not None:
        return failure
    return error
