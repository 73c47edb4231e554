"""What a function asks of shapes that are known, as constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.strategies import all_reduce, each, local, strategy_of

from tpunb.virtual._tensorflow import tensor_util
from tpunb.virtual.graph.tensorflow_graphs import known_sizes
from tpunb.virtual.replicate.passes import with_constant_shapes


def constants(function: Callable[..., Any], *shapes: list[int]) -> list[Any]:
    """What a function of tensors gives, where it is constants; None for other results."""
    specs = [tf.TensorSpec(shape, tf.float32) for shape in shapes]
    traced = tf.function(function, autograph=False).get_concrete_function(*specs)
    definition = traced.function_def
    found = with_constant_shapes(definition, known_sizes(traced.graph, definition))
    values = {
        f"{node.name}:output:0": tensor_util.MakeNdarray(node.attr["value"].tensor)
        for node in found.node_def
        if node.op == "Const"
    }
    sources = {node.name: node.input for node in found.node_def if node.op == "Identity"}

    def value(text: str) -> Any:
        while text.partition(":")[0] in sources:
            text = sources[text.partition(":")[0]][0]
        return values.get(text)

    return [value(found.ret[output.name]) for output in found.signature.output_arg]


def shape(x: Any) -> Any:
    return tf.raw_ops.Shape(input=x)


@pytest.mark.parametrize(
    "part",
    [
        lambda s: s[0], lambda s: s[-1], lambda s: s[1:], lambda s: s[:-2], lambda s: s[-2:],
        lambda s: s[::2], lambda s: s[::-1], lambda s: s[3:1:-1], lambda s: s[5:], lambda s: s[:],
    ],
)  # fmt: skip
def test_parts_of_a_shape(part: Callable[[Any], Any]) -> None:
    sizes = np.array([2, 3, 4, 5])
    (found,) = constants(lambda x: part(shape(x)), [2, 3, 4, 5])
    np.testing.assert_array_equal(found, part(sizes))


def test_what_a_node_asks_of_a_shape() -> None:
    def ask(x: Any, y: Any) -> Any:
        raw = tf.raw_ops
        return raw.Rank(input=x), raw.Size(input=x), *raw.ShapeN(input=[x, y], out_type=tf.int64)

    rank, size, first, second = constants(ask, [2, 3], [4])
    assert (rank, size, first.tolist(), second.tolist()) == (2, 6, [2, 3], [4])
    assert (rank.dtype, size.dtype, first.dtype) == (np.int32, np.int32, np.int64)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([2, 3], [2, 3]), ([2, 3], [3]), ([3], [2, 3]), ([2, 1], [1, 3]), ([], [2, 3]),
        ([4, 1, 3], [2, 3]), ([1, 1], [5]), ([0, 3], [3]), ([1], [1]),
    ],
)  # fmt: skip
def test_the_axes_that_a_gradient_is_summed_over(first: list[int], second: list[int]) -> None:
    def axes(x: Any, y: Any) -> Any:
        r = tf.raw_ops.BroadcastGradientArgs(s0=shape(x), s1=shape(y))
        return r.r0, r.r1

    result = np.ones(np.broadcast_shapes(first, second))
    for one, over in zip((first, second), constants(axes, first, second), strict=True):
        summed = result.sum(axis=tuple(over), keepdims=True)
        assert summed.reshape(one).shape == tuple(one)


def test_what_is_not_known_stays() -> None:
    def ask(x: Any) -> Any:
        return shape(x), shape(x)[1:], shape(x)[:1]

    assert constants(ask, [None, 3]) == [None, None, None]
    row = tf.TensorSpec([4], tf.float32)
    traced = tf.function(lambda x: x[1:]).get_concrete_function(row)  # no shape
    definition = traced.function_def
    assert with_constant_shapes(definition, known_sizes(traced.graph, definition)) is definition


@pytest.mark.parametrize("strides", [(4, 5, 6), (1, 5, 6), (5, 6)])
def test_gradients_of_broadcast_products(strides: tuple[int, ...]) -> None:
    """As Keras's attention multiplies: each example by weights that all share."""
    strategy = strategy_of(2)
    generator = np.random.default_rng(0)
    values = generator.normal(size=(2, *strides)).astype("f")
    weights = generator.normal(size=(6, 7)).astype("f")

    def gradients(x: Any, w: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            loss = tf.reduce_sum(tf.matmul(x, w) ** 2) + tf.reduce_sum(x * w[:, 0])
        return tape.gradient(loss, [x, w])

    def replica(x: Any) -> Any:
        dx, dw = gradients(x, tf.constant(weights))
        return dx, all_reduce(dw)

    x = each(strategy, values)
    found = local(strategy, tf.function(lambda: strategy.run(replica, args=(x,)))())
    expected = [gradients(tf.constant(one), tf.constant(weights)) for one in values]
    total = expected[0][1] + expected[1][1]
    for (dx, dw), (own, _) in zip(found, expected, strict=True):
        np.testing.assert_allclose(dx, own, rtol=1e-5)
        np.testing.assert_allclose(dw, total, rtol=1e-4)
