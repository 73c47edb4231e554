"""The report of `tpunb compile --json`, which `fit_report.schema.json` describes."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tpunb.compiler.ask import libtpu, versions
from tpunb.compiler.exit_codes import (
    DOES_NOT_FIT,
    EXIT_CODES,
    FAILED,
    FITS,
    NOT_KNOWN,
    REFUSED,
)
from tpunb.compiler.fit.memory_limits import limit_in_bytes
from tpunb.compiler.program import TpuProgram
from tpunb.errors import CompileError, DoesNotFitError, NotKnownError
from tpunb.errors.code_problems import Problem
from tpunb.tpu.compiled_program import ProgramMemory

_GRAVEST_FIRST = (REFUSED, DOES_NOT_FIT, NOT_KNOWN, FITS)

FORMAT = "tpunb-compile/1"
"""The version of the report. Reports of one version only gain fields."""


def schema() -> dict[str, Any]:
    """Return the JSON schema of the report."""
    text = Path(__file__).with_name("fit_report.schema.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def verdict_of(program: TpuProgram, limit: int | float | str | None = None) -> str:
    """Return whether a program fits.

    Args:
        program: The program.
        limit: The memory that it may take on a core, as for `TpuProgram.raise_if_unfit`.

    Returns:
        `"fits"`, `"does-not-fit"`, `"refused"` for another refusal than memory, or `"not-known"`.
    """
    try:
        program.raise_if_unfit(limit)
    except DoesNotFitError:
        return DOES_NOT_FIT
    except NotKnownError:
        return NOT_KNOWN
    except CompileError:
        return REFUSED
    return FITS


def verdict_of_all(programs: Sequence[TpuProgram], limit: int | float | str | None = None) -> str:
    """Return the gravest verdict of several: refused, does not fit, not known, fits."""
    verdicts = {verdict_of(program, limit) for program in programs}
    return next((verdict for verdict in _GRAVEST_FIRST if verdict in verdicts), NOT_KNOWN)


def fit_report(
    source: Mapping[str, str],
    programs: Sequence[TpuProgram],
    limit: int | float | str | None = None,
) -> dict[str, Any]:
    """Return the report on a program for one or several TPU types.

    Args:
        source: The `kind`, the `path` and the `name` of the program.
        programs: The program for each type.
        limit: The memory that it may take on a core, as for `TpuProgram.raise_if_unfit`.
    """
    verdict = verdict_of_all(programs, limit)
    report = _report(source, verdict, EXIT_CODES[verdict])
    report["programs"] = [_program(program, limit) for program in programs]
    return report


def failure_report(
    source: Mapping[str, str],
    exit_code: int,
    message: str,
    *,
    fix: str = "",
    file: str = "",
    line: int | None = None,
) -> dict[str, Any]:
    """Return the report on a program that could not be compiled at all.

    Args:
        source: The `kind`, the `path` and the `name` of the program.
        exit_code: The exit code of the command.
        message: What happened.
        fix: What to do; may be empty.
        file: The user's file with the error; may be empty.
        line: The line of the error.
    """
    report = _report(source, FAILED, exit_code)
    report["error"] = {"message": message, "fix": fix, "file": file, "line": line}
    return report


def _report(source: Mapping[str, str], verdict: str, exit_code: int) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "verdict": verdict,
        "exit_code": exit_code,
        "source": dict(source),
        "time": versions.now(),
        "versions": {"python": platform.python_version(), **versions.software()},
        "flags": libtpu.flags(),
        "programs": [],
        "error": None,
    }


def _program(program: TpuProgram, limit: int | float | str | None) -> dict[str, Any]:
    made, time = program.provenance, program.time
    return {
        "tpu": program.tpu,
        "verdict": verdict_of(program, limit),
        "headline": program.headline,
        "replicas": program.replicas,
        "cores": program.cores,
        "examples": program.examples,
        "fitting_batch": program.fitting_batch,
        "memory": None if program.memory is None else _memory(program.memory, limit),
        "time": None if time is None else {"low": time.low, "high": time.high},
        "errors": [_problem(error) for error in program.errors],
        "notes": list(program.notes),
        "recorded": made is not None and made.recorded,
        "compiled_at": made.time if made is not None else "",
        "compiler": {each.name: each.version for each in made.compiler} if made is not None else {},
        "compile_seconds": program.compile_seconds,
        "not_counted": list(_not_counted(program)),
    }


def _not_counted(program: TpuProgram) -> Iterator[str]:
    """Yield the work and the memory that the figures omit, a sentence each."""
    if program.memory is not None:
        yield (
            "The memory is the program's, with its arguments and results. Other arrays that are "
            "alive on the device are not counted."
        )
    if program.time is not None:
        for text in program.time.not_counted:
            yield text[:1].upper() + text[1:]


def _memory(memory: ProgramMemory, limit: int | float | str | None) -> dict[str, Any]:
    return {
        "peak": memory.peak,
        "available": memory.available,
        "limit": _most(memory, limit),
        "exact": memory.exact,
        "at_least": memory.bound,
        "parts": memory.parts,
    }


def _most(memory: ProgramMemory, limit: int | float | str | None) -> int:
    """Return the bytes that a program may take."""
    return min(limit_in_bytes(limit, memory.available), memory.available)


def _problem(error: Problem) -> dict[str, Any]:
    return {
        "code": error.code,
        "reason": error.reason,
        "fix": error.fix,
        "file": error.file,
        "line": error.line,
        "known_error": error.entry,
    }
