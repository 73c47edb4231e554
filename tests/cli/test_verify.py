"""`tpunb verify`: its connections, its output and its exit codes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from counterparts.children import environment
from support.patience import PATIENCE, wait_until

from tpunb import cli
from tpunb._util import child_side
from tpunb.cli import verify, verify_process
from tpunb.verification.report import DIED, VerifyReport, schema
from tpunb.verification.suite import Outcome


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the planned connections, after the statuses of the report's outcomes.

    The process that verifies is this one.
    """
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
            so_far(VerifyReport({"TPU": plan.tpu}, outcomes[:number], planned=len(outcomes)))
            progress(number, len(outcomes), outcome)
        report = VerifyReport({"TPU": plan.tpu}, outcomes, None in statuses, "hangs" in statuses)
        so_far(report)
        return report

    def in_this_process(command: Any, framework: str, say: Any, so_far: Any) -> Any:
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.redirect_stderr(io.StringIO()) as lines,
        ):
            path = Path(folder) / "report.json"
            code = cli.main([*command[3:], "--json", str(path)])
            report = VerifyReport.from_dict(json.loads(path.read_text(encoding="utf-8")))
        for line in lines.getvalue().splitlines():
            say(line)
        return report, code

    monkeypatch.setattr(tpunb.verification.run, "verify_plan", verify_plan)
    monkeypatch.setattr(child_side, "end_with_parent", lambda _: None)
    monkeypatch.setattr(verify_process, "verify_in_process", in_this_process)
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
from tpunb._util.child_side import end_with_parent
from tpunb.verification.report import DIED, VerifyReport
from tpunb.verification.suite import Outcome
framework, planned, *_, path = sys.argv[1:]
def write(*outcomes):
    report = VerifyReport({"TPU": "v5e-8", framework: "1"}, outcomes, planned=int(planned))
    open(path, "w", encoding="utf-8").write(json.dumps(report.as_dict()))
tried = Outcome(group=framework, name="one", status="holds", found="4")
begun = Outcome(group=framework, name="two", status="differs", found=DIED)
write(tried)
print("working", file=sys.stderr, flush=True)
"""
"""A process that verifies in place of `tpunb verify --here`."""


def of_both(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, planned: int = 1
) -> tuple[int, Any]:
    """Return the exit code and the report of both frameworks, whose processes run some code."""

    def command(args: Any, framework: str) -> list[str]:
        source = REPORT if framework == "jax" else code
        return [sys.executable, "-c", source, framework, str(planned)]

    monkeypatch.setattr(verify, "_command", command)
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
    assert "JAX        working" in capsys.readouterr().err


@pytest.mark.parametrize(("framework", "python"), [("jax", None), ("tensorflow", "/tmp/python")])
def test_each_framework_has_its_python(framework: str, python: str | None) -> None:
    options = ["--framework", "both", "--tensorflow-python", "/tmp/python", "--timeout", "9"]
    args = cli.parser_of_commands().parse_args(["verify", "v5e-8", *options])
    first, *rest = verify._command(args, framework)
    assert first == (python or sys.executable)
    assert rest[:3] == ["-m", "tpunb", "verify"]
    assert {"--framework", framework, "--timeout", "v5e-8"} <= set(rest)


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


def test_a_process_that_dies_keeps_its_outcomes_and_names_the_claim(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    died = f"{REPORT}\nwrite(tried, begun)\nimport os; os.abort()"
    code, read = of_both(monkeypatch, tmp_path, died, planned=2)
    assert (code, read["not_reached"]) == (1, 1)
    found = {claim["name"]: claim["found"] for claim in read["claims"]}
    assert found["two"] == DIED
    assert found["TensorFlow"] == "signal 6"


def test_a_process_that_cannot_connect(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = "import sys; print('tpunb: it is busy', file=sys.stderr); sys.exit(2)"
    command = [sys.executable, "-c", refused]
    monkeypatch.setattr(verify, "_command", lambda args, framework: command)
    path = tmp_path / "report.json"
    for quiet in ([], ["-q"]):
        assert cli.main(["verify", "v3-8", "--json", str(path), *quiet]) == 2
        assert capsys.readouterr().err.count("it is busy") == 1
    assert not path.exists()


KILLED = """
import sys
from tpunb import cli
from tpunb.cli import verify
verify._command = lambda args, framework: [sys.executable, "-c", sys.argv[1], framework, "2"]
sys.exit(cli.main(["verify", "v5e-8", *sys.argv[2:]]))
"""


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("framework", ["jax", "both"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_command_keeps_the_report_and_ends_its_process(
    number: signal.Signals, framework: str, tmp_path: Path
) -> None:
    """The process would hold the TPU."""
    path, lock = tmp_path / "report.json", tmp_path / "lock"
    waiting = f"""{REPORT}
import fcntl, time
end_with_parent(0)
lock = open({str(lock)!r}, "w")
fcntl.flock(lock, fcntl.LOCK_EX)
write(tried, begun)
print("waiting", file=sys.stderr, flush=True)
time.sleep({PATIENCE})
"""
    command = [sys.executable, "-c", KILLED, waiting, "--framework", framework, "--json", path]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment(), text=True) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if line.endswith("waiting\n"))
        assert ("JAX" in line) is (framework == "both")
        # The command shows a line before it saves what the report has by then.
        wait_until(lambda: path.exists() and DIED in path.read_text(encoding="utf-8"))
        process.send_signal(number)
        process.stderr.read()
    with lock.open("w") as file:
        fcntl = pytest.importorskip("fcntl")
        wait_until(lambda: not _is_locked(fcntl, file))
    read = json.loads(path.read_text(encoding="utf-8"))
    assert [claim["name"] for claim in read["claims"]][:2] == ["one", "two"]
    assert (read["ok"], read["not_reached"]) == (False, int(framework == "both"))


def _is_locked(fcntl: Any, file: Any) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


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
    ended: list[int] = []
    monkeypatch.setattr(verify.os, "_exit", ended.append)
    assert cli.main(["verify", "v3-8"]) == 1
    assert ended == [0]
