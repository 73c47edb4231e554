"""The one record of a run's settings."""

from __future__ import annotations

import dataclasses
import inspect

import numpy as np
import pytest

from tpunb.cells.settings import RunSettings
from tpunb.connection.connection import Connection


def test_lists_and_none_are_as_good_as_tuples_and_dicts() -> None:
    one = RunSettings(names=["x", "y"], plot=["loss"], reduce=None, gather={})
    other = RunSettings(names=("x", "y"), plot=("loss",), reduce={}, gather=None)
    assert one == other
    assert one.outputs == other.outputs
    assert hash(one.outputs) == hash(other.outputs)


X, Y = np.zeros(3), np.zeros(3)


@pytest.mark.parametrize(
    ("mine", "theirs", "same"),
    [
        ({"data": X}, {"data": X}, True),
        ({"data": X}, {"data": Y}, False),  # equal arrays, but not the very same
        ({"data": (X, Y)}, {"data": (X, Y)}, True),
        ({"data": (X, Y)}, {"data": (Y, X)}, False),
        ({"data": (X,)}, {"data": (X, Y)}, False),
        ({"steps": 3}, {"steps": 4}, False),
        ({"reduce": {"loss": "mean"}}, {"reduce": {"loss": "sum"}}, False),
        ({"plot": ["a"]}, {"plot": ("a",)}, True),
    ],
)
def test_the_same_settings(mine: dict[str, object], theirs: dict[str, object], same: bool) -> None:
    assert RunSettings(**mine).is_same(RunSettings(**theirs)) is same  # type: ignore[arg-type]


def test_connections_take_the_same_settings() -> None:
    """All but those of a cell's text, and of the magic's report."""
    taken = set(inspect.signature(Connection.run).parameters) - {"self", "fn"}
    assert taken == {field.name for field in dataclasses.fields(RunSettings)} - {"names", "timed"}
