"""The figures of a compiled program that puzzles limit and compare."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tpunb._util.units import byte_count, counted, duration, percent
from tpunb.tpu.compiled_program import Program, Transfer


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a compiled program. Less is better.

    Attributes:
        name: What it says, for a reader.
        of: Returns its value; None if it is not known.
        text: Returns a value for a reader.
        timed: Whether the compiler has to estimate the time.
    """

    name: str
    of: Callable[[Program], float | None]
    text: Callable[[float], str]
    timed: bool = False


def _peak(program: Program) -> float | None:
    return None if program.memory is None else program.memory.peak


def _padding(program: Program) -> float | None:
    memory = program.memory
    return None if memory is None else sum(each.wasted for each in memory.padding) / memory.peak


def _sent(program: Program) -> float | None:
    return _sum_of(program, lambda transfer: transfer.sent)


def _time(program: Program) -> float | None:
    if program.time is None or has_open_loops(program):
        return None
    return program.time.estimate


def has_open_loops(program: Program) -> bool:
    """Return whether a figure counts a loop, whose length depends on data, as one trip."""
    omissions = program.time.not_counted if program.time is not None else ()
    return any("of unknown length" in text for text in (*program.notes, *omissions))


MEMORY = Figure("memory of a core", _peak, byte_count)
PADDING = Figure("padding", _padding, percent)
SENT = Figure("bytes that a core sends", _sent, byte_count)
TIME = Figure("time of a call", _time, lambda value: f"about {duration(value)}", timed=True)


def runs_of(kind: str) -> Figure:
    """Return the figure that counts the runs of collectives of a kind in a call."""
    return Figure(
        f"{kind}s",
        lambda program: _sum_of(program, lambda each: each.runs * (each.kind == kind)),
        lambda value: counted(round(value), kind),
    )


def other_than(kind: str) -> Figure:
    """Return the figure that counts the runs of collectives of all other kinds in a call."""
    return Figure(
        "collectives of other kinds",
        lambda program: _sum_of(program, lambda each: each.runs * (each.kind != kind)),
        lambda value: str(round(value)),
    )


def _sum_of(program: Program, of: Callable[[Transfer], float]) -> float | None:
    if program.communication is None:
        return 0
    if has_open_loops(program):
        return None
    return sum(map(of, program.communication.transfers))
