"""A profiler's record: the times of steps and operations."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from tpunb._util.plain_text import aligned, plain, shortened
from tpunb._util.tables import block, scrolled, table
from tpunb._util.units import counted, duration, grouped

_MOST_STEPS = 12
_MOST_OPERATIONS = 20
_LONGEST_NAME = 70
_STEP_HEAD = ("", "time", "input wait", "host", "device", "collectives")
_OPERATION_HEAD = ("operation", "time", "share", "calls", "kind")
_OUTLIER = 3
"""A first step is reported separately if it takes this many times longer than any later step."""


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """The parts of a time in seconds. Each moment counts once.

    Attributes:
        name: The step's name, such as `"train 3"`.
        seconds: The whole time.
        input_wait: The time in which the step waits for data and the device computes nothing.
        device: The time in which the device computes.
        collectives: The time in which the device only exchanges values between replicas.
    """

    name: str
    seconds: float
    input_wait: float = 0.0
    device: float = 0.0
    collectives: float = 0.0

    @property
    def host(self) -> float:
        """The rest of the time: Python, TensorFlow's runtime, copies."""
        return max(0.0, self.seconds - self.input_wait - self.device - self.collectives)

    @property
    def input_wait_share(self) -> float:
        """The part of the time that is input wait, 0 to 1."""
        return self.input_wait / self.seconds if self.seconds else 0.0


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation of the device, on all replicas together.

    Attributes:
        name: The operation's name in the graph, without the replica's part.
        kind: Its type, such as `"MatMul"`.
        calls: The number of times that it ran.
        seconds: The sum over all calls, without the operations inside it.
        share: Its part of the time of all operations, 0 to 1.
    """

    name: str
    kind: str
    calls: int
    seconds: float
    share: float


@dataclasses.dataclass
class Profile:
    """The time of a run and its parts. `with tpunb.profile()` fills it when the block ends.

    Attributes:
        whole: The whole recording.
        steps: The steps, in order.
        operations: The operations of the device, the longest first.
        device: `"TPU"`, or `"CPU"` if the operations ran on processors, as on a virtual TPU.
        step_kind: The kind of a step: `"step"`, or its substitute, `"call of train_step"`.
        notes: Remarks that a reader of the figures needs, one sentence each.
    """

    whole: StepTimes = dataclasses.field(default_factory=lambda: StepTimes("whole", 0.0))
    steps: tuple[StepTimes, ...] = ()
    operations: tuple[Operation, ...] = ()
    device: str = "CPU"
    step_kind: str = "step"
    notes: tuple[str, ...] = ()

    @property
    def input_wait(self) -> float:
        """The share of the whole time, 0 to 1, spent only on waiting for data."""
        return self.whole.input_wait_share

    @property
    def all_steps(self) -> StepTimes:
        """The sum of all steps."""
        return _sum("all steps", self.steps)

    @property
    def steady_steps(self) -> tuple[StepTimes, ...]:
        """The steps, without a far longer first step that traces or fills caches."""
        first, rest = self.steps[:1], self.steps[1:]
        longest = max((step.seconds for step in rest), default=float("inf"))
        return rest if first and first[0].seconds > _OUTLIER * longest else self.steps

    @property
    def headline(self) -> str:
        """The outcome on one line."""
        if not self.whole.seconds:
            return "Nothing has been recorded yet."
        where = "" if self.on_tpu else "On this machine, "
        text = f"{where}{self.input_wait:.0%} of the run ({duration(self.whole.seconds)})"
        if self.steps:
            noun, _, function = self.step_kind.partition(" ")
            steady = self.steady_steps
            steps = " ".join(filter(None, (counted(len(steady), noun), function)))
            after = " after the first" if steady != self.steps else ""
            text += f" and {_sum('', steady).input_wait_share:.0%} of {steps}{after}"
        return f"{text} waited for data."

    @property
    def on_tpu(self) -> bool:
        """True if the operations ran on a TPU rather than on this machine's processors."""
        return self.device == "TPU"

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values, with times in seconds."""
        return {
            "input_wait": self.input_wait,
            "device": self.device,
            "step_kind": self.step_kind,
            "whole": _times(self.whole),
            "steps": [_times(step) for step in self.steps],
            "operations": [dataclasses.asdict(operation) for operation in self.operations],
            "notes": list(self.notes),
        }

    def _step_rows(self) -> Iterator[tuple[str, ...]]:
        for step in self.steps[:_MOST_STEPS]:
            yield _row(step)
        if (left := len(self.steps) - _MOST_STEPS) > 0:
            yield f"and {grouped(left)} more", *[""] * (len(_STEP_HEAD) - 1)
        if self.steady_steps != self.steps:
            yield _row(_sum("all after the first", self.steady_steps))
        if self.steps:
            yield _row(self.all_steps)
        yield _row(self.whole)

    def _operation_rows(self) -> Iterator[tuple[str, ...]]:
        for operation in self.operations[:_MOST_OPERATIONS]:
            texts = (operation.name, operation.kind)
            name, kind = (shortened(text, _LONGEST_NAME) for text in texts)
            share = f"{operation.share:.1%}"
            yield name, duration(operation.seconds), share, grouped(operation.calls), kind
        if (left := len(self.operations) - _MOST_OPERATIONS) > 0:
            rest = self.operations[_MOST_OPERATIONS:]
            calls = sum(operation.calls for operation in rest)
            seconds = sum(operation.seconds for operation in rest)
            rest_share = sum(operation.share for operation in rest)
            more = f"and {grouped(left)} more"
            yield more, duration(seconds), f"{rest_share:.1%}", grouped(calls), ""

    def __str__(self) -> str:
        parts = [self.headline, *self.notes]
        if self.whole.seconds:
            parts += ["", *aligned([_STEP_HEAD, *self._step_rows()], "  ")]
        if self.operations:
            parts += ["", *aligned([_OPERATION_HEAD, *self._operation_rows()], "  ")]
        return plain("\n".join(parts))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("Profile(...)" if cycle else str(self))

    def _repr_html_(self) -> str:
        parts = [block(self.headline, bold=True)]
        if self.whole.seconds:
            parts.append(scrolled(table(self._step_rows(), head=_STEP_HEAD, named=True)))
        if self.operations:
            rows = self._operation_rows()
            parts.append(scrolled(table(rows, head=_OPERATION_HEAD, named=True)))
        return f"<div>{''.join(parts + [block(note) for note in self.notes])}</div>"


def _sum(name: str, steps: Sequence[StepTimes]) -> StepTimes:
    return StepTimes(
        name,
        sum(step.seconds for step in steps),
        sum(step.input_wait for step in steps),
        sum(step.device for step in steps),
        sum(step.collectives for step in steps),
    )


def _times(step: StepTimes) -> dict[str, Any]:
    return {**dataclasses.asdict(step), "host": step.host}


def _row(step: StepTimes) -> tuple[str, ...]:
    """Return a row of the table of steps: times, and their shares if the step took time."""
    parts = (step.input_wait, step.host, step.device, step.collectives)
    shares = [f"{part / step.seconds:.0%}" if step.seconds else "" for part in parts]
    name = shortened(step.name, _LONGEST_NAME)
    return (
        name,
        duration(step.seconds),
        *(
            f"{duration(part)} ({share})" if part and share else "0 s"
            for part, share in zip(parts, shares, strict=True)
        ),
    )
