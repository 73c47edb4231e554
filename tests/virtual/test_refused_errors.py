"""Exceptions name the rule that refused a program, however the program runs."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import keras
import pytest
import tensorflow as tf

import tpunb
from tpunb.errors import MemoryLimitError
from tpunb.tensorflow.connection.connection import Connection
from tpunb.tensorflow.verification import refusals
from tpunb.tensorflow.virtual.refused_errors import error_of_rule
from tpunb.verification.suite import ConnectedTpu
from tpunb.virtual.strictness import REFUSED

CELLS = {
    "unsupported-op": "tf.strings.length(tf.strings.as_string(x))",
    "unsupported-type": "tf.constant('text')",
    "constant-size": "tf.range(tf.cast(x[0], tf.int32))",
    "x64-op": "tf.tensordot(tf.cast(x, tf.int64), tf.cast(x, tf.int64), 1)",
    "memory": "tf.fill([2**19, 2**19], x[0])",
}


@pytest.fixture(scope="module")
def connection() -> Iterator[Connection]:
    with tpunb.connect(simulate=2) as connection:
        yield connection


@pytest.fixture
def names() -> dict[str, Any]:
    return {"tf": tf, "x": tf.constant([1.0, 2.0])}


def code_of(call: Any, *args: Any, **options: Any) -> str | None:
    """The rule that a call's exception names; None if it names none."""
    with pytest.raises(Exception) as error:  # noqa: PT011  the rule decides the type
        call(*args, **options)
    return getattr(error.value, "code", None)


@pytest.mark.parametrize("rule", sorted(REFUSED))
def test_a_function(connection: Connection, monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    """The programs with which `tpunb verify` tests each rule."""
    monkeypatch.setattr(refusals, "refused", lambda call, known: call())
    suite = refusals.Rules(ConnectedTpu(tpunb.connect, connection))
    assert code_of(suite.attempt, rule) == rule


@pytest.mark.parametrize("rule", CELLS)
def test_a_cell(connection: Connection, names: dict[str, Any], rule: str) -> None:
    assert code_of(connection.run_cell, CELLS[rule], names) == rule
    assert code_of(connection.run_cell, CELLS[rule], names, steps=3) == rule
    report = connection.check_cell(CELLS[rule], names)
    assert [problem.code for problem in report.errors] == [rule]
    assert code_of(report.raise_if_refused) == rule


def test_other_errors_have_no_code(connection: Connection, names: dict[str, Any]) -> None:
    assert code_of(connection.run_cell, "x @ x", names) is None
    assert code_of(connection.run_cell, "1 / 0", names) is None


def test_a_layer(connection: Connection) -> None:
    """Keras replaces a layer's exception with another of the same type."""

    class Names(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return tf.strings.length(tf.strings.as_string(x))

    with connection.strategy.scope():
        model = keras.Sequential([keras.Input([2]), keras.layers.Dense(2)])
        layer = Names()

    @tf.function
    def step(x: Any) -> Any:
        return connection.strategy.run(lambda x: layer(model(x)), args=(x,))

    assert code_of(step, tf.ones([2, 2])) == "unsupported-op"


def test_memory_errors_have_a_code() -> None:
    assert MemoryLimitError("too large").code == "memory"


def test_the_error_of_a_real_tpu(connection: Connection, names: dict[str, Any]) -> None:
    """In a cell, an exception without a code gets the rule of its explanation."""
    message = "Detected unsupported operations when trying to compile graph: PyFunc"
    error = tf.errors.InvalidArgumentError(None, None, message)
    assert not hasattr(error, "code")
    known = tpunb.explain(error)
    assert known is not None
    assert known.rule == "unsupported-op"

    def refuse() -> None:
        raise error

    assert code_of(connection.run_cell, "refuse()", {**names, "refuse": refuse}) == known.rule


def test_rules_of_explanations_are_rules() -> None:
    from tpunb.errors.catalogue import ENTRIES

    assert {entry.rule for entry in ENTRIES.values()} - {None} <= REFUSED.keys()


@pytest.mark.parametrize(
    ("error_type", "values"),
    [(tf.errors.InvalidArgumentError, (None, None, "text")), (ValueError, ("text",))],
)
def test_copies(error_type: Any, values: tuple[Any, ...]) -> None:
    error = error_of_rule(error_type, "scope")(*values)
    assert type(error).__name__ == error_type.__name__
    for same in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert isinstance(same, error_type)
        assert (str(same), same.code) == ("text", "scope")
