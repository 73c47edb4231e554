"""Many steps of a cell: fed with batches, in loops, until they are done or stopped."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import CellError
from ..histories import History
from ..interrupts import StopButton
from .batches import Batches
from .capture import Captured
from .feed import Feed
from .loop import Kept, Loop, bound_to
from .nests import substitute
from .outputs import LAST, Record, Slot
from .pace import Pace
from .plots import Plots
from .program import Options, Program
from .readiness import make_ready
from .timings import LoopTimings, Waits

if TYPE_CHECKING:
    from ..checking import CheckReport
    from .runner import CellRunner
    from .source import CellSource

__all__ = ["Steps", "Watcher"]

_READING = 2e-3
"""Seconds that reading a single batch may take without having waited for it."""


class Watcher(Protocol):
    """Is told how a run goes."""

    def tracing(self, what: str) -> None:
        """TensorFlow begins to trace."""

    def made(self, steps: int, examples: int | None) -> None:
        """So many steps have been made in all, of so many examples each."""


class _NoWatcher:
    def tracing(self, what: str) -> None:
        del what

    def made(self, steps: int, examples: int | None) -> None:
        del steps, examples


@dataclass
class Steps:
    """A run of many steps, which can be ended and taken up again.

    Attributes:
        runner: Runs the cell.
        cell: What each step runs.
        namespace: The notebook's.
        feed: Where the batches come from; None for steps without data.
        names: What a batch, or its parts, are called in the cell.
        total: How many steps there are to be; None until the data ends.
        options: What is reduced, gathered and plotted.
        pace: Chooses the steps of a loop.
        history: Takes what is plotted.
        timed: Whether to measure in the loop how long steps wait.
        watcher: Is told how it goes.
        done: Steps made so far.
        stopped: Whether the stop button has ended the run.
        ended: Whether the data has ended.
        timings: What it has taken.
        bound: Values that hide the notebook's: the batch, and what steps hand on.
    """

    runner: CellRunner
    cell: CellSource
    namespace: dict[str, Any]
    feed: Feed | None
    names: tuple[str, ...]
    total: int | None
    options: Options
    pace: Pace
    history: History
    timed: bool = False
    watcher: Watcher = field(default_factory=_NoWatcher)
    done: int = 0
    stopped: bool = False
    ended: bool = False
    timings: LoopTimings = field(default_factory=LoopTimings)
    bound: dict[str, Any] = field(default_factory=dict)
    _values: dict[str, Any] = field(default_factory=dict)
    _is_stale: bool = False  # whether the names' values are those of a step before the last
    _waits: Waits = field(default_factory=Waits)
    _record: Record | None = None
    _batches: Batches | None = None

    def __post_init__(self) -> None:
        self._plots = Plots(self.history, self.options.plot, dict(self.options.reduce))

    @property
    def left(self) -> float:
        """How many steps are to be made still."""
        return float("inf") if self.total is None else self.total - self.done

    @property
    def _room(self) -> float:
        """How many steps there is data for, as far as is known."""
        there = self.feed.left if self.feed is not None else None
        return self.left if there is None else min(self.left, max(there, 1))

    @property
    def value(self) -> Any:
        """The last expression's value in the last step; None if there is none."""
        return self._values.get(LAST)

    @property
    def assigned(self) -> dict[str, Any]:
        """What the cell's names stand for after the last step."""
        return {name: value for name, value in self._values.items() if name != LAST}

    @property
    def withheld(self) -> tuple[str, ...]:
        """Names that stay in the cell."""
        return tuple(n for n in self._record.withheld if n != LAST) if self._record else ()

    def check(self) -> CheckReport:
        """Checks with the first batch whether a step would compile for a TPU; runs nothing.

        Raises:
            CheckError: The strategy is not a virtual TPU's.
            Exception: What the cell raises when it is traced.
        """
        if (batches := self._opened()) is not None and (batch := batches.peek()) is not None:
            self.bound.update(bound_to(self.names, batch.value))
        return self.runner.check_cell(self.cell, self.namespace, self.bound)

    def _opened(self) -> Batches | None:
        if self._batches is None and self.feed is not None:
            self._batches = Batches(self.runner.strategy, self.feed)
        return self._batches

    def go(self) -> None:
        """Makes the steps that are left.

        The first interrupt ends the run between two calls, with everything kept;
        then `stopped` is true and `go` can be called again.

        Raises:
            CellError: The data or a name do not fit; what was done is kept.
            Exception: What the cell or the data raises, marked with its lines and step.
        """
        started = time.perf_counter()
        self.stopped = False
        self._opened()
        try:
            with StopButton() as button:
                while self.left > 0 and not self.ended:
                    if button.pressed:
                        self.stopped = True
                        break
                    self._call(self.pace.choose(self._room))
                    # After a loop, the names have the values of a step before it.
                    if button.pressed and self.left > 0 and not self.ended and self._is_stale:
                        self._call(1)
        except Exception as error:
            self._annotate(error)
            raise
        finally:
            self._plots.flush()
            self._note_times(time.perf_counter() - started)

    def refuse_early_end(self) -> None:
        """Says that the data has ended before its time.

        Raises:
            CellError: It has; what was done is kept.
        """
        if self.ended and self.total is not None and self.done < self.total:
            raise CellError(
                f"The data ended after {self.done} of {self.total} steps; what they have done is "
                "kept.",
                mend="Repeat it (`.repeat()`), or leave out the number of steps.",
            )

    def _call(self, count: int) -> None:
        """Makes one step, or a loop of them."""
        if count > 1 and self._looped(count):
            self._is_stale = True
        elif self._single():
            self._is_stale = False
        examples = self._batches.examples if self._batches else None
        self.watcher.made(self.done, examples)
        self._plots.flush_in_time()

    def _single(self) -> bool:
        """Makes one step by itself; false if there is no batch for it."""
        began = time.perf_counter()
        if self._batches is not None:
            batch = self._batches.next()
            if batch is None:
                self.ended = True
                return False
            self.bound.update(bound_to(self.names, batch.value))
        waited = time.perf_counter() - began
        program, captured, _ = self.runner.program(
            self.cell, self.options, self.namespace, self.bound
        )
        known = tuple(captured.signature) in program.records
        if not known:
            self.watcher.tracing("step")
            make_ready(self.cell, captured, self.namespace, self.runner.strategy)
        outputs, record, traced = self.runner.execute(program, captured)
        plotted = self._plots.found(record, outputs)
        ended = time.perf_counter()
        self._record, self._values = record, record.values(outputs)
        self._hand_on(self._values)
        self.done += 1
        self._plots.put(self.done, plotted)
        trace = program.traced_at - began if traced else None
        self._took(1, ended - began, trace)
        if not traced and self.feed is not None:
            # Reading a batch alone costs something even where it is there already.
            self._waits.add(max(0.0, waited - _READING), ended - began)
        return True

    def _looped(self, count: int) -> bool:
        """Makes steps in one call; false if the loop's form is not known yet."""
        program, captured, _ = self.runner.program(
            self.cell, self.options, self.namespace, self.bound
        )
        if tuple(captured.signature) not in program.records:
            return False
        loop, known = program.loop(captured, self._loop_key(captured, program), self._make_loop)
        if not known:
            self.watcher.tracing("loop")
        began = time.perf_counter()
        try:
            kept = self.runner.guarded(program, captured, lambda: self._run(loop, count, captured))
        except Exception:
            self.done += loop.done
            self._took_batches(loop.done)
            raise
        seconds = time.perf_counter() - began
        self._keep(kept, count, captured, program)
        self._took(count, seconds, None if known else seconds)
        if kept.waited is not None and known:
            self._waits.add(kept.waited, seconds)
        return True

    def _run(self, loop: Loop, count: int, captured: Captured) -> Kept:
        return loop.run(self.feed.iterator if self.feed else None, count, captured)

    def _loop_key(self, captured: Captured, program: Program) -> tuple[Any, ...]:
        carried = tuple(sorted(self._carried(captured, program)))
        # The names too: other parts of a batch may have the same shapes.
        return (tuple(captured.signature), self.names, carried, self.timed)

    def _make_loop(self, program: Program, captured: Captured, key: tuple[Any, ...]) -> Loop:
        _, names, carried, timed = key
        return Loop(program, captured, names, carried, timed=timed)

    def _carried(self, captured: Captured, program: Program) -> set[str]:
        """Names that a step takes from the step before."""
        record = program.records[tuple(captured.signature)]
        return {n for n in captured.owners if n in record.nests and n not in self.names}

    def _keep(self, kept: Kept, count: int, captured: Captured, program: Program) -> None:
        """Takes in what a loop has left behind."""
        record = program.records[tuple(captured.signature)]
        self._plots.extend(self.done, kept.plots)
        carried = self._carried(captured, program)
        owners = [owner for owner in captured.owners if owner in carried]
        parts: dict[str, list[Any]] = {}
        for owner, tensor in zip(owners, kept.carried, strict=True):
            parts.setdefault(owner, []).append(tensor)
        for name, found in parts.items():
            self.bound[name] = _filled(record.nests[name], iter(found))
        self.done += count
        self._took_batches(count)

    def _took_batches(self, count: int) -> None:
        if self.feed is not None:
            self.feed.took(count)

    def _hand_on(self, values: Mapping[str, Any]) -> None:
        for name in (*self.cell.names.reads, *self.cell.later):
            if name in values and name not in self.names:
                self.bound[name] = values[name]

    def _took(self, count: int, seconds: float, trace: float | None) -> None:
        self.pace.took(count, seconds, trace=trace)
        times = self.timings
        if trace is not None:
            times.trace = (times.trace or 0.0) + trace
        if times.first_step is None:
            times.first_step = seconds

    def _note_times(self, seconds: float) -> None:
        times = self.timings
        times.steady_step, times.steps_per_loop = self.pace.step, self.pace.steps_per_loop
        times.input_wait = self._waits.share
        times.steps, times.seconds = self.done, times.seconds + seconds

    def _annotate(self, error: BaseException) -> None:
        """Tells an error at which step it came, and with which batch."""
        where = f"At step {self.done + 1}" if self.done else "In the first step"
        if self._batches is not None and (batch := self._batches.described()):
            where += f", with a batch of {batch}"
        error.tpunb_step = self.done + 1  # type: ignore[attr-defined]
        error.tpunb_where = f"{where}."  # type: ignore[attr-defined]
        if hasattr(error, "add_note"):
            error.add_note(f"{where}.")


def _filled(nest: Any, tensors: Iterator[Any]) -> Any:
    """A nest with tensors in the place of its slots."""
    return substitute(nest, lambda leaf: next(tensors) if type(leaf) is Slot else leaf)
