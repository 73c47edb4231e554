"""The report of `tpunb compile --json`: its verdicts, and its schema."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import jsonschema
import pytest
from support import programs as made

from tpunb.compiler import fit_report
from tpunb.compiler.exit_codes import EXIT_CODES
from tpunb.compiler.fit_report import failure_report, verdict_of, verdict_of_all
from tpunb.tpu.compiled_program import Provenance, Release

SOURCE = {"kind": "function", "path": "train.py", "name": "step"}
OPEN = dataclasses.replace(made.FITS, memory=None, unsized="the batch has no size.")


def validated(report: dict[str, Any]) -> dict[str, Any]:
    """Return the report as another program reads it, after validating it."""
    read: dict[str, Any] = json.loads(json.dumps(report))
    jsonschema.Draft202012Validator.check_schema(fit_report.schema())
    jsonschema.validate(read, fit_report.schema())
    return read


@pytest.mark.parametrize(
    ("program", "limit", "verdict"),
    [
        (made.FITS, None, "fits"),
        (made.FITS, "3 GiB", "does-not-fit"),
        (made.TOO_LARGE, None, "does-not-fit"),
        (made.TOO_LARGE, "1 TiB", "does-not-fit"),
        (made.REFUSED, None, "refused"),
        (made.UNKNOWN, None, "not-known"),
        (OPEN, None, "not-known"),
        (dataclasses.replace(made.FITS, memory=None), None, "not-known"),
        (dataclasses.replace(made.TOO_LARGE, unsized="no size."), None, "does-not-fit"),
    ],
)
def test_the_verdict_of_a_single_program(program: Any, limit: Any, verdict: str) -> None:
    assert verdict_of(program, limit) == verdict


@pytest.mark.parametrize(
    ("programs", "verdict"),
    [
        ([made.FITS, made.UNKNOWN], "not-known"),
        ([made.UNKNOWN, made.TOO_LARGE], "does-not-fit"),
        ([made.TOO_LARGE, made.REFUSED, made.FITS], "refused"),
        ([made.FITS, made.UNTIMED], "fits"),
    ],
)
def test_the_worst_verdict_counts(programs: Any, verdict: str) -> None:
    assert verdict_of_all(programs) == verdict


@pytest.mark.parametrize("program", [*made.ALL, made.hostile(), OPEN])
def test_every_report_follows_the_schema(program: Any) -> None:
    report = validated(fit_report.fit_report(SOURCE, [program, made.FITS], "90%"))
    assert report["exit_code"] == EXIT_CODES[report["verdict"]]
    assert [each["tpu"] for each in report["programs"]] == [program.tpu, "v3-8"]


def test_a_report_has_the_figures_and_the_releases() -> None:
    provenance = Provenance("2026-11-26T23:50:00Z", (Release("libtpu", "0.0.52"),), (), True)
    program = dataclasses.replace(made.FITS, provenance=provenance)
    report = validated(fit_report.fit_report(SOURCE, [program]))
    (described,) = report["programs"]
    assert described["memory"]["peak"] == made.MEMORY.peak
    assert described["memory"]["limit"] == made.MEMORY.available
    assert described["time"] == {"low": 0.11, "high": 0.174}
    assert described["compiler"] == {"libtpu": "0.0.52"}
    assert described["recorded"] is True
    assert report["versions"]["tpunb"]


def test_a_failure_follows_the_schema() -> None:
    report = validated(failure_report(SOURCE, 65, "NameError: x", file="train.py", line=3))
    assert report["error"]["line"] == 3


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "perhaps"},
        {"exit_code": 1},
        {"format": "tpunb-compile/2"},
        {"programs": []},
        {"versions": {}},
        {"error": {"message": "x"}},
    ],
)
def test_the_schema_refuses_contradictions(change: dict[str, Any]) -> None:
    report = fit_report.fit_report(SOURCE, [made.FITS])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**report, **change}, fit_report.schema())
