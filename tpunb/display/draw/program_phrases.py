"""What is said of a compiled program: in text, in HTML and in the widget alike."""

from __future__ import annotations

from collections.abc import Iterator

from tpunb._util.units import byte_count, counted, duration, grouped
from tpunb.display.describe.program_description import (
    MemoryBar,
    ProgramDescription,
    Segment,
    TensorRow,
    TimeFacts,
    TypeRow,
)

__all__ = [
    "TYPE_HEAD",
    "facts",
    "headline",
    "memory_limit",
    "memory_phrase",
    "padding_phrase",
    "percent",
    "rate",
    "segment_phrase",
    "tensor_source",
    "time_parts",
    "time_phrases",
    "time_range",
    "type_cells",
]

TYPE_HEAD = (
    "TPU",
    "cores",
    "fits",
    "memory a core",
    "largest batch",
    "time a call",
    "examples/s a core",
)
_VERDICTS = {"compiles": "yes", "refused": "no", "unknown": "not known"}


def headline(program: ProgramDescription) -> str:
    """The outcome in a sentence: how much it takes, or why it is refused."""
    memory = program.memory
    if program.verdict == "unknown":
        return f"{program.outcome}."
    if memory is not None and memory.over:
        return (
            f"{program.outcome}: {byte_count(memory.peak)} a core, {byte_count(memory.over)} "
            f"more than the {byte_count(memory.available)} that there are."
        )
    if program.verdict == "refused":
        return f"{program.outcome}: {counted(len(program.errors), 'error')}."
    if memory is None:
        return f"{program.outcome}."
    return f"{program.outcome}: {memory_phrase(memory)}."


def memory_phrase(memory: MemoryBar) -> str:
    """`"3.4 GiB of 15.48 GiB a core (22%)"`."""
    exact = "" if memory.exact else "about "
    share = percent(memory.peak / max(memory.available, 1))
    return f"{exact}{byte_count(memory.peak)} of {byte_count(memory.available)} a core ({share})"


def segment_phrase(segment: Segment) -> str:
    """`"temporaries 3.2 GiB"`."""
    return f"{segment.kind} {byte_count(segment.bytes)}"


def memory_limit(memory: MemoryBar) -> str:
    """What the data sheet has, beside what a program can use; empty where they are the same."""
    if memory.data_sheet == memory.available:
        return ""
    usable, sheet = byte_count(memory.available), byte_count(memory.data_sheet)
    return f"{usable} usable of the data sheet's {sheet}"


def time_range(low: float, high: float) -> str:
    """`"110 ms to 174 ms"`."""
    return f"{duration(low)} to {duration(high)}"


def time_phrases(program: ProgramDescription) -> Iterator[str]:
    """The time of a call, and the examples a second."""
    time = program.time
    if time is None:
        return
    yield f"{time_range(time.low, time.high)} a call (estimated)"
    if time.examples is not None:
        yield f"{rate(time.examples[0])} to {rate(time.examples[1])} examples/s"
    if time.per_core is not None:
        yield f"about {rate(time.per_core)} examples/s a core"


def facts(program: ProgramDescription) -> list[str]:
    """The time, and the largest batch, as far as they were asked for."""
    found = list(time_phrases(program))
    if program.largest_batch is not None:
        found.append(f"largest global batch that fits: {grouped(program.largest_batch)}")
    return found


def time_parts(time: TimeFacts) -> list[str]:
    """`["matrix products 62%", …]`."""
    return [f"{name} {percent(fraction)}" for name, fraction in time.parts]


def tensor_source(tensor: TensorRow) -> str:
    """What made a tensor, and where."""
    parts = [tensor.source or tensor.kind, tensor.layer]
    return " · ".join(part for part in parts if part)


def padding_phrase(tensor: TensorRow) -> str:
    """`"512 MiB for 40.5 MiB of numbers, 12.6 times"`."""
    times = f"{tensor.factor:.3g}"
    return f"{byte_count(tensor.bytes)} for {byte_count(tensor.unpadded)} of numbers, {times} times"


def type_cells(row: TypeRow) -> tuple[str, ...]:
    """The cells of a row of the table "which TPU do I need"."""
    memory = ""
    if row.peak is not None and row.available is not None:
        memory = f"{byte_count(row.peak)} of {byte_count(row.available)}"
    return (
        row.tpu,
        grouped(row.cores),
        _VERDICTS[row.verdict],
        memory,
        "" if row.largest_batch is None else grouped(row.largest_batch),
        "" if row.low is None or row.high is None else time_range(row.low, row.high),
        "" if row.per_core is None else rate(row.per_core),
    )


def percent(fraction: float) -> str:
    """A share in whole percents; `"<1%"` for less."""
    if 0 < fraction < 0.005:
        return "<1%"
    return f"{100 * fraction:.0f}%"


def rate(value: float) -> str:
    """How many a second, to three digits."""
    return grouped(round(float(f"{value:.3g}"))) if value >= 100 else f"{value:.3g}"
