"""On a virtual TPU every claim holds, and a planted fault is found."""

from __future__ import annotations

import dataclasses
import re
import signal
import types
from collections.abc import Iterator
from typing import Any

import pytest
from support.tiers import THOROUGH, thorough

import tpunb
from tpunb import framework
from tpunb.compiler.ask import libtpu
from tpunb.connection.options import Request
from tpunb.connection.plan import resolve
from tpunb.errors import ConnectError
from tpunb.tensorflow.verification import step_times
from tpunb.tensorflow.virtual.replicate import writer
from tpunb.tensorflow.virtual.replicate.builder import Builder
from tpunb.tensorflow.virtual.strategy import VirtualTPUStrategy
from tpunb.tpu.compiled_program import StepTime
from tpunb.training.history import History
from tpunb.verification import run, suite
from tpunb.verification.report import DIED, VerifyReport
from tpunb.verification.verdicts import NO_SPEED, verdict_on

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def no_other_connections(tf: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ignore connections that other tests have left open."""
    monkeypatch.setattr(run, "open_connections", list)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def verified(*groups: str, **options: Any) -> VerifyReport:
    """Return the report on the claims of some groups, or of all."""
    suites = [
        suite
        for suite in framework.of("tensorflow").suites()
        if not groups or suite.group in groups
    ]
    return run.verify_plan(resolve(Request(**options)), suites=suites)


def named(report: VerifyReport) -> set[str]:
    return {outcome.name for outcome in report.differences}


@pytest.mark.parametrize("tpu", thorough(["v5e-1", "v4-16"]))
def test_every_claim_holds(tpu: str) -> None:
    report = verified(simulate=tpu)
    assert report.ok, report
    assert len(report.outcomes) == sum(
        len(suite.claims()) for suite in framework.of("tensorflow").suites()
    )
    assert len({(outcome.group, outcome.name) for outcome in report.outcomes}) == len(
        report.outcomes
    )
    assert all(
        outcome.says.endswith(".") or outcome.group == "known errors" for outcome in report.outcomes
    )
    skipped = {outcome.name: outcome.found for outcome in report.not_run}
    assert "unchecked" in skipped
    assert {skipped.pop("products"), skipped.pop("convolutions")} == {NO_SPEED}
    for name in ("order of hosts", "order of batches", "unchecked"):
        skipped.pop(name, None)
    one_replica = {"the claim needs 2 replicas, but this TPU has 1"} if tpu == "v5e-1" else set()
    assert set(skipped.values()) == one_replica
    assert report.facts["TPU"] == f"virtual {tpu}"
    assert "/" not in "".join(report.facts.values())


@THOROUGH
def test_a_broken_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    add = Builder.add

    def broken(self: Any, op: str, name: str, device: str, inputs: Any, **attributes: Any) -> str:
        """In sums, count the first replica twice and omit the second."""
        inputs = [inputs[0], inputs[0], *inputs[2:]] if op == "AddN" else inputs
        return str(add(self, op, name, device, inputs, **attributes))

    monkeypatch.setattr(Builder, "add", broken)
    group = "collectives inside a replica function"
    report = verified(group, "collectives outside", simulate=4)
    assert {"all reduce SUM", "all reduce MEAN", "all reduce in a loop"} <= named(report)
    assert not {"permute", "all to all", "reduce SUM", "gather"} & named(report)
    [wrong] = [outcome for outcome in report.differences if outcome.name == "all reduce SUM"]
    assert wrong.expected == "10 10 10 10" != wrong.found
    assert "all reduce SUM" in str(report).partition("Held")[0]


def test_a_broken_permutation(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = writer.source_target_pairs
    turned = lambda *a: [(target, source) for source, target in pairs(*a)]  # noqa: E731
    monkeypatch.setattr(writer, "source_target_pairs", turned)
    report = verified("collectives inside a replica function", simulate=4)
    assert named(report) == {"permute", "permute to some"}


def test_a_broken_reduction(monkeypatch: pytest.MonkeyPatch) -> None:
    reduce = VirtualTPUStrategy.reduce

    def doubled(self: Any, *args: Any, **options: Any) -> Any:
        return reduce(self, *args, **options) * 2.0

    monkeypatch.setattr(VirtualTPUStrategy, "reduce", doubled)
    report = verified("collectives outside", simulate=2)
    assert named(report) == {
        "reduce SUM",
        "reduce MEAN",
        "reduce along axis 0",
        "reduce in a function",
    }


def test_broken_rules() -> None:
    off = {"x64-op": False, "float64": False, "gather-shapes": False, "seed": False}
    report = verified("rules", simulate=2, strict=off)
    assert named(report) == set(off)
    [passed] = [outcome for outcome in report.differences if outcome.name == "x64-op"]
    assert (passed.expected, passed.found) == ("refused, known error 25", "runs and returns 5 5")


def test_an_unknown_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "explain", lambda _: None)
    report = verified("known errors", simulate=2)
    assert len(report.differences) == len(report.outcomes)
    assert {outcome.found for outcome in report.differences} == {"refused, by an unknown error"}


@THOROUGH
def test_a_curve_without_its_first_point(monkeypatch: pytest.MonkeyPatch) -> None:
    values = History.values
    monkeypatch.setattr(History, "values", lambda self, name: values(self, name)[1:])
    assert named(verified("training", simulate=2)) == {"curves"}


def test_a_tpu_that_cannot_be_reconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    make, connections = run.make_connection, []

    def once(*args: Any) -> Any:
        if connections:
            raise ConnectError("The TPU at 10.0.0.1:8470 is gone.")
        connections.append(make(*args))
        return connections[0]

    monkeypatch.setattr(run, "make_connection", once)
    report = verified("topology", "reconnecting", simulate=2)
    assert named(report) == {"connected again"}
    assert report.differences[0].message == "ConnectError: The TPU at <address> is gone."
    skipped = {
        outcome.name: outcome.found for outcome in report.not_run if outcome.group == "reconnecting"
    }
    assert skipped == dict.fromkeys(("running again", "closed"), "connecting again has failed")


def test_claims_of_interrupts_are_skipped_on_another_thread() -> None:
    from tpunb._util.deadline import Running

    report = Running(lambda: verified("interrupting", simulate=2)).result(float("inf"))
    assert {outcome.status for outcome in report.outcomes} == {"not run"}
    assert not report.ok


def test_claims_of_interrupts_are_skipped_if_interrupts_are_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # like a script in the background
    report = verified("interrupting", simulate=2)
    assert {outcome.status for outcome in report.outcomes} == {"not run"}


@pytest.mark.parametrize(("high", "holds"), [(1e6, True), (1e-9, False)])
def test_measured_times(monkeypatch: pytest.MonkeyPatch, high: float, holds: bool) -> None:
    """The time of a step is measured, and compared with the range of its estimate."""
    monkeypatch.setattr(suite.Suite, "is_virtual", False)
    monkeypatch.setattr(
        step_times.StepTimes, "programs", {"products": (step_times.products, (8, 8))}
    )
    found = types.SimpleNamespace(slice=types.SimpleNamespace(accelerator_type="v5e-2"))
    monkeypatch.setattr(step_times, "find_tpu", lambda: found)
    estimated = types.SimpleNamespace(time=StepTime(1e-10, high))
    monkeypatch.setattr(step_times, "verdict_on", lambda *_, **__: estimated)
    (outcome,) = verified("step times", simulate=2).outcomes
    assert (outcome.status == "holds") is holds, outcome
    assert re.fullmatch(r"[\d.]+ [mµ]?s, .* times the middle", outcome.found)


@THOROUGH
def test_programs_to_measure_have_an_estimate() -> None:
    if missing := libtpu.why_unavailable():
        pytest.skip(str(missing))
    for function, shape in step_times.StepTimes.programs.values():
        argument = step_times.tf.TensorSpec(shape, step_times.tf.bfloat16)
        program = verdict_on(function, argument, tpu="v5e-8", speed=True)
        assert program.time is not None
        assert program.time.low > 5 * program.time.start


def test_an_open_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    with tpunb.connect(simulate=2) as connection:
        monkeypatch.setattr(run, "open_connections", lambda: [connection])
        with pytest.raises(ConnectError, match="A connection to a TPU is open"):
            tpunb.verify(simulate=2)


def test_a_tpu_that_cannot_be_used_is_not_replaced_by_a_virtual_one() -> None:
    plan = dataclasses.replace(resolve(Request("local")), fallback=True)
    with pytest.raises(ConnectError):
        run.verify_plan(plan)


def test_an_interrupt_between_two_claims_keeps_the_report() -> None:
    reports: list[VerifyReport] = []

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    plan = resolve(Request(simulate=2))
    report = run.verify_plan(plan, progress=stop, so_far=reports.append)
    assert (report.interrupted, len(report.outcomes)) == (True, 1)
    assert reports[-1] == report
    assert [each.found for each in reports[0].outcomes] == [DIED]
