"""Claims are compared and tried one after another; a failed claim does not stop the others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tpunb.verification.report import scrubber
from tpunb.verification.run import Trial
from tpunb.verification.suite import NotRunError, Outcome, Suite, close, equal, refused

GO_ON = threading.Event()


def raising(error: BaseException) -> Callable[..., Any]:
    def attempt(*_: Any) -> Any:
        raise error

    return attempt


def suite(on_main_thread: bool = False, **programs: Callable[..., Outcome]) -> type[Suite]:
    return type("Fake", (Suite,), {"group": "tests", "on_main_thread": on_main_thread, **programs})


def holding(_: Suite) -> Outcome:
    """It is
    so."""
    return equal(1, 1)


def waiting(_: Suite) -> Outcome:
    GO_ON.wait()
    return equal(1, 1)


def tried(*suites: type[Suite], limit: float = 600) -> tuple[Trial, list[Outcome]]:
    """Try suites whose programs do not use the TPU."""
    trial = Trial(SimpleNamespace(), scrubber(), limit)  # type: ignore[arg-type]
    return trial, [trial.outcome(suite, claim) for suite, claim in trial.claims(suites)]


def test_an_error_does_not_stop_the_other_claims() -> None:
    trial, (bug, late, wrong, none, right) = tried(
        suite(
            bug=raising(ZeroDivisionError("at 10.0.0.1")),
            late=raising(TimeoutError("its own")),
            wrong=lambda _: equal(1, "/x/y"),
            none=raising(NotRunError("no reason")),
            all_right=holding,
            _helper=raising(AssertionError()),
        )
    )
    assert (bug.status, bug.message) == ("differs", "ZeroDivisionError: at <address>")
    assert (late.status, late.message) == ("differs", "RuntimeError: TimeoutError: its own")
    assert (wrong.status, wrong.expected, wrong.found) == ("differs", "1", "<path>")
    assert (none.status, none.found) == ("not run", "no reason")
    assert (right.group, right.name, right.says) == ("tests", "all right", "It is so.")
    assert right.status == "holds"
    assert not trial.hangs


def test_an_endless_claim() -> None:
    try:
        trial, (hung, following) = tried(suite(hangs=waiting, next=holding), limit=0.1)
    finally:
        GO_ON.set()
    assert trial.hangs
    assert (hung.status, hung.found) == ("differs", "it did not end within 100 ms")
    assert (following.status, following.found) == ("not run", "an earlier claim did not end")


def test_an_interrupt() -> None:
    stopped = suite(True, stop=raising(KeyboardInterrupt()), next=holding)
    trial, outcomes = tried(suite(first=holding), stopped, suite(last=holding))
    assert trial.interrupted
    assert [outcome.status for outcome in outcomes] == ["holds", "not run", "not run", "not run"]


@pytest.mark.parametrize(
    ("outcome", "holds"),
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
        (refused(lambda: 1 / 0), True),
        (refused(lambda: 1), False),
        (refused(lambda: 1 / 0, "32"), False),
    ],
)
def test_comparing(outcome: Outcome, holds: bool) -> None:
    assert outcome.status == ("holds" if holds else "differs")


def test_a_refusal_has_its_message_and_number() -> None:
    def call() -> None:
        raise RuntimeError(
            'in user code:\n\n    File "/a/b.py", line 3, in step  *\n        x = 1\n\n'
            "    RuntimeError: TPU is already in use by process with pid 12"
        )

    refusal = refused(call, "9")
    assert (refusal.status, refusal.found) == ("holds", "refused, known error 9")
    assert refusal.message == "RuntimeError: TPU is already in use by process with pid 12"


def test_a_failed_attempt_is_not_a_refusal() -> None:
    with pytest.raises(NotRunError):
        refused(raising(NotRunError("no")))
