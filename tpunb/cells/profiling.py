"""Records with TensorFlow's profiler, and reads what it has recorded."""

from __future__ import annotations

import contextlib
import enum
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from tpunb._util.units import duration, grouped
from tpunb.errors import TpunbError
from tpunb.training.profile import Operation, Profile, StepTimes
from tpunb.training.spans import Spans


class ProfileError(TpunbError, RuntimeError):
    """A profile that cannot be recorded."""


@contextlib.contextmanager
def profile(keep: str | Path | None = None) -> Iterator[Profile]:
    """Records where the time goes, with TensorFlow's profiler: input wait, host, device.

    Example::

        with tpunb.profile() as profile:
            model.fit(dataset)
        print(profile.input_wait, profile)

    An exception in the block ends the recording and is raised; the profile stays empty. On a
    virtual TPU the device is the processors; on a TPU its operations are read from its planes.

    Args:
        keep: A folder for what is recorded, which TensorBoard's and xprof's profiler show; by
            default it is removed once it is read.

    Yields:
        The profile, which is filled when the block has ended.

    Raises:
        ProfileError: A profiler is running already, or something in the block has stopped it.
    """
    found = Profile()
    with contextlib.ExitStack() as cleaning:
        if keep is None:
            # What an interrupted recording is still writing must not stop the rest.
            temporary = tempfile.TemporaryDirectory(prefix="tpunb-", ignore_cleanup_errors=True)
            folder = Path(cleaning.enter_context(temporary))
        else:
            folder = Path(keep).expanduser()
        before = set(_recordings(folder))
        _start(folder)
        began = time.perf_counter()
        try:
            yield found
        except BaseException:
            with contextlib.suppress(tf.errors.UnavailableError):  # stopped in the block
                tf.profiler.experimental.stop(save=keep is not None)
            raise
        seconds = time.perf_counter() - began
        _stop()
        made = sorted(set(_recordings(folder)) - before)
        vars(found).update(vars(read_profile(_space(made), seconds)))


def _start(folder: Path) -> None:
    try:
        tf.profiler.experimental.start(str(folder))
    except tf.errors.AlreadyExistsError:
        raise ProfileError(
            "A profiler is running already, and TensorFlow has one.",
            fix="Let it end, or run tf.profiler.experimental.stop().",
        ) from None


def _stop() -> None:
    try:
        tf.profiler.experimental.stop()
    except tf.errors.UnavailableError:
        raise ProfileError(
            "The profiler was stopped before the end.",
            fix="Take out what stops it, such as TensorBoard(profile_batch=...): it records too.",
        ) from None


def _recordings(folder: Path) -> Iterator[Path]:
    return folder.glob("plugins/profile/*/*.xplane.pb")


def _space(files: list[Path]) -> Any:
    """What was recorded; the planes of all hosts that wrote a file."""
    from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

    space = XSpace()
    for file in files:
        space.MergeFromString(file.read_bytes())
    return space


MOST_EVENTS = 3_000_000
"""More are not read: some seconds, and some hundred megabytes."""

_PS = 1e-12
_MUCH = 0.05
"""From which share of the time on tracing is mentioned."""

_TPU = re.compile(r"/device:TPU:\d+")
_COLLECTIVE = re.compile(
    r"(all-reduce|all-gather|all-to-all|reduce-scatter|collective-|send|recv)[\w.-]*"
    r"|(CrossReplicaSum|AllToAll|CollectivePermute)(_\d+)*",
)
_REPLICA = re.compile(r"/replica_\d+(?=/|$)")
_CALL = re.compile(r"^(?:(?:Stateful|Stateless)?PartitionedCall(?:_\d+)?/)+")
_OPERATION_LINES = frozenset({"XLA Ops"})
_STEP_LINES = frozenset({"Steps"})

_NOTE_CPU = "Device: operations on this machine's processors, as on any virtual TPU."
_NOTE_STEPS = "A step is a {}, as the run marks no steps; in a loop it holds several."
_NOTE_TRACING = "Tracing functions takes {} of it: run it again to see it without."
_NOTE_MOST = f"Only the first {grouped(MOST_EVENTS)} events of each device and the host are read."


@dataclass
class _Device:
    """What devices did, in picoseconds.

    Attributes:
        busy: Times of computing operations.
        collectives: Times of operations across replicas.
        operations: The calls and the time by name and kind.
    """

    busy: list[tuple[int, int]] = field(default_factory=list)
    collectives: list[tuple[int, int]] = field(default_factory=list)
    operations: dict[tuple[str, str], list[int]] = field(
        default_factory=lambda: defaultdict(lambda: [0, 0])
    )

    def add(self, event: Event, own_time: int, name: str, kind: str) -> None:
        collective = _COLLECTIVE.fullmatch(name.rpartition("/")[2])
        (self.collectives if collective else self.busy).append((event.start, event.end))
        record = self.operations[name, kind]
        record[0] += 1
        record[1] += own_time

    def listed(self) -> tuple[Operation, ...]:
        total = sum(time for _, time in self.operations.values()) or 1
        found = [
            Operation(name, kind, calls, time * _PS, time / total)
            for (name, kind), (calls, time) in self.operations.items()
        ]
        return tuple(sorted(found, key=lambda one: (-one.seconds, one.name)))


def read_profile(space: Any, seconds: float) -> Profile:
    """Makes a profile of a recording.

    Args:
        space: An `XSpace`.
        seconds: How long was recorded, by the clock.
    """
    origin = min((line.timestamp_ns for plane in space.planes for line in plane.lines), default=0)
    host = HostTrace()
    cores: list[list[Event]] = []
    device_steps: list[Event] = []
    full = False
    for plane in space.planes:
        full |= sum(len(line.events) for line in plane.lines) > MOST_EVENTS
        if plane.name.startswith("/host:CPU"):
            host.read(plane, origin, MOST_EVENTS)
        elif _TPU.fullmatch(plane.name):
            cores += _device_lines(plane, origin, _OPERATION_LINES)
            lines = _device_lines(plane, origin, _STEP_LINES)
            device_steps = device_steps or [step for line in lines for step in line]
    host.find_input_pipelines()
    device = _tpu_device(cores) if cores else _cpu_device(host)
    # The host only sends a TPU its steps: how long they take, the TPU knows.
    steps, kind = (after_each_other(device_steps), "step") if device_steps else host.steps()
    spent = _Spent(Spans(device.busy), host.waits(), Spans(device.collectives))
    traced = host.tracing()
    notes = [] if cores else [_NOTE_CPU]
    notes += [_NOTE_STEPS.format(kind)] if steps and kind != "step" else []
    notes += (
        [_NOTE_TRACING.format(duration(traced * _PS))] if traced > seconds / _PS * _MUCH else []
    )
    return Profile(
        spent.whole(seconds),
        tuple(spent.step(*one) for one in steps),
        device.listed(),
        "TPU" if cores else "CPU",
        kind,
        (*notes, *([_NOTE_MOST] if full else [])),
    )


class _Spent:
    """Divides times among the device, input wait, collectives and the host."""

    def __init__(self, device: Spans, waits: Spans, collectives: Spans) -> None:
        self._device = device
        self._or_wait = device | waits
        self._or_collective = self._or_wait | collectives

    def step(self, name: str, start: int, end: int) -> StepTimes:
        device, wait, all_three = (
            spans.within(start, end) for spans in (self._device, self._or_wait, self._or_collective)
        )
        parts = (end - start, wait - device, device, all_three - wait)
        return StepTimes(name, *(part * _PS for part in parts))

    def whole(self, seconds: float) -> StepTimes:
        """All that was recorded, which took so long by the clock."""
        starts, ends = self._or_collective.starts, self._or_collective.ends
        first, last = (int(starts[0]), int(ends[-1])) if len(starts) else (0, 0)
        found = self.step("whole", first, last)
        return StepTimes("whole", seconds, found.input_wait, found.device, found.collectives)


def _device_lines(plane: Any, origin: int, wanted: frozenset[str]) -> list[list[Event]]:
    """The events of those of a TPU's lines that are wanted."""
    names = {number: one.display_name or one.name for number, one in plane.event_metadata.items()}
    return [
        [
            Event(start, start + one.duration_ps, Kind.OPERATION, names.get(one.metadata_id, ""))
            for one in line.events[:MOST_EVENTS]
            for start in [(line.timestamp_ns - origin) * 1000 + one.offset_ps]
        ]
        for line in plane.lines
        if line.name in wanted
    ]


def _tpu_device(lines: list[list[Event]]) -> _Device:
    """What TPU cores did. XLA names an operation `%fusion.3 = f32[8]{0} fusion(...)`."""
    device = _Device()
    for line in lines:
        for event, own_time in inner_times(line):
            name = event.name.partition(" = ")[0].lstrip("%")
            device.add(event, own_time, name, re.sub(r"[.\d]+$", "", name))
    return device


def _cpu_device(host: HostTrace) -> _Device:
    """What processors did in the place of a TPU: operations, but not the input pipeline's."""
    device = _Device()
    for line in host.operations():
        for event, own_time in inner_times(line):
            name, _, kind = event.name.rpartition(":")
            device.add(event, own_time, _CALL.sub("", _REPLICA.sub("", name)), kind)
    return device


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
