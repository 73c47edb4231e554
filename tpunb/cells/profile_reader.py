"""Reads what TensorFlow's profiler has recorded: an `XSpace`, in the file `*.xplane.pb`.

The protocol buffers are TensorFlow's own, which every release brings with it. xprof (before:
tensorboard-plugin-profile), which makes pages of these files, pins TensorFlow and brings a server
along. What is said here follows its analysis of input pipelines: a moment belongs to the device
if it computes, else to input wait if the step is in an iterator's `GetNext`, else to collectives,
else to the host. Times in which the input pipeline prefetches, and the step does not wait for it,
are none of these.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from tpunb._util.units import duration, grouped
from tpunb.cells.trace_events import Event, HostTrace, Kind, after_each_other, inner_times
from tpunb.training.profile import Operation, Profile, StepTimes
from tpunb.training.spans import Spans

__all__ = ["read_profile"]

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
