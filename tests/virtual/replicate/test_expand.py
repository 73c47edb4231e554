"""The engine's parts on small traced functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.tpu.ops import tpu_ops

from tpunb.virtual._tensorflow import FunctionDef, context
from tpunb.virtual.graph.function_def import CALLS, in_topological_order
from tpunb.virtual.graph.rewrite import inlined
from tpunb.virtual.replicate.passes import ReplicaFunction
from tpunb.virtual.replicate.replication import Expansion, expand
from tpunb.virtual.replicate.variance import Analysis, Argument, Passing, Role, Variance, analyze

CORES = [["/device:CPU:1"], ["/device:CPU:2"], ["/device:CPU:3"]]
X = tf.TensorSpec([], tf.float32, name="x")


def library(name: str) -> FunctionDef:
    return context.context().get_function_def(name)


def traced(function: Callable[..., Any], *specs: Any) -> tuple[Any, FunctionDef]:
    """A traced function, which has to live as long as its definition is used."""
    concrete = tf.function(function).get_concrete_function(*specs)
    return concrete, concrete.function_def


def arguments_of(definition: FunctionDef, passings: Sequence[Passing]) -> dict[str, Argument]:
    names = [argument.name for argument in definition.signature.input_arg]
    return dict(zip(names, map(Argument, passings), strict=True))


def analysis_of(definition: FunctionDef, *passings: Passing) -> Analysis:
    flat = inlined(definition, library)
    return analyze(flat, arguments_of(flat, passings), library)


def expanded(definition: FunctionDef, cores: Any, *passings: Passing) -> Expansion:
    function = ReplicaFunction(inlined(definition, library), library, cores)
    return expand(function, arguments_of(definition, passings))


def variances_of(analysis: Analysis, op: str) -> list[Variance]:
    return [analysis.variances[node.name] for node in analysis.order if node.op == op]


def test_what_waits_for_an_argument_waits_for_what_gives_it() -> None:
    def waits(x: Any) -> Any:
        with tf.control_dependencies([x]):
            return tf.constant(1.0)

    keep, definition = traced(
        lambda x: (waits(x), tf.function(waits)(x), tf.function(waits)(-x)), X
    )
    flat = inlined(definition, library)
    names = [node.name for node in flat.node_def]
    waited = [text for node in flat.node_def for text in node.input if text.startswith("^")]
    assert {text.lstrip("^") for text in waited} <= {*names}
    assert "^Neg" in waited
    definition = expanded(definition, CORES, Passing.VARYING).definition
    assert len(definition.signature.output_arg) == 9
    del keep


def test_calls_are_written_out_at_every_depth() -> None:
    inner = tf.function(lambda x: (x, x * 2.0))
    middle = tf.function(lambda x: inner(x)[1] + inner(x)[0])
    keep, definition = traced(lambda x: middle(middle(x)), X)
    flat = inlined(definition, library)
    assert not [node for node in flat.node_def if node.op in CALLS]
    assert [node.op for node in flat.node_def].count("Mul") == 4
    names = {node.name for node in flat.node_def} | {a.name for a in flat.signature.input_arg}
    for node in flat.node_def:
        assert all(text.lstrip("^").partition(":")[0] in names for text in node.input)
    assert definition != flat
    del keep


def test_a_compiled_call_stays_a_call_unless_it_contains_collectives() -> None:
    quiet = tf.function(lambda x: x * 2.0, jit_compile=True)
    summed = tf.function(lambda x: tpu_ops.cross_replica_sum(x, [[0, 1, 2]]), jit_compile=True)
    keep, definition = traced(lambda x: quiet(x) + summed(x), X)
    flat = inlined(definition, library)
    assert len([node for node in flat.node_def if node.op in CALLS]) == 1
    assert "CrossReplicaSum" in {node.op for node in flat.node_def}
    del keep


def test_order_puts_inputs_first_and_refuses_cycles() -> None:
    keep, definition = traced(lambda x: tf.sin(tf.cos(x)) + x, X)
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
    del keep


def test_what_follows_from_a_sum_is_the_same_everywhere() -> None:
    def function(x: Any, y: Any) -> Any:
        total = tpu_ops.cross_replica_sum(x, [[0, 1, 2]])
        return tf.sin(total), tf.cos(x), tf.tan(y), tf.exp(total + x)

    keep, definition = traced(function, X, X)
    analysis = analysis_of(definition, Passing.VARYING, Passing.SHARED)
    assert variances_of(analysis, "Sin") == [Variance.INVARIANT]
    assert variances_of(analysis, "Cos") == [Variance.VARYING]
    assert variances_of(analysis, "Tan") == [Variance.CHEAP_INVARIANT]
    assert variances_of(analysis, "Exp") == [Variance.VARYING]
    del keep


@pytest.mark.parametrize(
    ("value", "role", "diverges"),
    [
        (lambda x: tpu_ops.cross_replica_sum(x, [[0, 1, 2]]), Role.UPDATE, False),
        (lambda x: x, Role.COMPUTE, True),
        (lambda x: tf.constant(1.0), Role.COMPUTE, False),
        (lambda x: tpu_ops.cross_replica_sum(x, [[0], [1], [2]]), Role.COMPUTE, True),
    ],
)
def test_updates_of_a_mirrored_variable(value: Any, role: Role, diverges: bool) -> None:
    v = tf.Variable(0.0)
    keep, definition = traced(lambda x: v.assign_add(value(x)), X)
    analysis = analysis_of(definition, Passing.VARYING, Passing.MIRRORED)
    (update,) = [node for node in analysis.order if node.op == "AssignAddVariableOp"]
    assert analysis.roles[update.name] is role
    assert bool(analysis.diverged) is diverges
    del keep


def test_a_variable_that_diverges_later_was_never_the_same() -> None:
    v = tf.Variable(0.0)

    def function(x: Any) -> Any:
        before = tf.sin(v.read_value())
        v.assign(x)
        return before

    keep, definition = traced(function, X)
    analysis = analysis_of(definition, Passing.VARYING, Passing.MIRRORED)
    assert variances_of(analysis, "Sin") == [Variance.VARYING]
    del keep


def test_an_expansion_names_every_input_and_places_every_node() -> None:
    def function(x: Any, y: Any) -> Any:
        total = tpu_ops.cross_replica_sum(x * y, [[0, 1, 2]])
        return total, tf.cond(x > 0.0, lambda: x, lambda: y)

    keep, definition = traced(function, X, X)
    made = expanded(definition, CORES, Passing.VARYING, Passing.SHARED).definition
    inputs = [argument.name for argument in made.signature.input_arg]
    assert len(inputs) == 3 + 1
    assert len(made.signature.output_arg) == 2 * 3
    nodes = {node.name for node in made.node_def}
    assert len(nodes) == len(made.node_def)
    for node in made.node_def:
        assert node.device in {core for (core,) in CORES}
        for text in node.input:
            assert text.lstrip("^").partition(":")[0] in nodes | set(inputs)
    assert [node.op for node in made.node_def].count("AddN") == 1
    del keep


def test_an_expansion_grows_with_the_replicas_and_no_faster() -> None:
    v = tf.Variable(np.zeros(4, np.float32))

    def function(x: Any) -> Any:
        total = tpu_ops.cross_replica_sum(x, [list(range(count))])
        v.assign_add(tf.fill([4], total))
        return tf.exp(x) + total

    sizes = []
    for count in (8, 16, 32):
        keep, definition = traced(function, X)
        cores = [[f"/device:CPU:{k}"] for k in range(count)]
        made = expanded(definition, cores, Passing.VARYING, Passing.MIRRORED)
        sizes.append(made.definition.ByteSize())
        del keep
    assert sizes[2] - sizes[1] < 2.2 * (sizes[1] - sizes[0])
