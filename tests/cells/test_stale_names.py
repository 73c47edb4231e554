"""Functions of the notebook that read names which a cell assigns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.cells import Notebook

from tpunb.errors import CellError
from tpunb.tensorflow.cells.runner import CellRunner

FUNCTIONS = {
    "function": ("def f(): return scale * 2", "f()"),
    "nested": ("def inner(): return scale\ndef f(): return inner() * 2", "f()"),
    "call": ("class Model:\n    def __call__(self): return scale * 2\nf = Model()", "f()"),
    "method": ("class Model:\n    def go(self): return scale * 2\nf = Model()", "f.go()"),
    "partial": ("import functools\nf = functools.partial(lambda k: scale * k, 2)", "f()"),
    "tf.function": ("f = tf.function(lambda: scale * 2)", "f()"),
}


@pytest.fixture
def runner() -> Iterator[CellRunner]:
    notebook = Notebook("virtual")
    yield notebook.runner
    notebook.runner.close()


@pytest.mark.parametrize("form", FUNCTIONS)
def test_a_function_that_would_read_the_former_value_is_refused(
    runner: CellRunner, form: str
) -> None:
    setup, call = FUNCTIONS[form]
    names: dict[str, Any] = {"__name__": "__main__", "tf": tf, "scale": 1.0}
    exec(setup, names)
    with pytest.raises(CellError, match="reads `scale`, which the cell assigns"):
        runner.run(f"scale = tf.constant(10.0)\ny = {call}", names)


def test_a_function_that_is_called_before_is_not_refused(runner: CellRunner) -> None:
    names: dict[str, Any] = {"__name__": "__main__", "tf": tf, "scale": 1.0}
    exec("def f(): return scale * 2", names)
    cell = "scale = f() + tf.constant(1.0)"
    assert float(runner.run(cell, names).assigned["scale"].values[0]) == 3
    with pytest.raises(CellError, match="`f` reads `scale`"):
        runner.run(cell, names, steps=3)
    assert runner.run("import tensorflow as tf\ny = f()", names).assigned["y"] == 2


def test_the_batch_and_what_a_function_assigns(runner: CellRunner) -> None:
    names: dict[str, Any] = {
        "__name__": "__main__",
        "tf": tf,
        "x": tf.zeros([8]),
        "lr": 1.0,
        "n": 0,
    }
    exec("def f(): return tf.reduce_sum(x)", names)
    exec("def decay():\n    global lr\n    lr = lr * 0.5", names)
    exec("def count():\n    global n\n    n += 1\n    return tf.ones([])", names)
    with pytest.raises(CellError, match="`f` reads `x`"):
        runner.run("y = f()", names, data=[np.ones(8, np.float32)], names=("x",))
    with pytest.raises(CellError, match="`decay` assigns `lr` by `global`"):
        runner.run("decay()\ny = tf.ones([]) * lr", names)
    runner.run("y = count()", names)  # nothing that the cell reads or assigns
