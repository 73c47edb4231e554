"""Claims are tried one after the other, and reports say what came out, and not where."""

from __future__ import annotations

import getpass
import json
import socket
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tpunb.verification.claims import Claim
from tpunb.verification.observation import NotRunError, Observation
from tpunb.verification.observing import close, equal, refused, runs
from tpunb.verification.report import DIFFERS, HOLDS, NOT_RUN, Outcome, VerifyReport
from tpunb.verification.scrubber import Scrubber
from tpunb.verification.trial import Trial

BENCH: Any = None
"""Claims here look at no TPU."""


def claim(name: str, observe: Callable[[], Observation], *, main: bool = False) -> Claim:
    return Claim("tests", name, "it is so", lambda _: observe(), main)


def holding() -> Observation:
    return equal(1, 1)


def raising(error: BaseException) -> Callable[[], Observation]:
    def observe() -> Observation:
        raise error

    return observe


def tried(*claims: Claim, limit: float = 600) -> tuple[Trial, dict[str, str]]:
    trial = Trial(BENCH, claims, limit)
    return trial, {outcome.name: outcome.status for outcome in trial.outcomes()}


def test_what_raises_does_not_end_the_others() -> None:
    trial = Trial(
        BENCH,
        (
            claim("bug", raising(ZeroDivisionError("so"))),
            claim("late", raising(TimeoutError("its own"))),
            claim("wrong", lambda: equal(1, 2)),
            claim("none", raising(NotRunError("no reason"))),
            claim("right", holding),
        ),
        600,
    )
    bug, late, wrong, none, right = trial.outcomes()
    assert (bug.status, bug.message) == (DIFFERS, "ZeroDivisionError: so")
    assert (late.status, late.message) == (DIFFERS, "RuntimeError: TimeoutError: its own")
    assert (wrong.status, wrong.expected, wrong.found) == (DIFFERS, "1", "2")
    assert (none.status, none.found) == (NOT_RUN, "no reason")
    assert right.status == HOLDS
    assert not trial.hangs


def test_what_does_not_end() -> None:
    go_on = threading.Event()

    def waiting() -> Observation:
        go_on.wait()
        return holding()

    try:
        trial, statuses = tried(claim("hangs", waiting), claim("next", holding), limit=0.1)
    finally:
        go_on.set()
    assert trial.hangs
    assert statuses == {"hangs": DIFFERS, "next": NOT_RUN}


def test_an_interrupt() -> None:
    stop = claim("stop", raising(KeyboardInterrupt()), main=True)
    trial, statuses = tried(claim("first", holding), stop, claim("next", holding))
    assert trial.interrupted
    assert statuses == {"first": HOLDS, "stop": NOT_RUN, "next": NOT_RUN}


@pytest.mark.parametrize(
    ("seen", "holds"),
    [
        (close([1.0, 2.0], [1.0, 2.0]), True),
        (close([1.0, 2.0], [1.0, 2.00001]), False),
        (close([1.0, 200.0], [1.0, 200.001], 1e-5), True),
        (close([1.0, 200.0], [1.0, 200.003], 1e-5), False),
        (close([1.0], [float("nan")], 1.0), False),
        (close([1.0], [float("nan")]), False),
        (close([1.0, 1.0], 1.0, 1.0), False),
        (close(np.int32(3), 3), True),
        (equal([1], [1]), True),
        (equal([1], [2]), False),
        (runs(lambda: 2.0, 2.0), True),
        (runs(lambda: 3.0, 2.0), False),
        (runs(lambda: 1 / 0, 2.0), False),
        (refused(lambda: 1 / 0), True),
        (refused(lambda: 1), False),
        (refused(lambda: 1 / 0, "32"), False),
    ],
)
def test_comparing(seen: Observation, holds: bool) -> None:
    assert seen.holds is holds


def test_a_refusal_has_its_message_and_number() -> None:
    def call() -> None:
        raise RuntimeError(
            'in user code:\n\n    File "/a/b.py", line 3, in step  *\n        x = 1\n\n'
            "    RuntimeError: TPU is already in use by process with pid 12"
        )

    seen = refused(call, "9")
    assert (seen.holds, seen.found) == (True, "refused, known error 9")
    assert seen.message == "RuntimeError: TPU is already in use by process with pid 12"


def test_what_cannot_be_tried_is_no_refusal() -> None:
    with pytest.raises(NotRunError):
        refused(raising(NotRunError("no")))
    with pytest.raises(NotRunError):
        runs(raising(NotRunError("no")), 1.0)


def outcome(name: str, status: Any, **more: Any) -> Outcome:
    return Outcome("tests", name, "it is so", status, **more)


def test_a_report() -> None:
    held = outcome("a", HOLDS, expected="1", found="1", seconds=61.0)
    wrong = outcome("b", DIFFERS, expected="3", found="4", message="Error:\n  \x1b[31mred")
    left = outcome("c", NOT_RUN, found="no reason")
    report = VerifyReport({"TPU": "virtual v3-8"}, (held, wrong, left))
    assert not report.ok
    assert report.headline == "TPU verification: 1 claim held, 1 differed, 1 not run"
    assert (report.differences, report.not_run) == ((wrong,), (left,))
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
    assert [one["status"] for one in read["claims"]] == [HOLDS, DIFFERS, NOT_RUN]
    assert read["facts"] == {"TPU": "virtual v3-8"}


@pytest.mark.parametrize(
    ("outcomes", "interrupted", "ok"),
    [
        ((outcome("a", HOLDS), outcome("b", NOT_RUN)), False, True),
        ((outcome("a", HOLDS),), True, False),
        ((outcome("a", HOLDS), outcome("b", DIFFERS)), False, False),
        ((outcome("b", NOT_RUN),), False, False),
        ((), False, False),
    ],
)
def test_what_was_not_run_has_not_passed(outcomes: Any, interrupted: bool, ok: bool) -> None:
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
def test_a_text_says_not_where_it_was_made(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "hunter2-hunter2")
    monkeypatch.setattr(getpass, "getuser", lambda: "lovelace")
    monkeypatch.setattr(socket, "gethostname", lambda: "vm")
    scrub = Scrubber(["my-tpu", "europe-west4-a", None, ""])
    for text in (f"cannot reach {secret} now", f"at '{secret}'", f'File "{secret}", line 3'):
        left = scrub(text)
        assert secret not in left
        assert not {"ada", "mine", "8470", "project"} & set(left.replace("<", " ").split())


@pytest.mark.parametrize(
    "text",
    [
        "NotConnectedError: This connection is closed.",
        "InvalidArgumentError: No registered 'LookupTableFindV2' OpKernel for XLA_TPU_JIT devices",
        "from device /job:worker/replica:0/task:0/device:CPU:1",
        "in device /job:localhost/replica:0/task:0/device:TPU:3",
        "See https://www.tensorflow.org/guide/function for more information.",
        "{{node boolean_mask/Where}} of float32[524288, 524288], 3.5e-05 of 1/2",
        "std::string in tensorflow::Status",
        "[2, 2, 1, 2]; largest difference 1.2e-07, allowed 1e-05",
    ],
)
def test_a_text_keeps_what_a_report_is_about(text: str) -> None:
    assert Scrubber()(text) == text


def test_keys_are_hidden_beside_names_of_errors() -> None:
    left = Scrubber()("NotConnectedError: token=AbcdefghijklmnopQrst key aB3dE5gH7jK9mN1pQ3")
    assert left == "NotConnectedError: token=*** key ***"


def test_a_long_text_keeps_its_start_and_its_end() -> None:
    left = Scrubber()("start " + "of many words " * 999 + "end")
    assert len(left) < 700
    assert left.startswith("start")
    assert left.endswith("end")


def test_an_outcome_is_scrubbed() -> None:
    shown = outcome("a", DIFFERS, expected="/x/y", found="10.0.0.1", message="/x/y/z")
    shown = shown.scrubbed(Scrubber())
    assert (shown.expected, shown.found, shown.message) == ("<path>", "<address>", "<path>")
