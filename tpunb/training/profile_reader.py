"""A reader of TensorFlow's profiles: an `XSpace`, from a file `*.xplane.pb`."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tpunb._util.units import duration, grouped
from tpunb.training.profile import Operation, Profile, StepTimes

Ticks: TypeAlias = npt.NDArray[np.int64]


class Spans:
    """The union of intervals of time, in whole ticks of any unit.

    Args:
        intervals: Starts and ends, in any order; they may overlap.
    """

    def __init__(self, intervals: Iterable[tuple[int, int]] = ()) -> None:
        pairs = np.array(sorted(intervals), np.int64).reshape(-1, 2)
        # An interval begins a new span if no earlier interval reaches it.
        reached = np.maximum.accumulate(pairs[:, 1])
        first = np.append(True, pairs[1:, 0] > reached[:-1])[: len(pairs)]
        self.starts: Ticks = pairs[first, 0]
        self.ends: Ticks = reached[np.append(first[1:], True)[: len(pairs)]]
        self._before: Ticks = np.append(0, np.cumsum(self.ends - self.starts))

    def __or__(self, other: Spans) -> Spans:
        return Spans([*self, *other])

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self.starts.tolist(), self.ends.tolist(), strict=True))

    def within(self, start: int, end: int) -> int:
        """Return the number of ticks of the set from a start to an end."""
        return self._until(end) - self._until(start)

    def _until(self, tick: int) -> int:
        """Return the number of ticks of the set before a tick."""
        place = int(np.searchsorted(self.starts, tick))
        if not place:
            return 0
        beyond = max(0, int(self.ends[place - 1]) - tick)
        return int(self._before[place]) - beyond


MOST_EVENTS = 3_000_000
"""The most events to read of a plane. They take some seconds and some hundred megabytes."""

_PS = 1e-12
_TRACING_TO_MENTION = 0.05
"""The share of the time from which tracing is mentioned."""

_TPU = re.compile(r"/device:TPU:\d+")
_COLLECTIVE = re.compile(
    r"(all-reduce|all-gather|all-to-all|reduce-scatter|collective-|send|recv)[\w.-]*"
    r"|(CrossReplicaSum|AllToAll|CollectivePermute)(_\d+)*",
)
_REPLICA = re.compile(r"/replica_\d+(?=/|$)")
_CALL = re.compile(r"^(?:(?:Stateful|Stateless)?PartitionedCall(?:_\d+)?/)+")

_NOTE_CPU = "Device: operations on this machine's processors, as on any virtual TPU."
_NOTE_STEPS = "A step is a {}, because the run marks no steps. In a loop, it has several steps."
_NOTE_TRACING = "Tracing functions takes {} of the time. Run it again to see it without tracing."
_NOTE_MOST = f"Only the first {grouped(MOST_EVENTS)} events of each device and the host were read."


class Kind(enum.Enum):
    """The kind of an event of the host.

    `CAPTURED` is an input pipeline's call of a function, `PRODUCER` is the start of a run of any
    function, and `CONSUMER` is a part of that run on any thread.
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


_KINDS = (
    (Kind.WAIT, re.compile(r"IteratorGetNext\w*Op::DoCompute|[^:]*:IteratorGetNext\w*")),
    (Kind.PIPELINE, re.compile(r"Iterator::.*", re.DOTALL)),
    (Kind.CAPTURED, re.compile(r"InstantiatedCapturedFunction::\w+")),
    (Kind.PRODUCER, re.compile(r"FunctionRun")),
    (Kind.CONSUMER, re.compile(r"ExecutorState::Process")),
    (Kind.TRACING, re.compile(r"tf\.function-graph_building")),
    # Operations that only call others or move values do not count.
    (
        Kind.OPERATION,
        re.compile(
            r"[^:]+:(?!(?:_?(Host)?(Send|Recv)|NoOp|While|StatelessWhile|If|StatelessIf|Case"
            r"|(Stateful)?PartitionedCall|MakeIterator|\w*Dataset(V\d)?|\w*Iterator(V\d)?)$)[A-Za-z_]\w*"
        ),
    ),
    (Kind.STEP, re.compile(r"[^:/]+")),
)
"""The kinds by their events' names. The first match wins; a step's values must confirm it."""

_CALLED = {"function": "a tf.function", "tpu_cell": "the cell"}
"""Words for functions that have no name of their own: a `functools.partial`, and cells."""

_RUNS = {
    Kind.CAPTURED: ("id",),
    Kind.PRODUCER: ("id", "_p"),
    Kind.CONSUMER: ("id", "_c"),
}
"""The values that identify a run: the first on a pipeline's threads, the second on others."""


class Event(NamedTuple):
    """An event of the recording.

    Attributes:
        start: The start in picoseconds.
        end: The end in picoseconds.
        kind: The kind of the event.
        name: The recorded name; for a step, with its number.
        runs: The ids of the run of a function that the event starts or is a part of.
    """

    start: int
    end: int
    kind: Kind
    name: str
    runs: frozenset[int] = frozenset()


def read_profile(space: Any, seconds: float) -> Profile:
    """Return a profile of a recording.

    Args:
        space: An `XSpace`.
        seconds: The length of the recording, by the clock.
    """
    origin = min((line.timestamp_ns for plane in space.planes for line in plane.lines), default=0)
    host = _Host()
    cores: list[list[Event]] = []
    device_steps: list[Event] = []
    is_cut = False
    for plane in space.planes:
        is_cut |= sum(len(line.events) for line in plane.lines) > MOST_EVENTS
        if plane.name.startswith("/host:CPU"):
            host.read(plane, origin, MOST_EVENTS)
        elif _TPU.fullmatch(plane.name):
            cores += _device_events(plane, origin, "XLA Ops")
            lines = _device_events(plane, origin, "Steps")
            device_steps = device_steps or [step for line in lines for step in line]
    host.find_runs()
    device = _device_times(cores, host)
    # The host only sends steps to a TPU. The TPU knows how long they take.
    steps, kind = (_in_sequence(device_steps), "step") if device_steps else host.steps()
    busy = Spans(device.busy)
    or_wait = busy | host.waits()
    any_of_them = or_wait | Spans(device.collectives)

    def divided(name: str, start: int, end: int) -> StepTimes:
        """Return a time divided among the device, input wait, collectives and the host."""
        unions = (busy, or_wait, any_of_them)
        on_device, wait, all_three = (spans.within(start, end) for spans in unions)
        parts = (end - start, wait - on_device, on_device, all_three - wait)
        return StepTimes(name, *(part * _PS for part in parts))

    ends = [end for span in any_of_them for end in span] or [0]
    whole = dataclasses.replace(divided("whole", ends[0], ends[-1]), seconds=seconds)
    traced = host.tracing() * _PS
    notes = {
        _NOTE_CPU: not cores,
        _NOTE_STEPS.format(kind): bool(steps) and kind != "step",
        _NOTE_TRACING.format(duration(traced)): traced > _TRACING_TO_MENTION * seconds,
        _NOTE_MOST: is_cut,
    }
    return Profile(
        whole,
        tuple(divided(*step) for step in steps),
        device.listed(),
        "TPU" if cores else "CPU",
        kind,
        tuple(note for note, holds in notes.items() if holds),
    )


class _Host:
    """The threads of the host."""

    def __init__(self) -> None:
        self._threads: list[list[Event]] = []
        self._pipeline_runs: set[int] = set()
        self._started_runs: set[int] = set()

    def read(self, plane: Any, origin: int, most: int) -> None:
        """Read at most `most` events of a plane. Times count from the origin, in nanoseconds."""
        kinds = {
            number: next((kind for kind, pattern in _KINDS if pattern.fullmatch(event.name)), None)
            for number, event in plane.event_metadata.items()
        }
        values = {number: stat.name for number, stat in plane.stat_metadata.items()}
        for line in plane.lines:
            base = (line.timestamp_ns - origin) * 1000
            events: list[Event] = []
            for recorded in line.events[: max(0, most)]:
                if (kind := kinds.get(recorded.metadata_id)) is not None:
                    name = plane.event_metadata[recorded.metadata_id].name
                    start = base + recorded.offset_ps
                    event = Event(start, start + recorded.duration_ps, kind, name)
                    events += _completed(event, recorded.stats, values)
            most -= len(line.events)
            self._threads.append(_by_start(events))

    def find_runs(self) -> None:
        """Find the runs of functions whose start is recorded, and the runs of input pipelines."""
        for thread in self._threads:
            for event in thread:
                if event.kind in (Kind.CAPTURED, Kind.PRODUCER):
                    self._started_runs |= event.runs
        count = -1
        while count < len(self._pipeline_runs):
            count = len(self._pipeline_runs)
            for event, within in self._marked():
                if event.kind is Kind.CAPTURED or (within and event.kind is Kind.PRODUCER):
                    self._pipeline_runs |= event.runs

    def _marked(self) -> Iterator[tuple[Event, bool]]:
        """Yield all events, with whether an input pipeline causes each."""
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
        """Return the time in which steps waited for data, without waits inside input pipelines."""
        marked = self._marked()
        return Spans((e.start, e.end) for e, within in marked if e.kind is Kind.WAIT and not within)

    def operations(self) -> Iterator[list[Event]]:
        """Yield each thread's operations, without the operations of input pipelines.

        A pipeline computes ahead: it runs when a recording begins, and goes on when it ends.
        The profiler keeps only events that begin and end within the recording, so operations of
        a function whose start is missing are left out. Steps begin and end in the recording.
        """
        for thread in self._threads:
            until = -1
            operations = []
            for event, within in self._marked_thread(thread):
                if event.kind is Kind.CONSUMER and event.runs & self._started_runs:
                    until = max(until, event.end)
                if event.kind is Kind.OPERATION and not within and event.start < until:
                    operations.append(event)
            yield operations

    def tracing(self) -> int:
        """Return the time spent on tracing functions, in picoseconds."""
        spans = Spans((e.start, e.end) for e, _ in self._marked() if e.kind is Kind.TRACING)
        return sum(end - start for start, end in spans)

    def steps(self) -> tuple[list[tuple[str, int, int]], str]:
        """Return the steps' names, starts and ends, and the kind of a step.

        The run may mark steps. Otherwise they are the calls of the `tf.function` that took
        longest.
        """
        steps = _outermost(e for e, _ in self._marked() if e.kind is Kind.STEP)
        if steps:
            return _in_sequence(steps), "step"
        calls = defaultdict(list)
        marked = (e for e, within in self._marked() if e.kind is Kind.CALL and not within)
        for event in _outermost(marked):
            calls[event.name].append(event)
        if not calls:
            return [], "step"
        name, longest = max(calls.items(), key=lambda item: sum(e.end - e.start for e in item[1]))
        numbered = [e._replace(name=f"call {place}") for place, e in enumerate(longest)]
        return _in_sequence(numbered), f"call of {_CALLED.get(name, name)}"


class _Device:
    """The times of devices, in picoseconds.

    Attributes:
        busy: Intervals of computing operations.
        collectives: Intervals of operations across replicas.
    """

    def __init__(self) -> None:
        self.busy: list[tuple[int, int]] = []
        self.collectives: list[tuple[int, int]] = []
        self._operations: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])

    def add(self, event: Event, own_time: int, name: str, kind: str) -> None:
        collective = _COLLECTIVE.fullmatch(name.rpartition("/")[2])
        (self.collectives if collective else self.busy).append((event.start, event.end))
        calls_and_time = self._operations[name, kind]
        calls_and_time[0] += 1
        calls_and_time[1] += own_time

    def listed(self) -> tuple[Operation, ...]:
        """Return the operations, the longest first."""
        total = sum(time for _, time in self._operations.values()) or 1
        operations = [
            Operation(name, kind, calls, time * _PS, time / total)
            for (name, kind), (calls, time) in self._operations.items()
        ]
        return tuple(sorted(operations, key=lambda item: (-item.seconds, item.name)))


def _device_times(cores: list[list[Event]], host: _Host) -> _Device:
    """Return the times of TPU cores, or of the processors that replace them.

    XLA names an operation `%fusion.3 = f32[8]{0} fusion(...)`. Operations of the input pipeline
    do not count.
    """
    device = _Device()
    for line in cores or host.operations():
        for event, own_time in _own_times(line):
            if cores:
                name = event.name.partition(" = ")[0].lstrip("%")
                kind = re.sub(r"[.\d]+$", "", name)
            else:
                name, _, kind = event.name.rpartition(":")
                name = _CALL.sub("", _REPLICA.sub("", name))
            device.add(event, own_time, name, kind)
    return device


def _device_events(plane: Any, origin: int, line_name: str) -> list[list[Event]]:
    """Return the events of a TPU's lines that have a given name."""
    names = {n: event.display_name or event.name for n, event in plane.event_metadata.items()}
    return [
        [
            Event(
                start, start + event.duration_ps, Kind.OPERATION, names.get(event.metadata_id, "")
            )
            for event in line.events[:MOST_EVENTS]
            for start in [(line.timestamp_ns - origin) * 1000 + event.offset_ps]
        ]
        for line in plane.lines
        if line.name == line_name
    ]


def _completed(event: Event, stats: Any, names: dict[int, str]) -> Iterator[Event]:
    """Yield the event completed by its values, or nothing if it is not the step it looked like."""
    values = {names.get(stat.metadata_id): stat for stat in stats}
    if event.kind in _RUNS:
        runs = (_number(stat) for name, stat in values.items() if name in _RUNS[event.kind])
        yield event._replace(runs=frozenset(runs))
    elif event.kind is not Kind.STEP:
        yield event
    elif (number := values.get("step_num")) is not None:
        yield event._replace(name=f"{event.name} {_number(number)}")
    elif "tf_function_call" in values:
        yield event._replace(kind=Kind.CALL)


def _number(stat: Any) -> int:
    return int(getattr(stat, stat.WhichOneof("value")))


def _by_start(events: Iterable[Event]) -> list[Event]:
    """Return events by start. Among equal starts, the longest comes first: it contains the rest."""
    return sorted(events, key=lambda event: (event.start, -event.end))


def _outermost(events: Iterator[Event]) -> list[Event]:
    """Return the events that are not within another event, in order."""
    outermost: list[Event] = []
    for event in _by_start(events):
        if not outermost or event.start >= outermost[-1].end:
            outermost.append(event)
    return outermost


def _in_sequence(steps: Sequence[Event]) -> list[tuple[str, int, int]]:
    """Return each step's name, start and end.

    A step starts where the previous step ends, because loops take data before they mark a step.
    """
    ends = [step.end for step in steps]
    starts = [step.start for step in steps[:1]] + ends[:-1]
    return list(zip([step.name for step in steps], starts, ends, strict=True))


def _own_times(events: Sequence[Event]) -> Iterator[tuple[Event, int]]:
    """Yield the events of one line, each with its time minus the time of the events within it."""
    open_events: list[list[Any]] = []
    for event in _by_start(events):
        while open_events and open_events[-1][0].end <= event.start:
            yield tuple(open_events.pop())
        length = event.end - event.start
        if open_events:
            open_events[-1][1] -= length
        open_events.append([event, length])
    while open_events:
        yield tuple(open_events.pop())
