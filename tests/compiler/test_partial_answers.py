"""Several TPU types: finished verdicts are shown at once, and an interrupt keeps them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tpunb.compiler.ask.partial_answers import (
    CompilationStopped,
    for_each_type,
    is_watched,
    watching,
)
from tpunb.compiler.ask.topologies import Target, target
from tpunb.compiler.ask.verdict import reporting
from tpunb.compiler.program import TpuProgram
from tpunb.display import live_progress
from tpunb.display.live_progress import CompilationDisplay
from tpunb.display.widgets import frontend

KINDS = [target(name, None) for name in ("v3-8", "v5e-8", "v6e-8")]


def program(kind: Target) -> TpuProgram:
    return TpuProgram(kind.tpu.name, kind.replicas)


def unchanged(_: Target, program: TpuProgram) -> TpuProgram:
    return program


def stopping_at(name: str, then: Callable[[Target], Any] = program) -> Callable[..., Any]:
    def compiled(kind: Target, *known: TpuProgram) -> Any:
        if kind.tpu.name == name:
            raise KeyboardInterrupt
        return known[0] if known else then(kind)

    return compiled


def test_finished_and_remaining_types_are_reported_in_order() -> None:
    reports: list[tuple[list[str], list[str]]] = []
    with watching(
        lambda known, left: reports.append(([program.tpu for program in known], list(left)))
    ):
        programs = for_each_type(KINDS, program, unchanged)
    assert [program.tpu for program in programs] == ["v3-8", "v5e-8", "v6e-8"]
    assert reports[:3] == [
        ([], ["v3-8", "v5e-8", "v6e-8"]),
        (["v3-8"], ["v5e-8", "v6e-8"]),
        (["v3-8", "v5e-8"], ["v6e-8"]),
    ]
    assert reports[3:] == [(["v3-8", "v5e-8", "v6e-8"], [])] * 3
    assert not is_watched()


@pytest.mark.parametrize(
    ("stopped_at", "known", "message"),
    [
        ("v5e-8", ["v3-8"], "for v5e-8. v3-8 is known, v5e-8 and v6e-8 are not."),
        ("v6e-8", ["v3-8", "v5e-8"], "for v6e-8. v3-8 and v5e-8 are known, v6e-8 is not."),
    ],
)
def test_an_interrupt_keeps_the_finished_types(
    stopped_at: str, known: Sequence[str], message: str
) -> None:
    with pytest.raises(CompilationStopped) as stopped:
        for_each_type(KINDS, stopping_at(stopped_at), unchanged)
    assert [program.tpu for program in stopped.value.programs] == known
    assert message in str(stopped.value)
    assert isinstance(stopped.value, KeyboardInterrupt)


def test_an_interrupt_while_suggesting_a_batch_keeps_all_verdicts() -> None:
    with pytest.raises(
        CompilationStopped, match="looking for a batch or a type that fits"
    ) as stopped:
        for_each_type(KINDS, program, stopping_at("v3-8"))
    assert len(stopped.value.programs) == 3


def test_an_interrupt_before_the_first_verdict_is_an_ordinary_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt) as stopped:
        for_each_type(KINDS, stopping_at("v3-8"), unchanged)
    assert not isinstance(stopped.value, CompilationStopped)


def test_kept_programs_are_in_the_users_terms() -> None:
    def in_users_terms(program: TpuProgram) -> TpuProgram:
        return TpuProgram(program.tpu, program.replicas, notes=("of the cell",))

    with pytest.raises(CompilationStopped) as stopped:
        for_each_type(KINDS, stopping_at("v5e-8"), unchanged, in_users_terms)
    assert stopped.value.programs[0].notes == ("of the cell",)


def test_a_callers_progress_reports_each_finished_type() -> None:
    messages: list[str] = []
    with reporting(messages.append) as say:
        say("tracing")
        for_each_type(KINDS, program, unchanged)
    assert messages == [
        "tracing",
        "v3-8: compiles. Left: v5e-8, v6e-8.",
        "v5e-8: compiles. Left: v6e-8.",
    ]


def test_watching_continues_while_progress_is_reported() -> None:
    reports: list[int] = []
    with watching(lambda known, left: reports.append(len(known))), reporting(lambda text: None):
        for_each_type(KINDS, program, unchanged)
    assert max(reports) == 3


class Published:
    """Record what a front end with widgets publishes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.forms: list[dict[str, Any]] = []
        monkeypatch.setattr(frontend, "shows_widgets", lambda: True)
        monkeypatch.setattr(frontend, "execution", lambda: 3)
        monkeypatch.setattr(
            frontend, "publish", lambda data, metadata, **names: self.forms.append(data)
        )
        monkeypatch.setattr(live_progress, "_SLOW", 0.0)


def test_a_notebook_shows_the_finished_types(monkeypatch: pytest.MonkeyPatch) -> None:
    published = Published(monkeypatch)
    display = CompilationDisplay(lambda: "compiling for v6e-8")
    display._line._interval = 0.01
    display.known([program(kind) for kind in KINDS[:1]], ["v5e-8", "v6e-8"])
    with display:
        while not published.forms:
            pass
        display.known([program(kind) for kind in KINDS[:2]], ["v6e-8"])
        count = len(published.forms)
        while len(published.forms) < count + 2:
            pass
    first, last = published.forms[0], published.forms[-2]
    assert "compiling for v6e-8, 0 s · then v6e-8\nv3-8: compiles." in first["text/plain"]
    assert "<table" in first["text/html"]
    assert last["text/plain"].count("yes") == 2
    assert last["text/html"].count("yes") == 2
    assert "then" not in last["text/plain"]
    assert published.forms[-1] == {}  # the display is removed


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_shows_a_line_for_each_type(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live_progress, "_SLOW", 0.0)
    monkeypatch.setattr(frontend, "in_terminal", lambda: terminal)
    with CompilationDisplay(lambda: "compiling") as display, watching(display.known):
        for_each_type(KINDS, program, unchanged)
    output = capsys.readouterr()
    lines = ["v3-8: compiles. Left: v5e-8, v6e-8.", "v5e-8: compiles. Left: v6e-8."]
    assert output.err.splitlines() == (lines if terminal else [])
    assert output.out == ""
