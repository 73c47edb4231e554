"""The speed of an input pipeline, beside the speed at which TPUs consume its examples."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from tpunb._util.plain_text import aligned, plain
from tpunb._util.tables import block, scrolled, table
from tpunb._util.units import counted, duration, grouped, rate

HELPS = 1.1
"""The gain from which a change helps. A smaller gain is within the error of two measurements."""

_MOST_STAGES = 8
_STAGE_HEAD = ("stage", "share", "time an element", "in parallel")
_CHANGE_HEAD = ("change", "gain", "")


@dataclasses.dataclass(frozen=True)
class Stage:
    """A stage of a pipeline, according to tf.data's own statistics.

    Attributes:
        name: The transformation with the user's function: `"map(decode)"`.
        seconds: The stage's own work for an element that the pipeline delivers.
        workers: The number of threads on which it works at a time.
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
        code: The code to write.
        gain: The measured speed as a multiple of the pipeline's own; None if it was not tried.
        note: A remark for the reader.
    """

    code: str
    gain: float | None = None
    note: str = ""

    @property
    def helps(self) -> bool:
        """True if the measured gain exceeds the error of two measurements."""
        return self.gain is not None and self.gain >= HELPS


@dataclasses.dataclass(frozen=True)
class TpuNeed:
    """The examples per second that a program consumes on a TPU, by the compiler's estimate.

    Attributes:
        tpu: The TPU type.
        hosts: The number of hosts. Each has its own input.
        low: The least number of examples per second that one host must deliver.
        high: The greatest number.
    """

    tpu: str
    hosts: int
    low: float
    high: float

    def busy(self, delivered: float) -> tuple[float, float]:
        """Return the bounds of the TPU's busy time, 0 to 1, for a host that delivers so much."""
        return min(delivered / self.high, 1.0), min(delivered / self.low, 1.0)


@dataclasses.dataclass(frozen=True)
class InputSpeed:
    """The measured speed of an input pipeline, its limits and changes that help.

    Attributes:
        examples_per_second: Examples per second on this machine.
        elements_per_second: Elements per second; an element is usually a batch.
        seconds: The time of the measurement.
        processors: This machine's processors, in words.
        stages: The pipeline's stages, the slowest first; empty if tf.data has no statistics.
        changes: Changes that were tried, or are worth trying.
        needs: The examples that TPUs consume.
        notes: Remarks that a reader of the figures needs, one sentence each.
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
        """A sentence about the stage that limits the pipeline; empty if unknown."""
        if not self.stages:
            return ""
        slowest = self.stages[0]
        return f"{slowest.name} limits the input: {slowest.share:.0%} of its time."

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values, with times in seconds."""
        return {
            **dataclasses.asdict(self),
            "headline": self.headline,
            "busy": {need.tpu: need.busy(self.examples_per_second) for need in self.needs},
        }

    def _busy(self, need: TpuNeed) -> str:
        each = f" on each of its {need.hosts} hosts" if need.hosts > 1 else ""
        consumed = f"A {need.tpu} consumes {_range(need.low, need.high)}{each}"
        low, high = need.busy(self.examples_per_second)
        if low >= 1:
            return f"{consumed}: this input keeps it busy."
        if high < 0.01:
            share = "less than 1%"
        else:
            low_text, high_text = f"{low:.0%}", f"{high:.0%}"
            share = high_text if low_text == high_text else f"{low_text} to {high_text}"
        return f"{consumed}: this input would keep it busy {share} of the time."

    def _stage_rows(self) -> Iterator[tuple[str, ...]]:
        for stage in self.stages[:_MOST_STAGES]:
            workers = grouped(stage.workers) if stage.workers > 1 else ""
            yield stage.name, f"{stage.share:.0%}", duration(stage.seconds), workers
        if (left := len(self.stages) - _MOST_STAGES) > 0:
            share = sum(stage.share for stage in self.stages[_MOST_STAGES:])
            yield f"and {left} more", f"{share:.0%}", "", ""

    def _change_rows(self) -> Iterator[tuple[str, ...]]:
        for change in sorted(self.changes, key=lambda change: -(change.gain or 0.0)):
            yield change.code, _gain_phrase(change), change.note

    def _parts(self) -> Iterator[tuple[str, Sequence[str], list[tuple[str, ...]]]]:
        """Yield a sentence, and the head and the rows of the table below the sentence."""
        yield self.headline, (), []
        if self.stages:
            yield self.limit, _STAGE_HEAD, list(self._stage_rows())
        helpful = [change for change in self.changes if change.helps]
        if self.changes:
            sentence = f"{counted(len(helpful), 'change')} of these makes it faster:"
            if len(helpful) != 1:
                sentence = f"{len(helpful) or 'None'} of these changes make it faster:"
            yield sentence, _CHANGE_HEAD, list(self._change_rows())

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


def _range(low: float, high: float) -> str:
    return rate(low) if rate(low) == rate(high) else f"{rate(low)} to {rate(high)}"


def _gain_phrase(change: Change) -> str:
    """Return a gain in words. A gain within the error of measurement is "none"."""
    if change.gain is None:
        return "not tried"
    return f"{rate(change.gain)} times" if change.helps else "none"


_latest: InputSpeed | None = None


def remember_input_speed(speed: InputSpeed) -> None:
    """Remember the last measured speed."""
    global _latest
    _latest = speed


def latest_input_speed() -> InputSpeed | None:
    """Return the last measured speed, or None before the first measurement."""
    return _latest
