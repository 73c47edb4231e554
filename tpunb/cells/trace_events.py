"""The events of the host in a recording of TensorFlow's profiler, and which belong together."""

from __future__ import annotations

import enum
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tpunb.training.spans import Spans

__all__ = ["Event", "HostTrace", "Kind", "after_each_other", "inner_times"]


class Kind(enum.Enum):
    """What an event of the host says.

    `CAPTURED` is an input pipeline's call of a function, `PRODUCER` the begin of any function's
    run, `CONSUMER` a part of it on any thread.
    """

    PIPELINE = enum.auto()
    CAPTURED = enum.auto()
    PRODUCER = enum.auto()
    CONSUMER = enum.auto()
    WAIT = enum.auto()
    OPERATION = enum.auto()
    TRACING = enum.auto()
    STEP = enum.auto()
    CALL = enum.auto()


class Event(NamedTuple):
    """An event.

    Attributes:
        start: In picoseconds.
        end: In picoseconds.
        kind: What it says.
        name: As recorded; of a step, with its number.
        runs: What names the run of a function that it begins or is a part of.
    """

    start: int
    end: int
    kind: Kind
    name: str
    runs: frozenset[int] = frozenset()


_KINDS = (
    (Kind.WAIT, re.compile(r"IteratorGetNext\w*Op::DoCompute|[^:]*:IteratorGetNext\w*")),
    (Kind.PIPELINE, re.compile(r"Iterator::.*", re.DOTALL)),
    (Kind.CAPTURED, re.compile(r"InstantiatedCapturedFunction::\w+")),
    (Kind.PRODUCER, re.compile(r"FunctionRun")),
    (Kind.CONSUMER, re.compile(r"ExecutorState::Process")),
    (Kind.TRACING, re.compile(r"tf\.function-graph_building")),
    # What only calls or moves others is none.
    (
        Kind.OPERATION,
        re.compile(
            r"[^:]+:(?!(?:_?(Host)?(Send|Recv)|NoOp|While|StatelessWhile|If|StatelessIf|Case"
            r"|(Stateful)?PartitionedCall|MakeIterator|\w*Dataset(V\d)?|\w*Iterator(V\d)?)$)[A-Za-z_]\w*"
        ),
    ),
    (Kind.STEP, re.compile(r"[^:/]+")),
)
"""In their order; what may be a step shows in its values."""

_RUNS = {
    Kind.CAPTURED: ("id",),
    Kind.PRODUCER: ("id", "_p"),
    Kind.CONSUMER: ("id", "_c"),
}
"""The values that name a run. A pipeline's threads share the first, other threads the second."""


class HostTrace:
    """What the host's threads did."""

    def __init__(self) -> None:
        self._threads: list[list[Event]] = []
        self._pipeline_runs: set[int] = set()

    def read(self, plane: Any, origin: int, most: int) -> None:
        """Takes the events of a plane.

        Args:
            plane: An `XPlane`.
            origin: The nanosecond that times are counted from.
            most: How many events are read.
        """
        kinds = {number: _kind(one.name) for number, one in plane.event_metadata.items()}
        values = {number: one.name for number, one in plane.stat_metadata.items()}
        for line in plane.lines:
            base = (line.timestamp_ns - origin) * 1000
            found: list[Event] = []
            for one in line.events[: max(0, most)]:
                if (kind := kinds.get(one.metadata_id)) is not None:
                    name = plane.event_metadata[one.metadata_id].name
                    start = base + one.offset_ps
                    event = Event(start, start + one.duration_ps, kind, name)
                    found += _completed(event, one.stats, values)
            most -= len(line.events)
            # The longer first of those that start together: it holds the others.
            self._threads.append(sorted(found, key=lambda event: (event.start, -event.end)))

    def find_input_pipelines(self) -> None:
        """Finds the runs of functions that input pipelines call, and what these call."""
        count = -1
        while count < len(self._pipeline_runs):
            count = len(self._pipeline_runs)
            for event, within in self._marked():
                if event.kind is Kind.CAPTURED or (within and event.kind is Kind.PRODUCER):
                    self._pipeline_runs |= event.runs

    def _marked(self) -> Iterator[tuple[Event, bool]]:
        """All events, and whether an input pipeline causes them."""
        for thread in self._threads:
            yield from self._marked_thread(thread)

    def _marked_thread(self, thread: list[Event]) -> Iterator[tuple[Event, bool]]:
        until = -1
        for event in thread:
            yield event, event.start < until
            part = event.kind is Kind.CONSUMER and event.runs & self._pipeline_runs
            if part or event.kind in (Kind.PIPELINE, Kind.CAPTURED):
                until = max(until, event.end)

    def waits(self) -> Spans:
        """When a step waited for its data; not an input pipeline for another."""
        found = ((one, within) for one, within in self._marked() if one.kind is Kind.WAIT)
        return Spans((one.start, one.end) for one, within in found if not within)

    def operations(self) -> Iterator[list[Event]]:
        """Each thread's operations, but those of input pipelines."""
        for thread in self._threads:
            yield [
                event
                for event, within in self._marked_thread(thread)
                if event.kind is Kind.OPERATION and not within
            ]

    def tracing(self) -> int:
        """How long functions were traced, in picoseconds."""
        spans = Spans(
            (event.start, event.end) for event, _ in self._marked() if event.kind is Kind.TRACING
        )
        return sum(end - start for start, end in spans)

    def steps(self) -> tuple[list[tuple[str, int, int]], str]:
        """The steps, each with its name, start and end, and what a step is.

        Steps are what is marked as such, else calls of a function.
        """
        marked = _outermost(event for event, _ in self._marked() if event.kind is Kind.STEP)
        if marked:
            return after_each_other(marked), "step"
        calls, kind = self._calls()
        named = [one._replace(name=f"call {place}") for place, one in enumerate(calls)]
        return after_each_other(named), kind

    def _calls(self) -> tuple[list[Event], str]:
        """The calls of the `tf.function` that took the longest: where steps are not marked."""
        calls = (one for one, within in self._marked() if one.kind is Kind.CALL and not within)
        by_name = defaultdict(list)
        for event in _outermost(calls):
            by_name[event.name].append(event)
        if not by_name:
            return [], "step"
        name = max(by_name, key=lambda name: sum(one.end - one.start for one in by_name[name]))
        return by_name[name], f"call of {name}"


def _kind(name: str) -> Kind | None:
    return next((kind for kind, pattern in _KINDS if pattern.fullmatch(name)), None)


def _completed(event: Event, stats: Any, names: dict[int, str]) -> Iterator[Event]:
    """An event with what its values say; none if it may have been a step and is not."""
    if event.kind in _RUNS:
        wanted = _RUNS[event.kind]
        runs = (_number(one) for one in stats if names.get(one.metadata_id) in wanted)
        yield event._replace(runs=frozenset(runs))
    elif event.kind is Kind.STEP:
        values = {names.get(one.metadata_id): one for one in stats}
        if (number := values.get("step_num")) is not None:
            yield event._replace(name=f"{event.name} {_number(number)}")
        elif "tf_function_call" in values:
            yield event._replace(kind=Kind.CALL)
    else:
        yield event


def _number(stat: Any) -> int:
    return int(getattr(stat, stat.WhichOneof("value")))


def _outermost(events: Iterator[Event]) -> list[Event]:
    """Those events that begin in no other one, in their order."""
    found: list[Event] = []
    for event in sorted(events, key=lambda event: (event.start, -event.end)):
        if not found or event.start >= found[-1].end:
            found.append(event)
    return found


def after_each_other(steps: Sequence[Event]) -> list[tuple[str, int, int]]:
    """Each step's name, start and end, in their order.

    A step begins where the one before ends: loops take their data before they mark a step.
    """
    ends = [step.end for step in steps]
    starts = [step.start for step in steps[:1]] + ends[:-1]
    names = [step.name for step in steps]
    return list(zip(names, starts, ends, strict=True))


def inner_times(events: Sequence[Event]) -> Iterator[tuple[Event, int]]:
    """Events of one line, each with its time without that of events that it contains."""
    open_events: list[list[Any]] = []
    for event in sorted(events, key=lambda event: (event.start, -event.end)):
        while open_events and open_events[-1][0].end <= event.start:
            yield tuple(open_events.pop())
        length = event.end - event.start
        if open_events:
            open_events[-1][1] -= length
        open_events.append([event, length])
    while open_events:
        yield tuple(open_events.pop())
