"""`tpunb.track`: a loop of the user's own, with curves and a stop button."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

import tpunb


class Late:
    """A value that a device has not computed yet."""

    def __init__(self, number: float) -> None:
        self.number, self.is_there, self.reads = number, False, 0

    def is_ready(self) -> bool:
        return self.is_there

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self.reads += 1
        return np.asarray(self.number, dtype)


def test_values_and_steps(capsys: pytest.CaptureFixture[str]) -> None:
    run = tpunb.track([1, 2, 3], plot=["loss"], name="first")
    assert len(run) == 3
    for batch in run:
        run.log(loss=1.0 / batch, rate=np.float32(0.5))
        run.log(accuracy=np.array([0.25 * batch]))
    assert run.done == 3
    assert not run.stopped
    assert run.history.columns("loss")[1].tolist() == [1, 2, 3]
    assert run.history.columns("loss")[2].tolist() == [1.0, 0.5, 1 / 3]
    assert run.history.last == {"loss": 1 / 3, "rate": 0.5, "accuracy": 0.75}
    assert run.history.state == "finished"
    assert tpunb.history is run.history
    assert "3 steps" in capsys.readouterr().out


def test_no_step_waits_for_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpunb.display.tracked_loop._FLUSH", 0.0)
    values = [Late(float(number)) for number in range(5)]
    run = tpunb.track(values)
    for number, value in enumerate(run):
        run.log(loss=value)
        assert not any(each.reads for each in values[max(0, number - 1) :])
        if number:
            values[number - 1].is_there = True
    assert run.history.columns("loss")[2].tolist() == [0, 1, 2, 3, 4]


def test_not_too_many_values_stay_on_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpunb.display.tracked_loop._FLUSH", 0.0)
    monkeypatch.setattr("tpunb.display.tracked_loop._MOST_PENDING", 3)
    values = [Late(1.0) for _ in range(10)]
    run = tpunb.track(values)
    for value in run:
        run.log(loss=value)
    assert sum(each.reads > 0 for each in values) == 10
    assert len(run._pending) == 0


def test_the_stop_button_keeps_what_is_done() -> None:
    run = tpunb.track(range(10))
    seen = []
    for number in run:
        if number == 3:
            os.kill(os.getpid(), signal.SIGINT)
        seen.append(number)
        run.log(loss=float(number))
    assert run.stopped
    assert run.done == 4
    assert run.history.state == "stopped"
    for number in run:  # it continues
        seen.append(number)
        run.log(loss=float(number))
    assert seen == list(range(10))
    assert not run.stopped
    assert run.history.columns("loss")[1].tolist() == list(range(1, 11))


def test_a_second_press_interrupts() -> None:
    def press_twice() -> None:
        for _ in tpunb.track(range(10)):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        press_twice()


@pytest.mark.parametrize("end", ["break", "error"])
def test_the_button_is_released(end: str) -> None:
    former = signal.getsignal(signal.SIGINT)
    run = tpunb.track(range(10))
    try:
        for number in run:
            run.log(loss=1.0)
            if number == 2:
                if end == "break":
                    break
                raise RuntimeError
    except RuntimeError:
        pass
    assert signal.getsignal(signal.SIGINT) is former
    assert run.history.columns("loss")[1].tolist() == [1, 2, 3]


def test_data_of_unknown_size() -> None:
    run = tpunb.track(iter(range(3)))
    with pytest.raises(TypeError, match="not known"):
        len(run)
    assert list(run) == [0, 1, 2]
    assert len(tpunb.track(iter(range(3)), total=3)) == 3


def test_nothing_is_drawn_without_values(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in tpunb.track(range(3)):
        pass
    assert "curves" not in capsys.readouterr().out


def test_the_stop_button_ends_the_loops_around_it() -> None:
    epochs = tpunb.track(range(3))
    seen = []
    for epoch in epochs:
        for number in tpunb.track(range(3)):
            seen.append((epoch, number))
            if len(seen) == 5:
                os.kill(os.getpid(), signal.SIGINT)
    assert seen[-1] == (1, 1)
    assert epochs.stopped
    assert epochs.done == 2


def test_a_logged_array_that_is_donated() -> None:
    class Array:
        def is_deleted(self) -> bool:
            return True

        def is_ready(self) -> bool:
            raise RuntimeError("Array has been deleted")

    run = tpunb.track(range(3))
    with pytest.raises(tpunb.TpunbError, match=r"`state` was logged, and then donated"):
        run.log(state=Array())
