"""The record of a run's settings."""

from __future__ import annotations

import dataclasses
import inspect

import numpy as np
import pytest

from tpunb.cells.settings import RunSettings
from tpunb.tensorflow.connection.connection import Connection


def test_lists_and_none_become_tuples_and_dicts() -> None:
    settings = RunSettings(names=["x", "y"], plot=["loss"], reduce=None, gather={})
    expected = RunSettings(names=("x", "y"), plot=("loss",), reduce={}, gather=None)
    assert settings == expected
    assert settings.outputs == expected.outputs
    assert hash(settings.outputs) == hash(expected.outputs)


X, Y = np.zeros(3), np.zeros(3)


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        ({"data": X}, {"data": X}, True),
        ({"data": X}, {"data": Y}, False),  # equal arrays, but different objects
        ({"data": (X, Y)}, {"data": (X, Y)}, True),
        ({"data": (X, Y)}, {"data": (Y, X)}, False),
        ({"data": (X,)}, {"data": (X, Y)}, False),
        ({"steps": 3}, {"steps": 4}, False),
        ({"reduce": {"loss": "mean"}}, {"reduce": {"loss": "sum"}}, False),
        ({"plot": ["a"]}, {"plot": ("a",)}, True),
    ],
)
def test_the_same_settings(left: dict[str, object], right: dict[str, object], equal: bool) -> None:
    assert RunSettings(**left).is_same(RunSettings(**right)) is equal  # type: ignore[arg-type]


def test_connections_take_the_same_settings() -> None:
    """They take all settings, except for a cell's names and the magic's `timed`."""
    parameters = set(inspect.signature(Connection.run).parameters) - {"self", "fn"}
    assert parameters == {field.name for field in dataclasses.fields(RunSettings)} - {
        "names",
        "timed",
    }
