"""Sizes that are not fixed, which a TPU with several replicas sees as bounded, and their refusals.

TensorFlow pads such an argument to the largest size that any replica has, and tells XLA the real
size: see `_pad_all_input` in TensorFlow's python/tpu/tpu.py. A dataset without
`drop_remainder=True` has such batches from the first step on.
"""

from __future__ import annotations

import re

from tpunb._util.units import grouped
from tpunb.errors.code_problems import Problem
from tpunb.tensorflow.virtual.graph.traced_function import TracedFunction
from tpunb.tensorflow.virtual.strict.lowering import Refused, lower_with_bounds
from tpunb.tensorflow.virtual.strict.stand_ins import LEAST_BOUND, Host

_NOT_IN_LOOP = (
    "Read it with `next(iterator)`: in a `tf.function`, `for batch in distributed` fixes no size."
)
RULE = "dynamic-batch"
"""The name of the rule."""

FIXED_BATCH = "`dataset.batch(n, drop_remainder=True)` with a multiple of the number of replicas"
FIXED_INNER = (
    "images and sequences of one size: `tf.image.resize` or "
    "`padded_batch(n, padded_shapes=..., drop_remainder=True)`"
)


def refused_for_open_sizes(traced: TracedFunction, host: Host) -> Problem | None:
    """Return why a function compiles with fixed sizes, but not with its own; None if it compiles.

    If TensorFlow's compiler crashes, the problem is `unchecked`.

    Args:
        traced: The function; some of its arguments have sizes that are not fixed.
        host: The nodes that run on the host, and their results.

    Raises:
        Unknown: It cannot be compiled by itself.
    """
    refused = lower_with_bounds(traced, host)
    return lowering_refusal(traced, refused) if isinstance(refused, Refused) else refused


def lowering_refusal(traced: TracedFunction, refused: Refused) -> Problem:
    """Return the problem that TensorFlow cannot lower a function whose sizes are not fixed."""
    first = refused.message.partition("\n")[0].partition(" Please file a bug")[0].rstrip(".")
    return open_size_problem(traced, "TensorFlow", first, refused.message, refused.node)


def libtpu_refusal(traced: TracedFunction, message: str, node: str) -> Problem:
    """Return the problem that the TPU's compiler refuses a function whose sizes are not fixed."""
    first = message.partition("\n")[0].partition(": %")[0].rstrip(".")
    node = node or _named_in(message, traced)
    return open_size_problem(traced, "the TPU's compiler", first, message, node)


# libtpu 0.0.52: `CustomCall "Cholesky" is not supported to have a dynamic dimension`.
# Others are called "QrDecompositionBlock" and "EighTpu".
_CALL = re.compile(r'CustomCall "([A-Z][a-z]+)')
_ALGEBRA = re.compile(r"Matrix|Cholesky|Qr|Lu|Svd|Eig|Determinant")
_GATHERS = re.compile(r"Gather")


def _named_in(message: str, traced: TracedFunction) -> str:
    """Return the first node of the operation that libtpu describes without its name, or `""`."""
    call = _CALL.search(message)
    patterns = [re.compile(call[1]), _ALGEBRA] if call else []
    patterns += [_GATHERS] if "gather" in message else []
    nodes = traced.definition.node_def
    names = (node.name for pattern in patterns for node in nodes if pattern.search(node.op))
    return next(names, "")


def of_bounds(traced: TracedFunction) -> str:
    """Return a sentence with the sizes at which a function with open sizes is compiled."""
    index = next(iter(traced.open_axes))
    sizes = [traced.shapes[index][axis] for axis in traced.open_axes[index]]
    largest = " and ".join(grouped(max(size, LEAST_BOUND)) for size in sizes)
    return f"{what_is_open(traced)}: a TPU pads it. It is compiled for at most {largest} a replica."


def no_size(traced: TracedFunction) -> str:
    """Return why nothing is known of the memory that a function takes, and what to write."""
    batch, inner = _open_sizes(traced)
    if batch:
        return (
            "the batch has no size. Pass `dataset.batch(n, "
            "drop_remainder=True)`, or a `tf.TensorSpec` with the batch as its first size."
        )
    unknown = "a size of an input is not known" if inner else "a size is not known"
    return (
        f"{unknown}. Pass a dataset whose elements have one size, or a `tf.TensorSpec` with all "
        "sizes."
    )


def open_size_problem(
    traced: TracedFunction, who: str, reason: str, message: str, node: str
) -> Problem:
    """Return the problem that a compiler does not take sizes that are not fixed.

    Args:
        traced: The function.
        who: The compiler, as the subject of a sentence.
        reason: The compiler's reason, in one line.
        message: The compiler's whole message.
        node: The node that the message is about; empty if it names none.
    """
    op = next(
        (candidate.op for candidate in traced.definition.node_def if candidate.name == node), ""
    )
    operation = op or "an operation"
    cause = (
        f"{what_is_open(traced)}, and {who} cannot compile {operation} with such a size: {reason}."
    )
    return Problem(RULE, cause, how_to_fix(traced), message=message, node=node, op=op)


def what_is_open(traced: TracedFunction) -> str:
    """Return which sizes are not fixed: `The batch is not fixed (float32[?, 784])`."""
    batch, inner = _open_sizes(traced)
    index = next(iter(traced.open_axes))
    tensor = traced.graph.inputs[index]
    sizes = ", ".join("?" if size is None else str(size) for size in tensor.shape)
    shown = f"{tensor.dtype.name}[{sizes}]"
    if batch and inner:
        return f"The batch and other sizes are not fixed ({shown})"
    return f"{'The batch' if batch else 'A size of an input'} is not fixed ({shown})"


def how_to_fix(traced: TracedFunction) -> str:
    """Return how to make the open sizes fixed."""
    batch, inner = _open_sizes(traced)
    ways = [FIXED_BATCH] * batch + [FIXED_INNER] * inner
    way = f"Use {', and '.join(ways)}."
    return f"{way} {_NOT_IN_LOOP}" if traced.in_loop else way


def _open_sizes(traced: TracedFunction) -> tuple[bool, bool]:
    """Return whether a first size is not fixed, and whether another size is not."""
    axes = {axis for open_axes in traced.open_axes.values() for axis in open_axes}
    return 0 in axes, bool(axes - {0})
