"""The speed of an input pipeline, beside the speed at which TPUs take its examples."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from tpunb._util.plain_text import aligned, plain
from tpunb._util.tables import block, scrolled, table
from tpunb._util.units import counted, duration, grouped

HELPS = 1.1
"""From which gain on a change is said to help: less is within what two measurements differ."""

_MOST_STAGES = 8
_STAGE_HEAD = ("stage", "share", "time an element", "in parallel")
_CHANGE_HEAD = ("change", "gain", "")


@dataclasses.dataclass(frozen=True)
class Stage:
    """A stage of a pipeline, by tf.data's own statistics.

    Attributes:
        name: The transformation, with the user's function: `"map(decode)"`.
        seconds: What it works for an element that the pipeline delivers, its inputs left out.
        workers: On how many threads it works at a time.
        share: Its part of the time of all stages, each divided by its workers, 0 to 1.
    """

    name: str
    seconds: float
    workers: int = 1
    share: float = 0.0


@dataclasses.dataclass(frozen=True)
class Change:
    """A change of the pipeline.

    Attributes:
        code: What to write.
        gain: The measured speed as a multiple of the pipeline's own; None where it was not tried.
        note: What has to be known of it.
    """

    code: str
    gain: float | None = None
    note: str = ""

    @property
    def helps(self) -> bool:
        """True if the measured gain is more than two measurements differ."""
        return self.gain is not None and self.gain >= HELPS


@dataclasses.dataclass(frozen=True)
class TpuNeed:
    """The examples a second that a program takes on a TPU, by the compiler's estimate.

    Attributes:
        tpu: The TPU type.
        hosts: How many hosts it has; each has an input of its own.
        low: Examples a second that one host has to deliver, at least.
        high: At most.
    """

    tpu: str
    hosts: int
    low: float
    high: float

    def busy(self, delivered: float) -> tuple[float, float]:
        """The least and the most that the TPU would be busy, 0 to 1, if a host delivers so many."""
        return min(delivered / self.high, 1.0), min(delivered / self.low, 1.0)


@dataclasses.dataclass(frozen=True)
class InputSpeed:
    """The measured speed of an input pipeline, its limits and changes that help.

    Attributes:
        examples_per_second: What it delivers on this machine.
        elements_per_second: The same in elements, which are batches as a rule.
        seconds: How long was measured.
        processors: This machine's, in words.
        stages: Its stages, the slowest first; empty where tf.data has no statistics.
        changes: Changes that were tried, or are worth a try.
        needs: What TPUs take of it.
        notes: What has to be known of the figures, a sentence each.
    """

    examples_per_second: float
    elements_per_second: float
    seconds: float
    processors: str
    stages: tuple[Stage, ...] = ()
    changes: tuple[Change, ...] = ()
    needs: tuple[TpuNeed, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """The speed, and how busy it keeps each TPU."""
        delivered = (
            f"On this machine ({self.processors}) the input delivers "
            f"{rate(self.examples_per_second)} examples/s."
        )
        return " ".join([delivered, *map(self._busy, self.needs)])

    @property
    def limit(self) -> str:
        """The sentence on the stage that limits the pipeline; empty where it is not known."""
        if not self.stages:
            return ""
        slowest = self.stages[0]
        return f"{slowest.name} limits it: {slowest.share:.0%} of its time."

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values; times in seconds."""
        return {
            **dataclasses.asdict(self),
            "headline": self.headline,
            "busy": {one.tpu: one.busy(self.examples_per_second) for one in self.needs},
        }

    def _busy(self, need: TpuNeed) -> str:
        each = f" on each of its {need.hosts} hosts" if need.hosts > 1 else ""
        takes = f"A {need.tpu} takes {_range(need.low, need.high)}{each}"
        low, high = need.busy(self.examples_per_second)
        if low >= 1:
            return f"{takes}: this input keeps it busy."
        if high < 0.01:
            share = "less than 1%"
        else:
            low_text, high_text = f"{low:.0%}", f"{high:.0%}"
            share = high_text if low_text == high_text else f"{low_text} to {high_text}"
        return f"{takes}: it would be busy {share} of the time."

    def _stage_rows(self) -> Iterator[tuple[str, ...]]:
        for stage in self.stages[:_MOST_STAGES]:
            workers = grouped(stage.workers) if stage.workers > 1 else ""
            yield stage.name, f"{stage.share:.0%}", duration(stage.seconds), workers
        if (left := len(self.stages) - _MOST_STAGES) > 0:
            share = sum(stage.share for stage in self.stages[_MOST_STAGES:])
            yield f"and {left} more", f"{share:.0%}", "", ""

    def _change_rows(self) -> Iterator[tuple[str, ...]]:
        for change in sorted(self.changes, key=lambda one: -(one.gain or 0.0)):
            yield change.code, _gain_phrase(change), change.note

    def _parts(self) -> Iterator[tuple[str, Sequence[str], list[tuple[str, ...]]]]:
        """A sentence, and the head and the rows of the table below it."""
        yield self.headline, (), []
        if self.stages:
            yield self.limit, _STAGE_HEAD, list(self._stage_rows())
        helpful = [change for change in self.changes if change.helps]
        if self.changes:
            said = f"{counted(len(helpful), 'change')} of these makes it faster:"
            if len(helpful) != 1:
                said = f"{len(helpful) or 'None'} of these changes make it faster:"
            yield said, _CHANGE_HEAD, list(self._change_rows())

    def __str__(self) -> str:
        lines: list[str] = []
        for sentence, head, rows in self._parts():
            lines += ["", sentence] if lines else [sentence]
            lines += aligned([head, *rows], "  ") if rows else []
        return plain("\n".join([*lines, *([""] if self.notes else []), *self.notes]))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("InputSpeed(...)" if cycle else str(self))

    def _repr_html_(self) -> str:
        parts: list[str] = []
        for sentence, head, rows in self._parts():
            parts.append(block(sentence, bold=not parts))
            parts += [scrolled(table(rows, head=head, named=True))] if rows else []
        return f"<div>{''.join([*parts, *map(block, self.notes)])}</div>"


def rate(value: float) -> str:
    """A number a second, to three digits."""
    return grouped(round(float(f"{value:.3g}"))) if value >= 10 else f"{value:.2g}"


def _range(low: float, high: float) -> str:
    return rate(low) if rate(low) == rate(high) else f"{rate(low)} to {rate(high)}"


def _gain_phrase(change: Change) -> str:
    """A gain in words; below what two measurements differ it is none."""
    if change.gain is None:
        return "not tried"
    return f"{rate(change.gain)} times" if change.helps else "none"


_latest: InputSpeed | None = None


def remember_input_speed(speed: InputSpeed) -> None:
    """Sets the speed that was measured last."""
    global _latest
    _latest = speed


def latest_input_speed() -> InputSpeed | None:
    """The speed that was measured last; None before the first."""
    return _latest
