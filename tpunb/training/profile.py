"""A profiler's record: the time of steps and operations."""

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
_APART = 3
"""How many times as long as the longest of the others a first step takes that is told apart."""


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """The parts of a time: each moment counts once, in seconds.

    Attributes:
        name: Of the step, such as `"train 3"`.
        seconds: All of it.
        input_wait: The step waits for its data, and the device computes nothing.
        device: The device computes.
        collectives: The device only exchanges values between replicas.
    """

    name: str
    seconds: float
    input_wait: float = 0.0
    device: float = 0.0
    collectives: float = 0.0

    @property
    def host(self) -> float:
        """The rest: Python, TensorFlow's runtime, copies."""
        return max(0.0, self.seconds - self.input_wait - self.device - self.collectives)

    @property
    def input_wait_share(self) -> float:
        """The part of the time that is input wait, 0 to 1."""
        return self.input_wait / self.seconds if self.seconds else 0.0


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation of the device, on all replicas together.

    Attributes:
        name: Its name in the graph, without the replica's.
        kind: Its type, such as `"MatMul"`.
        calls: How often it ran.
        seconds: The sum over all calls, without operations that it contains.
        share: Of the time of all operations, 0 to 1.
    """

    name: str
    kind: str
    calls: int
    seconds: float
    share: float


@dataclasses.dataclass
class Profile:
    """The time of a run and its parts. A `with tpunb.profile()` fills it when it ends.

    Attributes:
        whole: All that was recorded.
        steps: The steps, in order.
        operations: What the device did, the longest first.
        device: `"TPU"`, or `"CPU"` where the operations ran on processors: on a virtual TPU.
        step_kind: What a step is: `"step"`, or what stands for it, `"call of train_step"`.
        notes: What should be known of the figures, a sentence each.
    """

    whole: StepTimes = dataclasses.field(default_factory=lambda: StepTimes("whole", 0.0))
    steps: tuple[StepTimes, ...] = ()
    operations: tuple[Operation, ...] = ()
    device: str = "CPU"
    step_kind: str = "step"
    notes: tuple[str, ...] = ()

    @property
    def input_wait(self) -> float:
        """The share of the whole time in which nothing went on but waiting for data, 0 to 1."""
        return self.whole.input_wait_share

    @property
    def all_steps(self) -> StepTimes:
        """The steps together."""
        return _sum("all steps", self.steps)

    @property
    def steady_steps(self) -> tuple[StepTimes, ...]:
        """The steps without the first, where it traces or fills caches: where it is far longer."""
        first, rest = self.steps[:1], self.steps[1:]
        longest = max((step.seconds for step in rest), default=float("inf"))
        return rest if first and first[0].seconds > _APART * longest else self.steps

    @property
    def headline(self) -> str:
        """The outcome in a line."""
        if not self.whole.seconds:
            return "Nothing is recorded yet."
        where = "" if self.on_tpu else "On this machine, "
        text = f"{where}{self.input_wait:.0%} of the run ({duration(self.whole.seconds)})"
        if self.steps:
            noun, _, what = self.step_kind.partition(" ")
            steady = self.steady_steps
            steps = " ".join(filter(None, (counted(len(steady), noun), what)))
            after = " after the first" if steady != self.steps else ""
            text += f" and {_sum('', steady).input_wait_share:.0%} of {steps}{after}"
        return f"{text} waited for data."

    @property
    def on_tpu(self) -> bool:
        """True if the operations ran on a TPU, and not on this machine's processors."""
        return self.device == "TPU"

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values; times in seconds."""
        return {
            "input_wait": self.input_wait,
            "device": self.device,
            "step_kind": self.step_kind,
            "whole": _times(self.whole),
            "steps": [_times(step) for step in self.steps],
            "operations": [dataclasses.asdict(one) for one in self.operations],
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
        for one in self.operations[:_MOST_OPERATIONS]:
            name, kind = (shortened(text, _LONGEST_NAME) for text in (one.name, one.kind))
            yield name, duration(one.seconds), f"{one.share:.1%}", grouped(one.calls), kind
        if (left := len(self.operations) - _MOST_OPERATIONS) > 0:
            rest = self.operations[_MOST_OPERATIONS:]
            calls, seconds = sum(one.calls for one in rest), sum(one.seconds for one in rest)
            share = sum(one.share for one in rest)
            yield f"and {grouped(left)} more", duration(seconds), f"{share:.1%}", grouped(calls), ""

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
    """A row of the table of steps: times, and their shares where there is any time."""
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
