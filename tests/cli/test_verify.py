"""`tpunb verify`: its connections, its output and its exit codes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tpunb import cli
from tpunb.cli import verify, verify_both
from tpunb.verification.report import VerifyReport, schema
from tpunb.verification.suite import Outcome


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the planned connections, after the statuses of the report's outcomes."""
    import tpunb.verification.run

    for name in ("TPUNB_TPU", "TPUNB_REQUIRE_TPU"):
        monkeypatch.delenv(name, raising=False)
    plans: list[Any] = []
    statuses: list[Any] = ["holds", "not run"]

    def verify_plan(plan: Any, *, say: Any, progress: Any, so_far: Any) -> VerifyReport:
        plans.append(plan)
        say("connecting")
        outcomes = tuple(
            Outcome(group="tests", name=f"one that {status}", status=status, found="4", seconds=1.5)
            for status in statuses
        )
        for number, outcome in enumerate(outcomes, 1):
            progress(number, len(outcomes), outcome)
            if so_far is not None:
                so_far(VerifyReport({"TPU": plan.tpu}, outcomes[:number], planned=len(outcomes)))
        return VerifyReport({"TPU": plan.tpu}, outcomes, None in statuses, "hangs" in statuses)

    monkeypatch.setattr(tpunb.verification.run, "verify_plan", verify_plan)
    plans.append(statuses)
    return plans


@pytest.mark.parametrize(
    ("arguments", "kind", "tpu"),
    [
        (["v3-8"], "virtual", "v3-8"),
        (["4"], "virtual", "4 cores"),
        (["v4-16"], "virtual", "v4-16"),
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


def test_the_text_of_an_issue(
    planned: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / "report.json", tmp_path / "issue.md"]
    assert cli.main(["verify", "v3-8", "--json", str(files[0]), "--issue", str(files[1])]) == 0
    text = files[1].read_text(encoding="utf-8")
    assert "attach report.json" in text
    assert "Title: TPU verification: 1 claim held, 0 differed, 1 not run on v3-8" in text
    last = capsys.readouterr().err.splitlines()[-1]
    title = (
        "TPU%20verification%3A%201%20claim%20held%2C%200%20differed%2C%201%20not%20run%20on%20v3-8"
    )
    address = f"https://github.com/tpunb/tpunb/issues/new?title={title}"
    assert (
        last == f"To send it: open {address}, paste the text of {files[1]}, and attach {files[0]}."
    )


def test_the_framework(planned: list[Any]) -> None:
    assert cli.main(["verify", "v5e-8", "--framework", "jax"]) == 0
    assert planned[-1].framework == "jax"
    assert cli.main(["verify", "v5e-8", "--framework", "tensorflow"]) == 0
    assert planned[-1].framework == "tensorflow"


REPORT = """
import json, sys
from tpunb.verification.report import VerifyReport, schema
from tpunb.verification.suite import Outcome
framework, planned, arguments, _, path = sys.argv[1:]
print("working on", arguments, file=sys.stderr)
tried = Outcome(group=framework, name="one", status="holds", found="4")
report = VerifyReport({"TPU": arguments, framework: "1"}, (tried,), planned=int(planned))
open(path, "w", encoding="utf-8").write(json.dumps(report.as_dict()))
"""


def of_both(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, planned: int = 1
) -> tuple[int, Any]:
    """Return the exit code and the report of both frameworks, whose processes run some code."""

    def command(python: str, framework: str, arguments: Any) -> list[str]:
        source = REPORT if framework == "jax" else code
        return [python, "-c", source, framework, str(planned), *arguments]

    monkeypatch.setattr(verify_both, "_command", command)
    path = tmp_path / "report.json"
    ended = cli.main(["verify", "v5e-8", "--framework", "both", "--json", str(path)])
    read = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.validate(read, schema())
    return ended, read


def test_both_frameworks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, read = of_both(monkeypatch, tmp_path, REPORT)
    assert (code, read["ok"]) == (0, True)
    assert read["facts"] == {"TPU": "v5e-8", "jax": "1", "tensorflow": "1"}
    assert [claim["group"] for claim in read["claims"]] == ["jax", "tensorflow"]
    assert "JAX        working on v5e-8" in capsys.readouterr().err


def test_each_framework_has_its_python() -> None:
    command = verify_both._command("/tmp/python", "jax", ["v5e-8"])
    assert command == ["/tmp/python", "-m", "tpunb", "verify", "v5e-8", "--framework", "jax"]


def test_a_python_without_tpunb(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--tensorflow-python", "/nowhere/python"]
    assert cli.main(["verify", "v5e-8", "--framework", "both", *options]) == 2
    assert "/nowhere/python is not a Python that can run" in capsys.readouterr().err
    assert cli.main(["verify", "v5e-8", "--framework", "jax", *options]) == 2
    assert "--framework both" in capsys.readouterr().err


def test_a_framework_whose_process_dies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dying = "import os, sys; print('at 10.0.0.1:8470', file=sys.stderr, flush=True); os.abort()"
    code, read = of_both(monkeypatch, tmp_path, dying)
    assert (code, read["ok"]) == (1, False)
    held, died = read["claims"]
    assert (held["status"], died["status"]) == ("holds", "differs")
    assert (died["found"], died["message"]) == ("signal 6", "at <address>")


def test_a_process_that_dies_keeps_its_outcomes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, read = of_both(monkeypatch, tmp_path, f"{REPORT}\nsys.exit(3)", planned=2)
    assert (code, read["not_reached"]) == (1, 2)
    assert [claim["name"] for claim in read["claims"]] == ["one", "JAX", "one", "TensorFlow"]


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
