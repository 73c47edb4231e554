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
Trace = Callable[..., FunctionDef]


def library(name: str) -> FunctionDef:
    return context.context().get_function_def(name)


@pytest.fixture
def traced() -> Trace:
    """Traces functions, which have to live as long as their definitions are used."""
    kept = []

    def trace(function: Callable[..., Any], *specs: Any) -> FunctionDef:
        kept.append(tf.function(function).get_concrete_function(*specs))
        return kept[-1].function_def

    return trace


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


def test_what_waits_for_an_argument_waits_for_what_gives_it(traced: Trace) -> None:
    def waits(x: Any) -> Any:
        with tf.control_dependencies([x]):
            return tf.constant(1.0)

    definition = traced(lambda x: (waits(x), tf.function(waits)(x), tf.function(waits)(-x)), X)
    flat = inlined(definition, library)
    names = [node.name for node in flat.node_def]
    waited = [text for node in flat.node_def for text in node.input if text.startswith("^")]
    assert {text.lstrip("^") for text in waited} <= {*names}
    assert "^Neg" in waited
    definition = expanded(definition, CORES, Passing.VARYING).definition
    assert len(definition.signature.output_arg) == 9


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


def test_what_follows_from_a_sum_is_the_same_everywhere(traced: Trace) -> None:
    def function(x: Any, y: Any) -> Any:
        total = tpu_ops.cross_replica_sum(x, [[0, 1, 2]])
        return tf.sin(total), tf.cos(x), tf.tan(y), tf.exp(total + x)

    definition = traced(function, X, X)
    analysis = analysis_of(definition, Passing.VARYING, Passing.SHARED)
    assert variances_of(analysis, "Sin") == [Variance.INVARIANT]
    assert variances_of(analysis, "Cos") == [Variance.VARYING]
    assert variances_of(analysis, "Tan") == [Variance.CHEAP_INVARIANT]
    assert variances_of(analysis, "Exp") == [Variance.VARYING]


@pytest.mark.parametrize(
    ("value", "role", "diverges"),
    [
        (lambda x: tpu_ops.cross_replica_sum(x, [[0, 1, 2]]), Role.UPDATE, False),
        (lambda x: x, Role.COMPUTE, True),
        (lambda x: tf.constant(1.0), Role.COMPUTE, False),
        (lambda x: tpu_ops.cross_replica_sum(x, [[0], [1], [2]]), Role.COMPUTE, True),
    ],
)
def test_updates_of_a_mirrored_variable(
    traced: Trace, value: Any, role: Role, diverges: bool
) -> None:
    v = tf.Variable(0.0)
    definition = traced(lambda x: v.assign_add(value(x)), X)
    analysis = analysis_of(definition, Passing.VARYING, Passing.MIRRORED)
    (update,) = [node for node in analysis.order if node.op == "AssignAddVariableOp"]
    assert analysis.roles[update.name] is role
    assert bool(analysis.diverged) is diverges


def test_an_expansion_grows_with_the_replicas_and_no_faster(traced: Trace) -> None:
    v = tf.Variable(np.zeros(4, np.float32))

    def function(x: Any) -> Any:
        total = tpu_ops.cross_replica_sum(x, [list(range(count))])
        v.assign_add(tf.fill([4], total))
        return tf.exp(x) + total

    sizes = []
    for count in (8, 16, 32):
        definition = traced(function, X)
        cores = [[f"/device:CPU:{k}"] for k in range(count)]
        made = expanded(definition, cores, Passing.VARYING, Passing.MIRRORED)
        sizes.append(made.definition.ByteSize())
        assert [node.op for node in made.definition.node_def].count("AddN") == 1
        assert {node.device for node in made.definition.node_def} == {core for (core,) in cores}
    assert sizes[2] - sizes[1] < 2.2 * (sizes[1] - sizes[0])
