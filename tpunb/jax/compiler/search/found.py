"""The result of a search for a layout: a table, a picture of time against memory, and code."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from tpunb._util.plain_text import aligned, plain, shortened
from tpunb._util.tables import LINED, block, escaped, scrolled, table
from tpunb._util.units import byte_count, counted
from tpunb.compiler.program import TpuProgram
from tpunb.framework import program_display
from tpunb.tpu.compiled_program import time_of_tpu

DIFFER = "its results differ"

_HEAD = ("", "TPU", "mesh", "layout", "memory of a core", "time of a call", "collectives")
_LONGEST = 60


@dataclasses.dataclass(frozen=True)
class Tried:
    """A layout that was tried.

    Attributes:
        tpu: The TPU type.
        mesh: The mesh in words: `"data 4 × model 2"`.
        name: What a person calls the layout, with further changes: `"data parallel"`.
        program: What the TPU's compiler says; None if it was not asked.
        why: Why it was not asked; empty if it was.
        is_own: Whether the layout is that of the call's own arguments.
        is_confirmed: Whether the figures are those of full effort. Others may be off by some
            percent, and their time is only good to rank layouts.
        results: Whether its results equal those of the own layout; empty if they were not compared.
        code: The code that puts the arguments there; empty for the own layout.
    """

    tpu: str
    mesh: str
    name: str
    program: TpuProgram | None
    why: str = ""
    is_own: bool = False
    is_confirmed: bool = False
    results: str = ""
    code: str = ""

    @property
    def fits(self) -> bool:
        """True if the program is known to compile and to fit, and to have equal results."""
        program = self.program
        known = program is not None and program.ok and program.memory is not None
        return known and not self.results.startswith(DIFFER)

    @property
    def peak(self) -> int | None:
        """The bytes that a core needs at the peak; None if they are not known."""
        memory = self.program.memory if self.program is not None else None
        return memory.needs if memory is not None else None

    @property
    def seconds(self) -> float | None:
        """The estimated seconds of a call, in the middle of the range; None if there are none."""
        time = self.program.time if self.program is not None else None
        return time.estimate if time is not None else None

    @property
    def verdict(self) -> str:
        """`"fits"`, `"does not fit"`, or why nothing is known."""
        if (program := self.program) is None:
            return self.why
        if self.results.startswith(DIFFER):
            return self.results
        if program.errors:
            is_memory = all(error.code == "memory" for error in program.errors)
            return "does not fit" if is_memory else f"refused: {program.errors[0].reason}"
        return "fits" if self.fits else f"not known: {program.unknown or program.unsized}"

    @property
    def label(self) -> str:
        """The layout in words: `"data parallel on data 8 (v5e-8)"`."""
        mesh = f" on the mesh {self.mesh}" if self.mesh != "none" else ""
        return f"{self.name}{mesh} ({self.tpu})"


@dataclasses.dataclass(frozen=True)
class Found:
    """The layouts of a call that were tried, and the best.

    Attributes:
        rows: The layouts, in the order in which they were tried.
        note: What limits the result; empty if nothing does.
    """

    rows: tuple[Tried, ...]
    note: str = ""

    @property
    def best(self) -> Tried | None:
        """The fastest layout that fits; None if none is known to fit.

        Times at low effort only count if no time at full effort is known of a found layout.
        """
        fitting = [row for row in self.rows if row.fits]
        timed = [row for row in fitting if row.seconds is not None]
        if any(row.is_confirmed and not row.is_own for row in timed):
            timed = [row for row in timed if row.is_confirmed]
        return min(timed or fitting, key=lambda row: (row.seconds, row.peak), default=None)

    @property
    def own(self) -> Tried | None:
        """The layout of the call's own arguments, on the best layout's TPU type."""
        best = self.best
        owns = [row for row in self.rows if row.is_own]
        same = [row for row in owns if best is not None and row.tpu == best.tpu]
        return next(iter([*same, *owns]), None)

    @property
    def code(self) -> str:
        """The code that puts the arguments where the best layout says; empty for the own layout."""
        return self.best.code if self.best is not None else ""

    @property
    def headline(self) -> str:
        """The best layout in a sentence, or that none fits."""
        best, own = self.best, self.own
        tried = counted(len(self.rows), "layout")
        if best is None or best.program is None or best.program.memory is None:
            return f"None of {tried} is known to fit."
        takes = f"{byte_count(best.peak or 0)} of {byte_count(best.program.memory.available)}"
        said = f"The best of {tried}: {best.label}, {takes} a core{_time_of_call(best)}."
        if own is best:
            return f"Your own layout is {said[:1].lower()}{said[1:]}"
        if own is not None and own.peak is not None:
            verdict = "fits" if own.fits else own.verdict
            said += f" Your own {verdict}: {byte_count(own.peak)} a core{_time_of_call(own)}."
        return said

    @property
    def notes(self) -> list[str]:
        """Sentences on what the figures do not say."""
        notes = [self.note] if self.note else []
        best = self.best
        if best is not None and best.results:
            notes.append(f"{best.results[:1].upper()}{best.results[1:]}.")
        if best is not None and not best.is_confirmed:
            notes.append("It was compiled at low effort only: compile it before you rely on it.")
        return notes

    def as_dict(self) -> dict[str, Any]:
        """Return the layouts as values of JSON: sizes in bytes of a core, times in seconds."""
        rows = [
            {
                "tpu": row.tpu,
                "mesh": row.mesh,
                "layout": row.name,
                "verdict": row.verdict,
                "own": row.is_own,
                "full_effort": row.is_confirmed,
                "peak": row.peak,
                "seconds": row.seconds,
                "collectives": [
                    {"kind": each.kind, "count": each.count, "bytes": each.bytes}
                    for each in (row.program.collectives if row.program is not None else ())
                ],
                "results": row.results,
                "code": row.code,
            }
            for row in self.rows
        ]
        best = self.rows.index(self.best) if self.best is not None else None
        return {"headline": self.headline, "notes": self.notes, "best": best, "layouts": rows}

    def _ordered(self) -> list[Tried]:
        """Return the rows: the best, other layouts that fit by their time, and the rest."""
        best = self.best
        return sorted(
            self.rows,
            key=lambda row: (row is not best, not row.fits, row.seconds or 0.0, row.peak or 0),
        )

    def _cells(self) -> Iterator[tuple[str, ...]]:
        for number, row in enumerate(self._ordered(), start=1):
            memory = byte_count(row.peak) if row.peak is not None else ""
            program = row.program
            sent = ", ".join(map(str, program.collectives)) if program is not None else ""
            last = (sent or "none") if row.fits else row.verdict
            yield str(number), row.tpu, row.mesh, row.name, memory, _time(row), last

    def __str__(self) -> str:
        rows = [tuple(shortened(cell, _LONGEST) for cell in row) for row in self._cells()]
        code = ["", self.code] if self.code else []
        lines = [self.headline, *self.notes, *aligned([_HEAD, *rows], "  "), *code]
        return plain("\n".join(lines))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("Found(...)" if cycle else str(self))

    def _repr_html_(self) -> str:
        limits = {r.program.memory.available for r in self.rows if r.program and r.program.memory}
        points = [
            (str(number), row.seconds or 0.0, row.peak, row.fits, row.is_own)
            for number, row in enumerate(self._ordered(), start=1)
            if row.peak is not None
        ]
        picture = program_display().frontier(points, limits) if points else ""
        shown = table(list(self._cells()), head=_HEAD, named=True, style=LINED)
        notes = "".join(block(note) for note in self.notes)
        code = f"<pre>{escaped(self.code)}</pre>" if self.code else ""
        headline = block(self.headline, bold=True)
        return f"<div>{headline}{notes}{picture}{scrolled(shown)}{code}</div>"


def _time(row: Tried) -> str:
    """Return the time of a call: a range, or about how long it takes at low effort."""
    if row.program is None or row.program.time is None:
        return ""
    said = time_of_tpu(row.program.time)
    return said if row.is_confirmed else f"about {said}"


def _time_of_call(row: Tried) -> str:
    return f", {_time(row)} a call" if _time(row) and row.fits else ""
