"""The report of a dry run: the memory of a device by line, and what does not fit."""

from __future__ import annotations

import linecache
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from tpunb._util.plain_text import aligned, plain, shortened
from tpunb._util.tables import Markup, escaped, scrolled, table
from tpunb._util.units import byte_count, counted, duration, grouped
from tpunb.display.draw.programs.html import figure_bar
from tpunb.tpu.compiled_program import Program

_BAR = 24
_MOST_CODE = 36
_CODE = "font-family:monospace;font-weight:400"
_WORST_FIRST = ("does not fit", "refused", "not known", "fits")
_HEAD = ("line", "program", "calls", "memory of a core", "verdict")


class Calls(Protocol):
    """The calls of a program in a line. See `tpunb.jax.virtual.dry_record.Calls`."""

    file: str
    line: int
    cell: int | None
    name: str
    program: Program | None
    count: int
    computed: int
    beside: int
    refused: str

    @property
    def peak(self) -> int | None:
        """The bytes of a device during the call."""

    @property
    def fits(self) -> bool | None:
        """Whether the calls fit."""


def dry_run_text(calls: Sequence[Calls], limit: int, seconds: float) -> str:
    """Return the report as text.

    Args:
        calls: The calls, in the order of the run.
        limit: The bytes of a core's memory.
        seconds: The time that the run has waited for verdicts.
    """
    rows = [
        (
            f"{_place(each)}  {_code(each)}".rstrip(),
            *_figures(each),
            _filled(each, limit),
            _verdict(each),
        )
        for each in calls
    ]
    shown = aligned([_HEAD, *rows], "  ") if rows else []
    return plain("\n".join([*_sentences(calls, limit, seconds), *shown]))


def dry_run_html(calls: Sequence[Calls], limit: int, seconds: float) -> str:
    """Return the report as HTML; see `dry_run_text`."""
    rows = [
        (_place_and_code(each), *_figures(each), _bar(each, limit), _verdict(each))
        for each in calls
    ]
    said = "".join(f"<div>{escaped(line)}</div>" for line in _sentences(calls, limit, seconds))
    return f"<div>{said}{scrolled(table(rows, head=_HEAD, named=True))}</div>"


def dry_run_json(calls: Sequence[Calls], limit: int, seconds: float) -> dict[str, Any]:
    """Return the report as values of JSON; sizes in bytes, of one core."""
    return {
        "verdict": _verdict_of_all(calls),
        "peak": max((each.peak or 0 for each in calls), default=0),
        "limit": limit,
        "seconds": round(seconds, 3),
        "calls": [
            {
                "file": each.file,
                "line": each.line,
                "cell": each.cell,
                "program": each.name,
                "calls": each.count,
                "computed": each.computed,
                "beside": each.beside,
                "peak": each.peak,
                "verdict": _verdict(each),
                "refused": each.refused,
                "collectives": [str(one) for one in each.program.collectives]
                if each.program
                else [],
            }
            for each in calls
        ],
    }


def _verdict_of_all(calls: Sequence[Calls]) -> str:
    """Return the worst verdict, as in the exit codes of `tpunb compile`."""
    verdicts = {_verdict(each).partition(":")[0] for each in calls}
    worst = next((text for text in _WORST_FIRST if text in verdicts), "not known")
    return worst.replace(" ", "-")


def _sentences(calls: Sequence[Calls], limit: int, seconds: float) -> Iterator[str]:
    programs = len({id(each.program) for each in calls if each.program is not None})
    computed = sum(each.computed for each in calls)
    yield (
        f"Dry run: {counted(programs, 'program')} judged, {counted(_total(calls), 'call')}, of "
        f"which {computed} computed. Calls waited {duration(seconds)} for verdicts."
    )
    refused = next((each for each in calls if each.fits is False), None)
    fullest = max(calls, key=lambda each: each.peak or 0, default=None)
    if refused is not None:
        yield f"It does not fit: {refused.name} in {_place(refused)}. {refused.refused}"
    elif fullest is not None and fullest.peak is not None:
        yield (
            f"A core's memory is fullest in {_place(fullest)}: {byte_count(fullest.peak)} of "
            f"{byte_count(limit)}."
        )


def _total(calls: Sequence[Calls]) -> int:
    return sum(each.count for each in calls)


def _place(calls: Calls) -> str:
    if calls.cell is not None:
        return f"cell [{calls.cell}], line {calls.line}"
    return f"{Path(calls.file).name}:{calls.line}"


def _code(calls: Calls) -> str:
    return shortened(linecache.getline(calls.file, calls.line).strip(), _MOST_CODE)


def _figures(calls: Calls) -> tuple[str, str]:
    return calls.name, grouped(calls.count)


def _filled(calls: Calls, limit: int) -> str:
    peak = calls.peak
    if peak is None:
        return ""
    cells = min(_BAR, max(1, round(_BAR * peak / limit)))
    return f"{'█' * cells:░<{_BAR}} {byte_count(peak)}"


def _place_and_code(calls: Calls) -> Markup:
    code = escaped(_code(calls))
    return Markup(f'{escaped(_place(calls))}<div style="{_CODE}">{code}</div>')


def _bar(calls: Calls, limit: int) -> Markup:
    peak = calls.peak
    if peak is None:
        return Markup("")
    colour = "#d55e00" if calls.fits is False or peak > limit else "#0072b2"
    return figure_bar(peak / limit, f"{byte_count(peak)} of {byte_count(limit)}", colour)


def _verdict(calls: Calls) -> str:
    if calls.fits is None:
        unknown = calls.program.unknown if calls.program is not None else ""
        return f"not known: {unknown}" if unknown else "not known"
    if calls.fits:
        return "fits"
    errors = calls.program.errors if calls.program is not None else ()
    return "refused" if any(error.code != "memory" for error in errors) else "does not fit"
