"""A cell that uses models or variables of a closed connection warns once."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

import tpunb
from tpunb.errors import TpuWarning


class Scaled(tf.Module):
    """A model of one variable."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = tf.Variable(2.0)

    def __call__(self, x: Any) -> Any:
        return self.scale * x


@pytest.fixture
def connected() -> Iterator[tuple[Any, dict[str, Any]]]:
    """Open a connection, with objects of this connection and of an earlier one."""
    with tpunb.connect(simulate=2) as earlier, earlier.strategy.scope():
        names = {"model": Scaled(), "v": tf.Variable(1.0), "plain": 3.0}
    with tpunb.connect(simulate=2) as connection:
        with connection.strategy.scope():
            names |= {"fresh": Scaled(), "w": tf.Variable(1.0)}
        yield connection, {"tf": tf, **names}


def warnings_of(connected: Any, text: str) -> list[str]:
    """Return the warnings of a cell."""
    connection, names = connected
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        connection.run_cell(text, names)
    return [str(each.message) for each in caught if each.category is TpuWarning]


def test_a_model_of_a_closed_connection(connected: Any) -> None:
    (message,) = warnings_of(connected, "model(plain)")
    assert message.startswith("`model` belongs to a connection that is closed.")
    assert "Make it again inside of `with strategy.scope():`" in message
    assert warnings_of(connected, "model(plain) + 1.0") == []
    (message,) = warnings_of(connected, "def read():\n    return v + model(1.0)\nread() + v")
    assert message.startswith("`v` belongs")


def test_several_objects(connected: Any) -> None:
    (message,) = warnings_of(connected, "model(v)")
    assert message.startswith("`model`, `v` belong to a connection that is closed.")
    assert "their variables" in message


def test_objects_of_the_open_connection(connected: Any) -> None:
    assert warnings_of(connected, "fresh(w) + plain") == []


def test_a_check_warns(connected: Any) -> None:
    connection, names = connected
    with pytest.warns(TpuWarning, match="`model` belongs to a connection that is closed"):
        connection.check_cell("model(plain)", names)
