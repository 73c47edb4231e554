"""Results of Keras's `fit` as histories."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tpunb.training.fit_history import history_of_fit, is_fit_history
from tpunb.training.history import History

pytestmark = pytest.mark.oldest


def record(lists: dict[str, list[Any]], numbers: list[int], **params: Any) -> Any:
    return SimpleNamespace(history=lists, epoch=numbers, params=params)


def test_values_are_at_the_last_step_of_their_epoch() -> None:
    lists = {"loss": [3.0, 2.0, 1.0, 0.5], "val_loss": [2.5, 1.5]}
    history = history_of_fit(record(lists, [0, 1, 2, 3], steps=10, epochs=4))
    assert history.steps("loss").tolist() == [10, 20, 30, 40]
    assert history.steps("val_loss").tolist() == [20, 40]  # validation_freq=2
    assert history.values("val_loss").tolist() == [2.5, 1.5]
    assert (history.state, history.total_steps, history.notes) == ("finished", 40, {})


def test_continued_runs_and_early_ends() -> None:
    continued = history_of_fit(record({"loss": [2, 1]}, [3, 4], steps=10, epochs=5))
    assert continued.steps("loss").tolist() == [40, 50]
    assert continued.state == "finished"
    assert history_of_fit(record({"loss": [2]}, [0], steps=10, epochs=5)).state == "stopped"


def test_an_unknown_number_of_batches() -> None:
    history = history_of_fit(record({"loss": [2, 1]}, [0, 1], steps=None, epochs=2))
    assert history.steps("loss").tolist() == [1, 2]
    assert "epochs" in history.notes["epochs"]


def test_values_that_are_not_numbers_are_omitted() -> None:
    lists = {"loss": [2, 1], "odd": ["a", "b"], "more": [1, 2, 3], "none": []}
    history = history_of_fit(record(lists, [0, 1], steps=1, epochs=2))
    assert history.metrics == ["loss"]
    assert history_of_fit(record({}, [], steps=None, epochs=None)).metrics == []


@pytest.mark.parametrize("other", [History(), {}, {"history": {}}, 3, None, SimpleNamespace()])
def test_other_values(other: Any) -> None:
    assert not is_fit_history(other)
