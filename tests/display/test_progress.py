"""The progress lines of runs and of connecting: while they are live, and what remains."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tpunb.display import live_progress as progress
from tpunb.display.live_progress import ConnectDisplay, RunDisplay
from tpunb.display.widgets import frontend
from tpunb.training.history import History


class Clock:
    """A stand-in for the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake_clock = Clock()
    monkeypatch.setattr(progress, "time", fake_clock)
    return fake_clock


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict[str, Any], bool]]:
    """Record the displayed forms, and whether they replace earlier forms."""
    forms: list[tuple[dict[str, Any], bool]] = []

    def publish(data: Any, metadata: Any, *, display_id: str, update: bool) -> None:
        forms.append((data, update))

    monkeypatch.setattr(frontend, "publish", publish)
    return forms


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(frontend.VARIABLE, "always")


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(frontend.VARIABLE, "never")


def tickers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "tpunb-progress"]


def test_the_progress_line_of_a_run(clock: Clock, saved: None) -> None:
    run = RunDisplay(None, 20_000)
    assert run._progress() == "step 0 of 20,000"
    run.tracing("loop")
    clock.now = 3.4
    assert run._progress() == "step 0 of 20,000 · compiling the loop, 3 s"
    clock.now = 130
    assert run._progress() == "step 0 of 20,000 · compiling the loop, 2 min"
    run.set_steps(1, 64)
    run.set_steps(1001, 64)
    clock.now = 140
    assert run._progress() == ("step 1001 of 20,000 · 100 steps/s · 6400 examples/s · 3 min left")
    run.set_steps(19_001, 64)
    assert run._progress().endswith("1900 steps/s · 122,000 examples/s · 1 s left")
    run.set_steps(20_000, 64)
    assert run._progress().endswith("0 s left")


def test_a_slow_run_without_an_end(clock: Clock, saved: None) -> None:
    run = RunDisplay(None, None, begin=5)
    clock.now = 10
    run.set_steps(7, None)
    assert run._progress() == "step 7 · 0.2 steps/s"


def test_a_saved_run_leaves_a_line(saved: None, published: Any) -> None:
    with RunDisplay(None, 3) as run:
        run.set_steps(1, None)
        assert not tickers()
    assert published == [({"text/plain": "1 step"}, False)]


def test_a_live_line_is_replaced_by_plain_text(live: None, published: Any) -> None:
    with RunDisplay(None, 3) as run:
        assert len(tickers()) == 1
        run.set_steps(3, None)
    assert not tickers()
    (first, is_update), (last, was_update) = published[0], published[-1]
    assert set(first) == {"text/plain", "text/html"}
    assert (is_update, was_update) == (False, True)
    assert last == {"text/plain": "3 steps"}


def test_curves_of_a_saved_run_are_shown_once(saved: None, published: Any) -> None:
    history = History()
    history.append(1, loss=1.0)
    with pytest.raises(ZeroDivisionError), RunDisplay(history, 3):
        raise ZeroDivisionError
    assert history.state == "stopped"
    assert [set(data) for data, _ in published] == [{"text/plain", "image/png"}, {"text/plain"}]
    with RunDisplay(History(), 3):
        pass
    assert published[2:] == [({"text/plain": "0 steps"}, False)]


def test_a_run_that_fails_at_once_leaves_nothing(live: None, published: Any) -> None:
    with pytest.raises(ZeroDivisionError), RunDisplay(None, 3):
        raise ZeroDivisionError
    assert published[-1] == ({}, True)
    assert not tickers()


def test_removed_progress_leaves_nothing_in_the_file(
    live: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an empty output would show in the notebook that a cell was slow."""
    shown: list[tuple[Any, Any]] = []
    monkeypatch.setattr(frontend, "can_pass", lambda: True)
    monkeypatch.setattr(
        frontend, "publish", lambda data, metadata, **_: shown.append((data, metadata))
    )
    with pytest.raises(RuntimeError), RunDisplay(History("run"), 5):
        raise RuntimeError
    assert [metadata for data, metadata in shown if not data] == [frontend.passing("")] * 2


def test_a_saved_run_that_fails_at_once_leaves_nothing(saved: None, published: Any) -> None:
    with pytest.raises(ZeroDivisionError), RunDisplay(History(), 3):
        raise ZeroDivisionError
    assert published == []


def test_connecting(clock: Clock, live: None, published: Any) -> None:
    with ConnectDisplay() as display:
        assert not tickers()
        display.say("asking <4> workers")
        clock.now = 65
        assert display._progress() == "asking <4> workers, 65 s"
        display.say("initialising")
        assert display._progress() == "initialising"
    assert not tickers()
    assert "asking &lt;4&gt; workers" in published[0][0]["text/html"]
    assert published[-1] == ({"text/plain": "Connected."}, True)


def test_connecting_at_once_shows_nothing(live: None, published: Any) -> None:
    with ConnectDisplay():
        pass
    assert published == []


def test_a_connection_that_fails(saved: None, published: Any) -> None:
    display = ConnectDisplay()
    display.say("initialising")
    with pytest.raises(ZeroDivisionError), display:
        raise ZeroDivisionError
    assert published == [({"text/plain": "Not connected."}, False)]
