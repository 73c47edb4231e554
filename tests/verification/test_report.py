"""Reports have the results, and no names of the machine."""

from __future__ import annotations

import getpass
import json
import socket
from typing import Any

import jsonschema
import pytest

from tpunb.verification.issue_text import issue_text
from tpunb.verification.report import VerifyReport, merged, schema, scrubber
from tpunb.verification.suite import Outcome


def outcome(name: str, status: Any, **more: Any) -> Outcome:
    texts = {"found": "", **more}
    return Outcome(group="tests", name=name, says="It is so.", status=status, **texts)


def test_a_report() -> None:
    holding = outcome("a", "holds", expected="1", found="1", seconds=61.0)
    wrong = outcome("b", "differs", expected="3", found="4", message="Error:\n  \x1b[31mred")
    skipped = outcome("c", "not run", found="no reason")
    report = VerifyReport({"TPU": "virtual v3-8"}, (holding, wrong, skipped))
    assert not report.ok
    assert report.headline == "TPU verification: 1 claim held, 1 differed, 1 not run"
    assert (report.differences, report.not_run) == ((wrong,), (skipped,))
    text = str(report)
    for line in (
        "TPU  virtual v3-8",
        "    expected  3",
        "    found     4",
        "    message   Error: \\x1b[31mred",
        "    because  no reason",
        "  tests: a: 1",
        "Took 61 s.",
    ):
        assert line in text.splitlines()
    read = json.loads(json.dumps(report.as_dict()))
    assert [claim["status"] for claim in read["claims"]] == ["holds", "differs", "not run"]
    assert read["facts"] == {"TPU": "virtual v3-8"}


@pytest.mark.parametrize(
    ("outcomes", "interrupted", "ok"),
    [
        ((outcome("a", "holds"), outcome("b", "not run")), False, True),
        ((outcome("a", "holds"),), True, False),
        ((outcome("a", "holds"), outcome("b", "differs")), False, False),
        ((outcome("b", "not run"),), False, False),
        ((), False, False),
    ],
)
def test_skipped_claims_have_not_passed(outcomes: Any, interrupted: bool, ok: bool) -> None:
    assert VerifyReport({}, outcomes, interrupted).ok is ok


@pytest.mark.parametrize(
    "secret",
    [
        "grpc://10.1.2.3:8470",
        "10.164.0.7",
        "ipv4:10.164.0.7:8470",
        "[fe80::1]:8470",
        "::1",
        "localhost:8470",
        "worker-3.internal.example:8470",
        "https://tpu.googleapis.com/v2/projects/mine",
        "/home/ada/secret project/notebook.ipynb",
        "~/notebooks/mine.ipynb",
        "C:\\Users\\ada\\x.py",
        "my-tpu",
        "europe-west4-a",
        "lovelace",
        "vm",
        "hunter2-hunter2",
    ],
)
def test_a_text_hides_the_machine(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "hunter2-hunter2")
    monkeypatch.setattr(getpass, "getuser", lambda: "lovelace")
    monkeypatch.setattr(socket, "gethostname", lambda: "vm")
    scrub = scrubber(["my-tpu", "europe-west4-a", None, ""])
    for text in (f"cannot reach {secret} now", f"at '{secret}'", f'File "{secret}", line 3'):
        scrubbed = scrub(text)
        assert secret not in scrubbed
        assert not {"ada", "mine", "8470", "project"} & set(scrubbed.replace("<", " ").split())


@pytest.mark.parametrize(
    "text",
    [
        "NotConnectedError: This connection is closed.",
        "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM",
        "InvalidArgumentError: No registered 'LookupTableFindV2' OpKernel for XLA_TPU_JIT devices",
        "from device /job:worker/replica:0/task:0/device:CPU:1",
        "in device /job:localhost/replica:0/task:0/device:TPU:3",
        "See https://www.tensorflow.org/guide/function for more information.",
        "{{node boolean_mask/Where}} of float32[524288, 524288], 3.5e-05 of 1/2",
        "std::string in tensorflow::Status",
        "[2, 2, 1, 2]; largest difference 1.2e-07, allowed 1e-05",
    ],
)
def test_a_text_keeps_the_subject_of_a_report(text: str) -> None:
    assert scrubber()(text) == text


def test_keys_are_hidden_next_to_names_of_errors() -> None:
    scrubbed = scrubber()("NotConnectedError: token=AbcdefghijklmnopQrst key aB3dE5gH7jK9mN1pQ3")
    assert scrubbed == "NotConnectedError: token=*** key ***"


def test_a_long_text_keeps_its_start_and_its_end() -> None:
    scrubbed = scrubber()("start " + "of many words " * 999 + "end")
    assert len(scrubbed) < 700
    assert scrubbed.startswith("start")
    assert scrubbed.endswith("end")


def test_a_report_follows_its_schema_and_is_read_again() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    outcomes = (outcome("a", "holds"), outcome("b", "differs", message="Error: 1"))
    report = VerifyReport({"TPU": "virtual v3-8"}, outcomes, planned=5)
    values = json.loads(json.dumps(report.as_dict()))
    jsonschema.validate(values, schema())
    read = VerifyReport.from_dict(values)
    assert read == report
    assert (read.not_reached, read.ok) == (3, False)
    assert read.headline == "TPU verification: 1 claim held, 1 differed, 3 not reached"


def test_reports_of_two_frameworks_are_one() -> None:
    first = VerifyReport({"TPU": "v5e-8", "devices": "8"}, (outcome("a", "holds"),), planned=2)
    second = VerifyReport({"TPU": "v5e-8", "mesh": "2×4"}, (outcome("b", "holds"),), True)
    both = merged([first, second])
    assert both.facts == {"TPU": "v5e-8", "devices": "8", "mesh": "2×4"}
    assert [each.name for each in both.outcomes] == ["a", "b"]
    assert (both.not_reached, both.interrupted) == (1, True)
    assert merged([first], to_come=1).not_reached == 2
    assert merged([VerifyReport({}, ()), first]).facts["TPU"] == "v5e-8"


def test_the_text_of_an_issue() -> None:
    outcomes = (
        outcome("a", "holds"),
        outcome("b", "differs", expected="3 | 4", found="4", message="Error: <b>"),
        outcome("c", "not run", found="no reason"),
        outcome("d", "not run", found="no reason"),
    )
    report = VerifyReport({"TPU": "hardware of this machine", "type": "v5e-8"}, outcomes)
    text = issue_text(report, "report.json")
    assert "attach report.json" in text
    assert (
        "Title: TPU verification: 1 claim held, 1 differed, 2 not run on hardware of this "
        "machine (v5e-8)" in text
    )
    assert "| tests: b | It is so. | 3 \\| 4 | 4 Error: \\<b\\> |" in text
    assert "| no reason | c, d |" in text
    assert "| tests | a |" in text


def test_a_long_text_of_an_issue_is_cut() -> None:
    outcomes = tuple(outcome(f"a{number}", "differs", found="x" * 900) for number in range(99))
    text = issue_text(VerifyReport({"TPU": "v5e-8"}, outcomes), "report.json")
    assert 50_000 < len(text) < 60_000
    assert text.endswith("… The rest is in report.json.\n")
