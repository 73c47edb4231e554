"""`tpunb verify`: its connections, its output and its exit codes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from counterparts.children import WITHOUT_UNUSED, run_code
from support.tiers import THOROUGH

from tpunb import cli
from tpunb.cli import verify
from tpunb.tpu.types import accelerator
from tpunb.verification.report import VerifyReport
from tpunb.verification.suite import Outcome


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the planned connections, after the statuses of the report's outcomes."""
    import tpunb.verification.run

    for name in ("TPUNB_TPU", "TPUNB_REQUIRE_TPU"):
        monkeypatch.delenv(name, raising=False)
    plans: list[Any] = []
    statuses: list[Any] = ["holds", "not run"]

    def verify_plan(plan: Any, *, say: Any, progress: Any) -> VerifyReport:
        plans.append(plan)
        say("connecting")
        outcomes = tuple(
            Outcome(group="tests", name=f"one that {status}", status=status, found="4", seconds=1.5)
            for status in statuses
        )
        for number, outcome in enumerate(outcomes, 1):
            progress(number, len(outcomes), outcome)
        return VerifyReport({"TPU": plan.tpu}, outcomes, None in statuses, "hangs" in statuses)

    monkeypatch.setattr(tpunb.verification.run, "verify_plan", verify_plan)
    plans.append(statuses)
    return plans


@pytest.mark.parametrize(
    ("arguments", "kind", "tpu"),
    [
        (["v3-8"], "virtual", "v3-8"),
        (["4"], "virtual", "4 cores"),
        (["v4-16", "--local-workers"], "virtual", "v4-16"),
        (["local"], "hardware", "local"),
        (["grpc://10.0.0.2:8470"], "hardware", "grpc://10.0.0.2:8470"),
        (["my-tpu", "--zone", "us-central1-b"], "hardware", "my-tpu"),
    ],
)
def test_the_planned_connection(
    arguments: list[str], kind: str, tpu: str, planned: list[Any]
) -> None:
    assert cli.main(["verify", *arguments]) == 0
    plan = planned[-1]
    assert (plan.kind, plan.tpu) == (kind, tpu)
    assert plan.request.is_pod is ("--local-workers" in arguments)


def test_lines_while_it_runs(planned: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", "v3-8"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("TPU verification: 1 claim held, 0 differed, 1 not run\n")
    first, second, third = err.splitlines()
    assert first == "connecting"
    assert re.fullmatch(r"\[1/2\] tests: one that holds +1.5 s", second)
    assert third.endswith("1.5 s  not run")
    assert cli.main(["verify", "v3-8", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_a_difference(
    planned: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned[0][:] = ["holds", "differs"]
    path = tmp_path / "report.json"
    assert cli.main(["verify", "v3-8", "--json", str(path)]) == 1
    assert "Differed\n  tests: one that differs" in capsys.readouterr().out
    read = json.loads(path.read_text(encoding="utf-8"))
    assert [claim["status"] for claim in read["claims"]] == ["holds", "differs"]


def test_an_interrupt(planned: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    planned[0][:] = ["holds", None]
    assert cli.main(["verify", "v3-8"]) == 130
    assert "interrupted" in capsys.readouterr().out


def test_json_alone(planned: list[Any], capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", "v3-8", "-q", "--json", "/dev/stdout"]) == 0
    assert json.loads(capfd.readouterr().out)["ok"] is True


def test_a_file_that_cannot_be_written(
    planned: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["verify", "v3-8", "--json", str(tmp_path / "no" / "x.json")]) == 2
    assert "Cannot write" in capsys.readouterr().err
    assert len(planned) == 1, "the command fails before it verifies anything"


def test_a_type_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", "v3-9"]) == 2
    assert "Did you mean v3-8" in capsys.readouterr().err


def test_a_hanging_program_ends_the_process(
    planned: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned[0][:] = ["hangs", "differs"]
    monkeypatch.setattr(verify.os, "_exit", sys.exit)
    with pytest.raises(SystemExit, match="1"):
        cli.main(["verify", "v3-8"])


@pytest.mark.tensorflow
@pytest.mark.slow
@THOROUGH
@pytest.mark.parametrize(
    ("tpu", "workers", "cores"), [("v4-16", [], 4), ("4", ["2"], 2)], ids=["v4-16", "4 cores"]
)
def test_a_pod_of_two_workers(tpu: str, workers: list[str], cores: int, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    code = WITHOUT_UNUSED + "import sys; from tpunb.cli import main; sys.exit(main(sys.argv[1:]))"
    process = run_code(code, "verify", tpu, "--json", path, "--local-workers", *workers)
    assert process.returncode == 0, f"{process.stdout}\n{process.stderr}"
    read = json.loads(path.read_text(encoding="utf-8"))
    assert read["ok"]
    assert read["facts"]["TPU"] == f"virtual {accelerator(tpu).name}, hosts in processes"
    assert read["facts"]["hosts"] == f"2, each with {cores} cores"
    holding = {claim["name"] for claim in read["claims"] if claim["status"] == "holds"}
    assert {"order of hosts", "within a step", "connected again", "closed"} <= holding
    text = path.read_text(encoding="utf-8") + process.stdout
    assert not re.search(r"127\.0\.0\.1|localhost:|:\d{5}\b", text)
    assert not {str(tmp_path), str(Path.home()), sys.prefix} & set(re.split(r"[\s\"']", text))
    # TensorFlow 2.18 logs lines before it knows the log level.
    expected_lines = (
        r"\[ ?\d+/\d+\] |starting 2 workers|[IW]0000 |WARNING: All log messages before absl"
    )
    assert [
        line for line in process.stderr.splitlines() if not re.match(expected_lines, line)
    ] == []
