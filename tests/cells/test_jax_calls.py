"""Cells that call JAX, or mix arrays of floats with integers.

A stand-in takes JAX's place, because JAX and TensorFlow are in different environments here.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.cells import Notebook

import tpunb
from tpunb.errors import CellError

WAY = "%tpu_connect --simulate v5e-8 --framework jax"


class Array:
    """An array that is not NumPy's."""

    def __init__(self, numbers: Any) -> None:
        self._numbers = np.asarray(numbers, np.float32)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self._numbers.astype(dtype or np.float32)

    @property
    def dtype(self) -> Any:
        return self._numbers.dtype


def sin(x: Any) -> Array:
    if not isinstance(x, Array):
        raise TypeError("Error interpreting argument to <function sin> as an abstract array.")
    return Array(np.sin(x))


@pytest.fixture
def with_jax(book: Notebook, monkeypatch: pytest.MonkeyPatch) -> Notebook:
    jax, jnp = ModuleType("jax"), ModuleType("jax.numpy")
    Array.__module__ = sin.__module__ = "jax.numpy"
    jax.Array, jax.numpy, jnp.sin = Array, jnp, sin  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setitem(sys.modules, "jax.numpy", jnp)
    book.names |= {"jax": jax, "jnp": jnp, "a": Array([0.5, 2.0]), "np": np}
    return book


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("y = jnp.sin(a) + replica_id", "Line 2 calls `jnp.sin`"),
        ("y = jax.numpy.sin(a)", "Line 2 calls `jax.numpy.sin`"),
        ("import jax.numpy as n\ny = n.sin(1)", "Line 3 calls `n.sin`"),
        ("from jax.numpy import sin\ny = sin(1)", "Line 3 calls `sin`"),
    ],
)
def test_a_call_of_jax_is_refused(with_jax: Notebook, text: str, said: str) -> None:
    with pytest.raises(CellError) as caught:
        with_jax.cell(text)
    assert said in str(caught.value)
    assert WAY in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "def f(): return jnp.sin(a) + 1\ny = tf.constant(1) * g()",
        "def f(): return 1\ny = h(tf.constant(1.0))",
    ],
)
def test_a_function_that_calls_jax_is_refused(with_jax: Notebook, text: str) -> None:
    with_jax.plain("def g(): return jnp.sin(a)\ndef h(x): return jnp.sin(x)")
    with pytest.raises(CellError, match="cannot compute with JAX") as caught:
        with_jax.cell(text.partition("\n")[2])
    assert WAY in str(caught.value)


def test_an_array_of_jax_is_an_argument(with_jax: Notebook) -> None:
    result = with_jax.cell("y = a * 2.0")
    np.testing.assert_array_equal(with_jax.each(result.assigned["y"])[0], [1.0, 4.0])


@pytest.mark.parametrize(
    "text", ["y = np.array([0.5]) * replica_id", "y = replica_id * np.array([0.5])", "y = f()"]
)
def test_truncated_floats_name_the_cast(book: Notebook, text: str) -> None:
    book.names["np"] = np
    book.plain("def f(): return np.array([0.5]) * tf.constant(1)")
    with pytest.raises(Exception, match=r"tf\.cast\((?:replica_id|x), tf\.float64\)"):
        book.cell(text)


def test_a_check_does_not_say_that_it_compiles() -> None:
    with tpunb.connect(simulate=2) as connection, pytest.raises(CellError, match=r"tf\.cast"):
        connection.check_cell("y = np.array([0.5]) * replica_id", {"np": np})
