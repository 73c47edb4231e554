"""`tpunb verify` with JAX: on a virtual TPU every claim holds, and a planted fault is found."""

from __future__ import annotations

import dataclasses
import functools
import signal
from collections.abc import Callable, Iterator
from typing import Any

import jax
import pytest
from unproven import PAGE, reports, section, with_section

from tpunb import framework
from tpunb.connection.options import Request
from tpunb.connection.plan import resolve
from tpunb.jax.verification import program_memory, step_times
from tpunb.jax.virtual.virtual_tpu import VirtualTpu
from tpunb.tpu.compiled_program import StepTime
from tpunb.tpu.families import HARDWARE
from tpunb.verification import run, verdicts
from tpunb.verification.report import VerifyReport

ON_HARDWARE = {
    "a virtual TPU has the type that was asked for",
    "a virtual TPU multiplies in float32: its numbers are the CPU's",
    "a virtual TPU has the speed of this machine's CPU",
}
WITHOUT_VERDICTS = ("JAX devices", "JAX arrays", "JAX precision", "JAX collectives", "JAX training")


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """Let the process receive interrupts, also as a script in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def verified(*groups: str, **options: Any) -> VerifyReport:
    """Return the report on the claims of some groups, or of all."""
    suites = [
        suite for suite in framework.of("jax").suites() if not groups or suite.group in groups
    ]
    return run.verify_plan(resolve(Request(framework="jax", **options)), suites=suites)


def named(report: VerifyReport) -> set[str]:
    return {outcome.name for outcome in report.differences}


@pytest.mark.usefixtures("libtpu")
def test_every_claim_holds() -> None:
    report = verified(simulate="v5e-8")
    assert report.ok, report
    names = {(outcome.group, outcome.name) for outcome in report.outcomes}
    assert len(names) == len(report.outcomes) > 100
    assert all(outcome.says.endswith(".") for outcome in report.outcomes)
    assert {outcome.found for outcome in report.not_run} == ON_HARDWARE
    assert report.facts["TPU"] == "virtual v5e-8"
    assert report.facts["devices"] == "8, as v5e-8"
    assert "libtpu " in report.facts["compiler"]


@pytest.mark.parametrize("tpu", ["v5e-1", "v3-8"])
def test_claims_without_verdicts_hold_on_other_types(tpu: str) -> None:
    report = verified(*WITHOUT_VERDICTS, simulate=tpu, judge="off")
    assert report.ok, report
    reasons = {outcome.found for outcome in report.not_run} - ON_HARDWARE
    alone = {"the claim needs 2 replicas, but this TPU has 1"} if tpu == "v5e-1" else set()
    assert reasons == alone


def test_claims_about_verdicts_are_not_run_without_a_compiler() -> None:
    report = verified("JAX refusals", simulate="v5e-1", judge="off")
    assert not report.differences
    reasons = {outcome.found for outcome in report.not_run}
    assert "Programs are not judged, because of --judge off." in reasons


def test_a_wrong_order_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    made = jax.make_mesh

    def backwards(sizes: Any, names: Any, **options: Any) -> Any:
        mesh = made(sizes, names, **options)
        return jax.sharding.Mesh(mesh.devices[::-1], names, axis_types=mesh.axis_types)

    monkeypatch.setattr(jax, "make_mesh", backwards)
    report = verified("JAX devices", simulate="v5e-8", judge="off")
    assert named(report) == {"mesh of one axis", "mesh of two axes"}


def test_memory_that_is_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = VirtualTpu._memory_stats

    def twice(self: Any, device: Any) -> dict[str, int]:
        stats = counted(self, device)
        return {**stats, "bytes_in_use": 2 * stats["bytes_in_use"]}

    monkeypatch.setattr(VirtualTpu, "_memory_stats", twice)
    report = verified("JAX arrays", simulate="v5e-4", judge="off")
    assert named(report) == {"an array", "a sharded array"}


@pytest.fixture
def local(connect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the devices of a virtual TPU stand for this machine's."""
    virtual = connect("v5e-4")
    monkeypatch.setattr("tpunb.connection.tpu_connection._opened", [])
    yield
    virtual.close()


def test_the_tpu_of_this_machine(local: None) -> None:
    report = verified("JAX devices", "JAX collectives", "JAX reconnecting", tpu="local")
    assert not report.differences, report
    assert [outcome.name for outcome in report.not_run] == ["type of the TPU"]
    assert report.facts["TPU"] == "hardware of this machine"
    assert report.facts["devices"] == "4, as v5e-4"


@pytest.mark.parametrize(("seconds", "holds"), [(0.0013, True), (0.0031, False), (0.0009, False)])
def test_measured_times(
    local: None, monkeypatch: pytest.MonkeyPatch, seconds: float, holds: bool
) -> None:
    """A time is compared with the range of its estimate, 1 to 3 ms here."""

    @dataclasses.dataclass
    class Estimated:
        time: StepTime = dataclasses.field(default_factory=lambda: StepTime(0.001, 0.003))

    small = {name: (lambda x: x.sum(0), (8, 8), "float32") for name in ("sum", "all-reduce")}
    monkeypatch.setattr(step_times.StepTimes, "programs", small)
    monkeypatch.setattr(step_times, "verdict_on", lambda *_, **__: Estimated())
    monkeypatch.setattr(step_times, "fastest", lambda *_: seconds)
    report = verified("JAX step times", tpu="local")
    assert {outcome.name for outcome in report.outcomes} == {"sum", "all-reduce"}
    assert (not report.differences) is holds
    assert report.outcomes[0].expected == "1 ms to 3 ms"


def test_a_loop_of_calls_is_timed() -> None:
    call = functools.partial(jax.jit(lambda x: x + 1), 1.0)
    assert 0 < verdicts.fastest(call, jax.block_until_ready, 20) < float("inf")


def test_the_memory_of_a_program_that_runs_here(
    local: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figures of the devices' own compiler are compared, here those of a CPU."""
    figures = program_memory.ProgramMemory

    @dataclasses.dataclass
    class Memory:
        arguments: int
        outputs: int
        peak: int = HARDWARE["v5e"].usable_bytes

    @dataclasses.dataclass
    class Judged:
        memory: Memory

    rows, columns = program_memory._ROWS, program_memory._COLUMNS
    memory = Memory(4 * rows * columns, 4 * rows * rows)
    monkeypatch.setattr(program_memory, "verdict_on", lambda *_, **__: Judged(memory))
    small = {"a product": figures.programs["a product"]}
    monkeypatch.setattr(figures, "programs", small)
    (outcome,) = verified(figures.group, tpu="local").outcomes
    sizes = [memory.arguments, memory.outputs]
    assert (outcome.status, outcome.message) == ("differs", "")
    assert outcome.expected == str([*sizes, memory.peak])
    assert outcome.found.startswith(str(sizes).removesuffix("]"))


def test_the_page_lists_the_claims_about_jax() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_section(page, "jax", section("jax", reports())) == page, (
        "cd tests && python -m unproven"
    )
