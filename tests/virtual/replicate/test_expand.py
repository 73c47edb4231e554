"""Parts of the engine on small traced functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.strategies import all_reduce, each, run, strategy_of
from tensorflow.python.tpu.ops import tpu_ops

from tpunb.tensorflow.virtual.graph.function_def import CALLS, in_topological_order
from tpunb.tensorflow.virtual.graph.rewrite import inlined
from tpunb.tensorflow.virtual.graph.tensorflow_graphs import known_sizes
from tpunb.tensorflow.virtual.private_names import FunctionDef, context, tensor_util
from tpunb.tensorflow.virtual.replicate.expansion import Expansion, expand
from tpunb.tensorflow.virtual.replicate.passes import ReplicaFunction, with_constant_shapes
from tpunb.tensorflow.virtual.replicate.variance import Argument, Passing

X = tf.TensorSpec([], tf.float32, name="x")
Trace = Callable[..., FunctionDef]


def library(name: str) -> FunctionDef:
    return context.context().get_function_def(name)


@pytest.fixture
def traced() -> Trace:
    """Trace functions, which must live as long as their definitions are used."""
    kept = []

    def trace(function: Callable[..., Any], *specs: Any) -> FunctionDef:
        kept.append(tf.function(function).get_concrete_function(*specs))
        return kept[-1].function_def

    return trace


def arguments_of(definition: FunctionDef, passings: Sequence[Passing]) -> dict[str, Argument]:
    names = [argument.name for argument in definition.signature.input_arg]
    return dict(zip(names, map(Argument, passings), strict=True))


def expanded(definition: FunctionDef, cores: Any, *passings: Passing) -> Expansion:
    function = ReplicaFunction(inlined(definition, library), library, cores)
    return expand(function, arguments_of(definition, passings))


def test_a_compiled_call_stays_a_call_unless_it_contains_collectives(traced: Trace) -> None:
    quiet = tf.function(lambda x: x * 2.0, jit_compile=True)
    summed = tf.function(lambda x: tpu_ops.cross_replica_sum(x, [[0, 1, 2]]), jit_compile=True)
    definition = traced(lambda x: quiet(x) + summed(x), X)
    flat = inlined(definition, library)
    assert len([node for node in flat.node_def if node.op in CALLS]) == 1
    assert "CrossReplicaSum" in {node.op for node in flat.node_def}


def test_order_puts_inputs_first_and_refuses_cycles(traced: Trace) -> None:
    definition = traced(lambda x: tf.sin(tf.cos(x)) + x, X)
    order = in_topological_order(reversed(definition.node_def))
    at = {node.name: place for place, node in enumerate(order)}
    for node in order:
        for text in node.input:
            source = text.lstrip("^").partition(":")[0]
            assert at.get(source, -1) < at[node.name]
    first, last = order[0], order[-1]
    first.input.append(f"^{last.name}")
    with pytest.raises(AssertionError, match="cycle"):
        in_topological_order(order)


def test_equal_values_do_not_grow_with_the_replicas(traced: Trace) -> None:
    weights = [tf.Variable(tf.ones([2, 2])) for _ in range(3)]

    def function(x: Any) -> Any:
        for weight in weights:
            x = tf.nn.relu(x @ weight)
        weights[0].assign_add(x)
        return tf.random.stateless_uniform([], [1, 2]), tf.reduce_sum(x)

    definition = traced(function, tf.TensorSpec([2, 2], tf.float32))
    passings = (Passing.SHARED, *[Passing.MIRRORED] * 3)
    sizes = []
    for count in (2, 32):
        cores = [["/device:CPU:0"]] * count
        expansion = expanded(definition, cores, *passings).definition
        sizes.append(len([node for node in expansion.node_def if node.op != "AssignVariableOp"]))
        assert len(expansion.signature.output_arg) == 2 * count
    assert sizes[0] == sizes[1]


def test_an_expansion_grows_linearly_with_the_replicas(traced: Trace) -> None:
    v = tf.Variable(np.zeros(4, np.float32))

    def function(x: Any) -> Any:
        total = tpu_ops.cross_replica_sum(x, [list(range(count))])
        v.assign_add(tf.fill([4], total))
        return tf.exp(x) + total

    sizes = []
    for count in (8, 16, 32):
        definition = traced(function, X)
        cores = [[f"/device:CPU:{k}"] for k in range(count)]
        expansion = expanded(definition, cores, Passing.VARYING, Passing.MIRRORED)
        sizes.append(expansion.definition.ByteSize())
        assert [node.op for node in expansion.definition.node_def].count("AddN") == 1
        assert {node.device for node in expansion.definition.node_def} == {
            core for (core,) in cores
        }
    assert sizes[2] - sizes[1] < 2.2 * (sizes[1] - sizes[0])


# Questions about known shapes become constants.


def constants(function: Callable[..., Any], *shapes: list[int]) -> list[Any]:
    """The constant results of a function of tensors; None for results that are not constant."""
    specs = [tf.TensorSpec(shape, tf.float32) for shape in shapes]
    traced = tf.function(function, autograph=False).get_concrete_function(*specs)
    definition = traced.function_def
    constant_definition = with_constant_shapes(definition, known_sizes(traced.graph, definition))
    values = {
        f"{node.name}:output:0": tensor_util.MakeNdarray(node.attr["value"].tensor)
        for node in constant_definition.node_def
        if node.op == "Const"
    }
    sources = {
        node.name: node.input for node in constant_definition.node_def if node.op == "Identity"
    }

    def value(text: str) -> Any:
        while text.partition(":")[0] in sources:
            text = sources[text.partition(":")[0]][0]
        return values.get(text)

    return [
        value(constant_definition.ret[output.name])
        for output in constant_definition.signature.output_arg
    ]


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
    (result,) = constants(lambda x: part(shape(x)), [2, 3, 4, 5])
    np.testing.assert_array_equal(result, part(sizes))


def test_a_nodes_questions_about_a_shape() -> None:
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
def test_the_axes_over_which_a_gradient_is_summed(first: list[int], second: list[int]) -> None:
    def axes(x: Any, y: Any) -> Any:
        r = tf.raw_ops.BroadcastGradientArgs(s0=shape(x), s1=shape(y))
        return r.r0, r.r1

    result = np.ones(np.broadcast_shapes(first, second))
    for shape_of_input, over in zip((first, second), constants(axes, first, second), strict=True):
        summed = result.sum(axis=tuple(over), keepdims=True)
        assert summed.reshape(shape_of_input).shape == tuple(shape_of_input)


def test_questions_about_unknown_shapes_stay() -> None:
    def ask(x: Any) -> Any:
        return shape(x), shape(x)[1:], shape(x)[:1]

    assert constants(ask, [None, 3]) == [None, None, None]
    row = tf.TensorSpec([4], tf.float32)
    traced = tf.function(lambda x: x[1:]).get_concrete_function(row)  # the spec has no shape
    definition = traced.function_def
    assert with_constant_shapes(definition, known_sizes(traced.graph, definition)) is definition


@pytest.mark.parametrize("strides", [(4, 5, 6), (1, 5, 6), (5, 6)])
def test_gradients_of_broadcast_products(strides: tuple[int, ...]) -> None:
    """As in Keras's attention: each example is multiplied by weights that all examples share."""
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
    results = run(strategy, replica, x)
    expected = [gradients(tf.constant(value), tf.constant(weights)) for value in values]
    total = expected[0][1] + expected[1][1]
    for (dx, dw), (expected_dx, _) in zip(results, expected, strict=True):
        np.testing.assert_allclose(dx, expected_dx, rtol=1e-5)
        np.testing.assert_allclose(dw, total, rtol=1e-4)
