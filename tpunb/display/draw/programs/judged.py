"""The lines below a cell whose programs the TPU's own compiler has judged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tpunb._util.plain_text import aligned, plain
from tpunb._util.tables import block, scrolled, table
from tpunb._util.units import byte_count
from tpunb.tpu.compiled_program import Program, time_in_words
from tpunb.tpu.types import accelerator

_MOST_LINES = 4
"""The most programs with a sentence each; more of them are a table."""

_HEAD = ("program", "verdict", "memory of a core", "cores", "collectives", "time of a call")


def programs_text(programs: Sequence[Program]) -> str:
    """Return a line for each program, or a table if there are many."""
    if len(programs) <= _MOST_LINES:
        lines = [line for program in programs for line in (_line(program), *program.notes)]
        return plain("\n".join(lines))
    return plain("\n".join(aligned(_rows(programs), "  ")))


def programs_html(programs: Sequence[Program]) -> str:
    """Return the same lines or the same table as HTML."""
    if len(programs) <= _MOST_LINES:
        lines = [line for program in programs for line in (_line(program), *program.notes)]
        return f"<div>{''.join(map(block, lines))}</div>"
    has_time = any(program.time for program in programs)
    return scrolled(table(_rows(programs), head=_HEAD if has_time else _HEAD[:-1], named=True))


def _line(program: Program) -> str:
    """Return a program's verdict in a line: `step fits a v5e-8: 2 MiB of 15.75 GiB a core`."""
    name, verdict, *facts = _row(program)
    facts = [fact for fact in facts if fact]
    return f"{name} {verdict}" + (f": {', '.join(facts)}" if facts else "")


def _rows(programs: Sequence[Program]) -> Iterable[tuple[str, ...]]:
    has_time = any(program.time for program in programs)
    return [_row(program) if has_time else _row(program)[:-1] for program in programs]


def _row(program: Program) -> tuple[str, ...]:
    memory = program.memory
    used, all_of_them = program.replicas * program.logical_devices, accelerator(program.tpu)
    cores = (
        f"on {used} of {all_of_them.num_devices} cores" if used < all_of_them.num_devices else ""
    )
    takes = "" if memory is None else f"{memory.takes} of {byte_count(memory.available)} a core"
    collectives = ", ".join(map(str, program.collectives))
    time = "" if program.time is None else f"about {time_in_words(program.time, ' a call')}"
    return program.name, _verdict(program), takes, cores, collectives, time


def _verdict(program: Program) -> str:
    if program.unknown:
        return f"is not judged: {program.unknown}"
    if any(error.code == "memory" for error in program.errors):
        return f"does not fit a {program.label}"
    if program.errors:
        return f"does not compile for a {program.label}"
    return f"fits a {program.label}"
