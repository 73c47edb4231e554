"""What is shown of a program that the TPU's compiler has compiled: plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tpunb.display.describe.program_code import CodeRow
from tpunb.errors.code_problems import Problem

__all__ = [
    "CodeRow",
    "MemoryBar",
    "ProgramDescription",
    "ProgramsDescription",
    "Segment",
    "ShareRow",
    "TensorRow",
    "TimeFacts",
    "TypeRow",
    "Verdict",
]

Verdict = Literal["compiles", "refused", "unknown"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the memory's bar.

    Attributes:
        kind: `"variables"`, `"inputs"`, `"results"`, `"temporaries"`, `"other"` or `"free"`.
        bytes: How large it is.
        begin: Where it begins.
    """

    kind: str
    bytes: int
    begin: int


@dataclass(frozen=True, slots=True)
class MemoryBar:
    """What a program takes of a core's memory, in bytes.

    Attributes:
        segments: Its parts from the left, free memory the last.
        peak: What it takes.
        available: What a program can use.
        data_sheet: What the data sheet has.
        exact: Whether the peak is the compiler's figure.
    """

    segments: tuple[Segment, ...]
    peak: int
    available: int
    data_sheet: int
    exact: bool

    @property
    def over(self) -> int:
        """How much it takes beyond what there is; 0 where it fits."""
        return max(self.peak - self.available, 0)

    @property
    def total(self) -> int:
        """What the whole bar stands for."""
        return max(self.peak, self.available, 1)


@dataclass(frozen=True, slots=True)
class TimeFacts:
    """An estimate of a call's time.

    Attributes:
        low: Seconds, the lower estimate.
        high: Seconds, the higher one.
        parts: Names and fractions of the time, which add up to 1.
        examples: Examples a second at the higher and at the lower estimate; None where the
            batch is not known.
        per_core: Examples a second and core in the middle of the range; None likewise.
    """

    low: float
    high: float
    parts: tuple[tuple[str, float], ...]
    examples: tuple[float, float] | None
    per_core: float | None


@dataclass(frozen=True, slots=True)
class ShareRow:
    """What a layer, an operation or a collective takes.

    Attributes:
        name: What it is called.
        seconds: Of a call; None where no time was asked for.
        fraction: Of the time; None likewise.
        memory: Bytes alive at the peak that it made.
        part: These as a part of the peak.
        bytes: What it moves.
    """

    name: str
    seconds: float | None
    fraction: float | None
    memory: int
    part: float
    bytes: int


@dataclass(frozen=True, slots=True)
class TensorRow:
    """A tensor in a core's memory.

    Attributes:
        text: Type and sizes, `"f32[128,56,56,256]"`.
        bytes: What it takes.
        unpadded: What its numbers take.
        source: What made it: an operation, a variable, an argument.
        layer: The Keras layer, or empty.
        line: The line's number; None where unknown.
        kind: `"variable"`, `"argument"`, `"temporary"` or `"output"`.
        part: Its bytes as a part of the peak.
    """

    text: str
    bytes: int
    unpadded: int
    source: str
    layer: str
    line: int | None
    kind: str
    part: float

    @property
    def factor(self) -> float:
        """How many times its numbers it takes."""
        return self.bytes / self.unpadded if self.unpadded else 1.0


@dataclass(frozen=True, slots=True)
class ProgramDescription:
    """A compiled program, without anything that differs between two runs.

    Attributes:
        tpu: The TPU type.
        title: What it was compiled for.
        verdict: Whether it compiles and fits; `"unknown"` where the compiler did not say.
        outcome: The verdict in a line.
        errors: What the compiler refuses.
        memory: Of one core; None where there are no figures.
        time: None where none was asked for.
        code: The lines of the user's code.
        layers: The model's, longest or largest first.
        operations: TensorFlow's, longest first.
        collectives: Longest first.
        largest: Tensors alive at the peak, largest first.
        padding: Tensors with padding, most wasteful first.
        notes: What a reader has to know, and what is not counted.
        largest_batch: The largest global batch that fits; None where it was not asked for.
        omitted: How many rows of each of these tuples were left out, by its name.
    """

    tpu: str
    title: str
    verdict: Verdict
    outcome: str
    errors: tuple[Problem, ...] = ()
    memory: MemoryBar | None = None
    time: TimeFacts | None = None
    code: tuple[CodeRow, ...] = ()
    layers: tuple[ShareRow, ...] = ()
    operations: tuple[ShareRow, ...] = ()
    collectives: tuple[ShareRow, ...] = ()
    largest: tuple[TensorRow, ...] = ()
    padding: tuple[TensorRow, ...] = ()
    notes: tuple[str, ...] = ()
    largest_batch: int | None = None
    omitted: tuple[tuple[str, int], ...] = ()

    @property
    def has_shares(self) -> bool:
        """Whether anything is known of the lines of code."""
        return any(row.weight for row in self.code)

    def left_out(self, name: str) -> int:
        """How many rows of one of the tuples were left out."""
        return dict(self.omitted).get(name, 0)


@dataclass(frozen=True, slots=True)
class TypeRow:
    """A row of the table "which TPU do I need".

    Attributes:
        tpu: The TPU type.
        cores: How many it has.
        verdict: As a program's.
        peak: Bytes a core; None where unknown.
        available: Bytes a core that a program can use; None likewise.
        largest_batch: None where it was not asked for.
        low: Seconds of a call; None where no time was asked for.
        high: Seconds of a call; None likewise.
        per_core: Examples a second and core; None likewise.
    """

    tpu: str
    cores: int
    verdict: Verdict
    peak: int | None
    available: int | None
    largest_batch: int | None
    low: float | None
    high: float | None
    per_core: float | None


@dataclass(frozen=True, slots=True)
class ProgramsDescription:
    """A function compiled for several TPU types.

    Attributes:
        rows: The table.
        programs: What was compiled, in the table's order.
    """

    rows: tuple[TypeRow, ...]
    programs: tuple[ProgramDescription, ...]
