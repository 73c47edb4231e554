"""Cells on a single device, on mirrored CPUs, and on a virtual TPU."""

from __future__ import annotations

import collections
import linecache

import numpy as np
import pytest
import tensorflow as tf
from support.cells import Notebook

Point = collections.namedtuple("Point", "x y")


def test_value_and_names(book: Notebook) -> None:
    n = book.strategy.num_replicas_in_sync
    book.names["x"] = tf.constant([1.0, 2.0])
    result = book.cell("y = x * 2 + tf.cast(replica_id, tf.float32)\nn = num_replicas\ny[0]")
    assert book.each(result.value) == [2.0 + r for r in range(n)]
    assert book.each(book.names["y"]) == [[2.0 + r, 4.0 + r] for r in range(n)]
    assert book.names["n"] == n
    assert "replica_id" not in book.names
    assert (result.traced, result.trace_reason) == (True, "first run")


def test_a_replica_gets_its_own_values_back(book: Notebook) -> None:
    n = book.strategy.num_replicas_in_sync
    book.cell("x = replica_id + 1")
    for _ in range(2):
        result = book.cell("x = x * 10")
    assert book.each(book.names["x"]) == [100 * (r + 1) for r in range(n)]
    assert not result.traced


def test_passed_through_values_are_per_replica(book: Notebook) -> None:
    book.names["x"] = tf.constant(5)
    book.cell("y = x")
    assert book.each(book.names["y"]) == [5] * book.strategy.num_replicas_in_sync


def test_nests(book: Notebook) -> None:
    n = book.strategy.num_replicas_in_sync
    book.names["Point"] = Point
    book.cell("d = {'a': replica_id, 'b': [1, Point(replica_id * 2, 'k')], 3: (None,)}")
    nest = book.names["d"]
    assert book.each(nest["a"]) == list(range(n))
    assert book.each(nest["b"][1].x) == [2 * r for r in range(n)]
    assert (nest["b"][0], nest["b"][1].y, nest[3]) == (1, "k", (None,))
    result = book.cell("d['a'] + d['b'][1].x + d['b'][0]")
    assert book.each(result.value) == [3 * r + 1 for r in range(n)]


def test_nests_of_tensors_are_arguments(single: Notebook) -> None:
    single.names["pair"] = (tf.constant(1), {"k": np.arange(2)})
    assert single.cell("pair[0] + 1").value.numpy() == 2
    single.names["pair"] = (tf.constant(7), {"k": np.arange(2)})
    result = single.cell("pair[0] + 1")
    assert (result.value.numpy(), result.traced) == (8, False)
    single.names["pair"] = (tf.constant(7), {"j": np.arange(2)})
    assert single.cell("pair[0] + 1").traced


def test_composite_tensors(book: Notebook) -> None:
    book.names["r"] = tf.ragged.constant([[1], [2, 3]])
    book.names["s"] = tf.sparse.from_dense([[0, 1], [2, 0]])
    book.cell("r = r * 2\nd = tf.sparse.to_dense(s)\nt = s")
    parts = book.strategy.experimental_local_results(book.names["r"])
    assert [part.to_list() for part in parts] == [[[2], [4, 6]]] * len(parts)
    assert book.each(book.names["d"]) == [[[0, 1], [2, 0]]] * len(parts)
    assert not book.cell("tf.sparse.to_dense(t)").assigned


def test_arrays_keep_their_dtype_and_do_not_retrace(book: Notebook) -> None:
    book.names["a"] = np.array([1.0, 2.0])
    book.names["k"] = np.int32(3)
    result = book.cell("y = a * tf.cast(k, tf.float64)")
    assert book.each(result.assigned["y"])[0] == [3.0, 6.0]
    book.names["a"], book.names["k"] = np.array([5.0, 6.0]), np.int32(1)
    result = book.cell("y = a * tf.cast(k, tf.float64)")
    assert book.each(result.assigned["y"])[0] == [5.0, 6.0]
    assert not result.traced
    book.names["a"] = np.array([5.0, 6.0], "float32")
    with pytest.raises((TypeError, ValueError, tf.errors.InvalidArgumentError)):
        book.cell("y = a * tf.cast(k, tf.float64)")


def test_tensor_control_flow(book: Notebook) -> None:
    book.names["x"] = tf.constant(3)
    result = book.cell(
        "if x > 2:\n  t = x * 2\n  y = t\nelse:\n  y = x\n"
        "for i in tf.range(3):\n  y += i\n  u = y\ny"
    )
    assert book.each(result.value)[0] == 9
    assert set(result.assigned) == {"y"}
    assert set(result.withheld) == {"t", "i", "u"}


def test_python_control_flow(book: Notebook) -> None:
    book.names["flag"], book.names["x"] = True, tf.constant(1)
    result = book.cell(
        "if flag:\n  a = x\nelse:\n  b = x\nfor i in range(3):\n  c = a + i\n  n = i"
    )
    assert set(result.assigned) == {"a", "i", "c", "n"}
    assert (book.names["i"], book.names["n"], book.each(book.names["c"])[0]) == (2, 2, 3)


def test_reduce_and_gather(book: Notebook) -> None:
    n = book.strategy.num_replicas_in_sync
    text = "a = tf.cast(replica_id, tf.float32)\nb = {'k': a * 2}\nc = tf.reshape(a, [1])\n"
    text += "d = 2.0\na + 1"
    result = book.cell(
        text, reduce={"a": "mean", "b": "sum", "_": "sum", "d": "sum"}, gather={"c": 0}
    )
    ids = list(range(n))
    assert result.assigned["a"].numpy() == sum(ids) / n
    assert result.assigned["b"]["k"].numpy() == 2 * sum(ids)
    assert result.assigned["c"].numpy().tolist() == ids
    assert result.assigned["d"].numpy() == 2 * n
    assert result.value.numpy() == sum(ids) + n
    repeated = book.cell(text)
    assert repeated.trace_reason == "its results are combined in another way"


def test_variables_are_closed_over(book: Notebook) -> None:
    with book.strategy.scope():
        book.names["v"] = tf.Variable(1.0, aggregation=tf.VariableAggregation.MEAN)
    assert book.each(book.cell("v.assign_add(tf.constant(2.0))\nv").value)[0] == 3.0
    result = book.cell("v.assign_add(tf.constant(2.0))\nv")
    assert book.each(result.value)[0] == 5.0
    assert not result.traced
    book.cell("w = v")
    assert book.names["w"] is book.names["v"]


def test_training_step(book: Notebook) -> None:
    with book.strategy.scope():
        book.plain(
            "model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])\n"
            "optimizer = tf.keras.optimizers.SGD(0.1)\n"
            "optimizer.build(model.trainable_variables)\n"
            "x = tf.ones([4, 2])\n"
        )
    text = (
        "with tf.GradientTape() as tape:\n"
        "  loss = tf.reduce_mean(tf.square(model(x, training=True) - 1.0))\n"
        "grads = tape.gradient(loss, model.trainable_variables)\n"
        "pairs = zip(grads, model.trainable_variables)\n"
        "optimizer.apply_gradients(pairs)\n"
        "loss"
    )
    losses = [float(book.each(book.cell(text).value)[0]) for _ in range(4)]
    assert losses[3] < losses[0]
    assert book.runner.traces == 1
    result = book.cell(text)
    assert set(result.assigned) == {"loss", "grads"}
    assert set(result.withheld) == {"tape", "pairs"}


def test_variables_created_in_the_first_run_are_traced_once(single: Notebook) -> None:
    single.plain("box = []\nclass Model(tf.Module):\n  v = None\nm = Model()")
    text = "if m.v is None:\n  m.v = tf.Variable(1.0)\nm.v.assign_add(1.0)"
    values = [float(single.cell(text).value) for _ in range(3)]
    assert values == [2.0, 3.0, 4.0]
    assert single.runner.traces == 1


def test_definitions_belong_to_the_notebook(book: Notebook) -> None:
    book.names["x"] = tf.constant(2)
    result = book.cell(
        "import math\nk = 3\nt = x\n"
        "def f(v):\n  return g(v) + k\n"
        "def g(v): return v * 2\n"
        "h = lambda: t\n"
        "class K:\n  size = k\n"
        "y = f(x)"
    )
    assert book.each(book.names["y"])[0] == 7
    assert book.names["f"](5) == 13
    assert book.names["f"].__globals__ is book.names
    assert linecache.getline(book.names["f"].__code__.co_filename, 6).strip() == "return g(v) + k"
    assert book.names["K"].size == 3
    assert book.names["math"].pi > 3
    assert result.withheld == ("h",)


def test_helpers_of_the_trace_stay_inside(single: Notebook) -> None:
    result = single.cell(
        "a = tf.TensorArray(tf.int32, 2)\nit = iter([1])\nf = [lambda: it][0]\ns = 'text'"
    )
    assert result.assigned["s"] == "text"
    assert set(result.withheld) == {"a", "it"}


def test_timings(single: Notebook) -> None:
    first, second = (
        single.cell("tf.constant(1)", timed=True),
        single.cell("tf.constant(1)", timed=True),
    )
    assert first.timings.trace is not None
    assert first.timings.first_step is not None
    assert first.timings.first_step > first.timings.trace > 0
    assert second.timings.trace is None


def test_semicolon_and_python_results(single: Notebook) -> None:
    assert single.cell("1 + 1;").value == 2
    assert single.cell("'a' + 'b'").value == "ab"
    assert single.cell("tf.print('')\nNone").value is None
    assert single.cell("x = 1").value is None
    assert single.cell("").assigned == {}


def test_the_namespace_is_only_written_by_bind(single: Notebook) -> None:
    before = {"tf": tf}
    result = single.runner.run("y = 1\ndef f(): pass", before)
    assert before == {"tf": tf}
    assert set(result.assigned) == {"y", "f"}


def test_builtins_can_be_hidden(single: Notebook) -> None:
    result = single.cell("sum = sum([1, 2])\nlen([1])")
    assert (result.assigned, result.value) == ({"sum": 3}, 1)


def test_eager_functions(single: Notebook) -> None:
    tf.config.run_functions_eagerly(True)
    try:
        single.names["x"] = tf.constant(1)
        assert [int(single.cell("y = x + 1\ny").value) for _ in range(2)] == [2, 2]
    finally:
        tf.config.run_functions_eagerly(False)
