"""Functions of JAX are refused where only TensorFlow's can be taken. JAX itself is not needed."""

from __future__ import annotations

import functools
import types
from typing import Any

import pytest
import tensorflow as tf

import tpunb
from tpunb.errors import TpunbError

jnp: Any = types.ModuleType("jax.numpy")
Jitted = type("PjitFunction", (), {"__module__": "jaxlib._jax"})
Array = type("ArrayImpl", (), {"__module__": "jaxlib._jax"})


def of_jax(x: Any) -> Any:
    return jnp.sin(x)


def plain(x: Any) -> Any:
    return x + x


@pytest.mark.parametrize("door", ["check", "compare"])
@pytest.mark.parametrize(
    ("fn", "argument"),
    [(of_jax, 1.0), (functools.partial(of_jax), 1.0), (Jitted(), 1.0), (plain, Array())],
)
def test_a_function_of_jax_is_refused_with_the_way_for_jax(
    door: str, fn: Any, argument: Any
) -> None:
    message = f"tpunb.{door} is for TensorFlow, and this function is JAX's"
    with pytest.raises(TpunbError, match=message) as raised:
        getattr(tpunb, door)(fn, argument)
    assert raised.value.fix.startswith("For JAX: ")


def test_a_function_of_tensorflow_that_mentions_jax_is_taken() -> None:
    def mixed(x: Any) -> Any:
        return tf.sin(x) if jnp is not None else x

    assert tpunb.check(mixed, tf.zeros([8])).ok
