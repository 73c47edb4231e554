"""Functions of NumPy arrays in processes that import both JAX and TensorFlow."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.jax_process import said_with_both

from tpunb.compiler.frameworks import framework_of_module, frameworks_of
from tpunb.machine.framework import JAX, TENSORFLOW


def helper(x: Any) -> Any:
    return tf.tanh(x)


class Net:
    def __init__(self) -> None:
        self.layers = [helper]

    def __call__(self, x: Any) -> Any:
        return self.layers[0](x)

    def call(self, x: Any) -> Any:
        return self(x)


def imports_inside(x: Any) -> Any:
    import tensorflow

    return tensorflow.tanh(x)


REACH_TENSORFLOW: list[Any] = [
    helper,
    lambda x: helper(x) + 1,
    functools.partial(helper),
    functools.cache(helper),
    tf.function(helper),
    tf.nn.relu,
    Net(),
    Net().call,
    imports_inside,
    keras.ops.tanh,
    lambda x: [helper(row) for row in x],
]


@pytest.mark.parametrize("value", REACH_TENSORFLOW)
def test_functions_of_tensorflow(value: Any) -> None:
    assert frameworks_of(value) == {TENSORFLOW}


def test_a_function_that_reads_a_variable() -> None:
    variable = tf.Variable(1.0)
    assert frameworks_of(lambda x: x + variable) == {TENSORFLOW}


@pytest.mark.parametrize("value", [np.tanh, lambda x: x @ x, len, functools.partial(max), 1.0])
def test_functions_of_neither(value: Any) -> None:
    assert frameworks_of(value) == frozenset()


def test_circular_references_are_read_once() -> None:
    def even(n: int) -> bool:
        return n == 0 or odd(n - 1)

    def odd(n: int) -> bool:
        return n != 0 and even(n - 1)

    functions: list[Callable[..., Any]] = [even]
    functions.append(lambda: functions)
    assert frameworks_of(functions) == frozenset()


def test_modules() -> None:
    assert framework_of_module("jax.numpy") == JAX
    assert framework_of_module("jaxlib.xla_client") == JAX
    assert framework_of_module("tensorflow.python.ops") == TENSORFLOW
    assert framework_of_module("keras.src.layers") == TENSORFLOW
    assert framework_of_module("numpy.linalg") is None


PROGRAM = """
import pathlib, tempfile
import tensorflow as tf, jax, jax.numpy as jnp, numpy as np
import tpunb
from support.shell import Notebook

said = {}
x = np.ones((8, 8), np.float32)
counter = tf.Variable(0.0)


def scaled(x, *, scale):
    return jnp.tanh(x) * scale


class Net:
    def __init__(self, f):
        self.f = f

    def __call__(self, x):
        return self.f(x)


def counted(x):
    counter.assign_add(1.0)
    return x * counter


def mixed(x):
    return jnp.tanh(x) if tf.executing_eagerly else x


functions = {
    "jax": lambda x: jnp.tanh(x).sum(),
    "jax object": Net(jax.nn.relu),
    "transformed": jax.grad(lambda x: (x @ x).sum()),
    "tensorflow": lambda x: tf.tanh(x),
    "a variable": counted,
    "neither": lambda x: x @ x + 1,
    "both": mixed,
}


def verdict(fn, *args, **named):
    program = tpunb.compile(fn, *args, tpu="v5e-1", **named)
    either = [note for note in program.notes if "can both trace" in note]
    by_tensorflow = any("low effort" in note for note in program.notes)
    return [program.ok, "TensorFlow" if by_tensorflow else "JAX", either]


for name, fn in functions.items():
    said[name] = verdict(fn, x)
said["by name"] = verdict(scaled, x, scale=np.float32(2))
said["spec"] = verdict(functions["neither"], tf.TensorSpec((8, 8)))
said["shape"] = verdict(functions["neither"], jax.ShapeDtypeStruct((8, 8), "float32"))
said["counter"] = float(counter)

book = Notebook(pathlib.Path(tempfile.mkdtemp()))
book.good("%load_ext tpunb")
book.names.update(step=functions["jax"], neither=functions["neither"], tanh=tf.tanh, x=x)


def in_cell(code, options=""):
    ran = book.run(f"%%tpu_compile {options}\\n{code}")
    return [bool(ran.value and ran.value.ok), type(ran.error).__name__]


said["cells"] = {
    code: in_cell(code, "--for v5e-1") for code in ("step(x)", "y = neither(x)", "tanh(x)", "x + 1")
}
book.good("%unload_ext tpunb")
with tf.distribute.get_strategy().scope():
    said["a strategy"] = verdict(functions["jax"], x)
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory, libtpu: None) -> dict[str, Any]:
    """Run a program with both frameworks, and return its results."""
    return said_with_both(PROGRAM, tmp_path_factory.mktemp("both"))


def test_the_function_decides_and_not_the_imports(said: dict[str, Any]) -> None:
    for name in ("jax", "jax object", "transformed", "both", "by name", "a strategy"):
        assert said[name] == [True, "JAX", []], name
    for name in ("tensorflow", "a variable"):
        assert said[name] == [True, "TensorFlow", []], name
    assert said["counter"] == 0, "no function ran"


def test_an_ambiguous_function_names_its_framework(said: dict[str, Any]) -> None:
    ok, framework, (note,) = said["neither"]
    assert (ok, framework) == (True, "JAX")
    assert "pass tf.TensorSpec" in note
    assert said["spec"] == [True, "TensorFlow", []]
    assert said["shape"] == [True, "JAX", []]


def test_calls_in_cells_need_no_connection(said: dict[str, Any]) -> None:
    cells = said["cells"]
    assert cells["step(x)"] == cells["y = neither(x)"] == cells["tanh(x)"] == [True, "NoneType"]
    assert cells["x + 1"] == [False, "NotConnectedError"]
