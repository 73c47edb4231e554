"""Arguments and results of a replica function: a TPU's requirements, and ways to pass them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb.tensorflow.virtual.graph.traced_function import TracedFunction
from tpunb.tensorflow.virtual.private_names import (
    EagerTensor,
    is_flat,
    ops,
    tensor_util,
    variable_utils,
)
from tpunb.tensorflow.virtual.refused_errors import error_of_rule
from tpunb.tensorflow.virtual.replicate.trace import TracedVariable
from tpunb.tensorflow.virtual.replicate.variance import Argument, Passing

_MESSAGE = (
    "Shape mismatch in the collective instance: gather on a TPU wants values of the same shape on "
    "all replicas"
)

# TensorFlow 2.21: `Dimension 0 in both shapes must be equal, but are 2 and 3. … for '{{node
# CrossReplicaSum}} = AddN[N=2, T=DT_FLOAT, …](…)' with input shapes: [2], [3].`
_UNEQUAL = re.compile(
    r"node (?P<node>(?:\S+/)?CrossReplicaSum[^\s/}]*)[^\n]* = AddN\[[^\n]*with input shapes: "
    r"(?P<shapes>[^\n]*)\."
)


def of_one_shape(values: Sequence[Any]) -> list[Any]:
    """Refuse values whose shapes differ between replicas.

    `tf.distribute.Strategy.gather`: "for `tf.distribute.TPUStrategy.gather`, all tensors must have
    exactly the same rank and same shape". Values of different rank are left to TensorFlow, which
    refuses them everywhere.

    Raises:
        tf.errors.InvalidArgumentError: The shapes differ.
    """
    tensors = [tf.convert_to_tensor(value) for value in values]
    shapes = [tensor.shape for tensor in tensors]
    if len({shape.rank for shape in shapes}) > 1:
        return tensors
    for replica, shape in enumerate(shapes):
        if not shape.is_compatible_with(shapes[0]):
            raise error_of_rule(tf.errors.InvalidArgumentError, "gather-shapes")(
                None,
                None,
                f"{_MESSAGE}: it is {shapes[0]} on replica 0 and {shape} on replica {replica}.",
            )
    if all(shape.is_fully_defined() for shape in shapes):
        return tensors
    first = tf.shape(tensors[0])
    checks = [
        tf.debugging.assert_equal(tf.shape(tensor), first, message=f"{_MESSAGE}.")
        for tensor in tensors[1:]
    ]
    with tf.control_dependencies(checks):
        return [tf.identity(tensor) for tensor in tensors]


def refuse_unequal_shapes(error: ValueError) -> None:
    """Refuse a collective of values whose shapes differ, if TensorFlow's error reports that.

    Raises:
        tf.errors.InvalidArgumentError: The error reports it.
    """
    if match := _UNEQUAL.search(str(error)):
        raise tf.errors.InvalidArgumentError(
            None,
            None,
            "A collective in a replica function wants values of the same shape on all replicas, "
            f"and they are {match['shapes']} (CrossReplicaSum `{match['node']}`). If a last batch "
            "is smaller, combine values of one shape, such as `tf.reduce_sum(x)`, use "
            "`drop_remainder=True`, or pad them.",
        ) from error


# `tpu.replicate` passes this type for an argument that is None.
_NOTHING = tf.int32


def check_ranks(inputs: Sequence[Any]) -> None:
    """Refuse an argument whose rank is unknown when batches may be of any size.

    Raises:
        ValueError: The rank is unknown. The message is TensorFlow's.
    """
    for value in tf.nest.flatten(inputs):
        rank = value.shape.rank if tensor_util.is_tf_type(value) else np.ndim(value)
        if rank is None:
            raise error_of_rule(ValueError, "unknown-rank")(
                f"input tensor {value} to TPUStrategy.run() has unknown rank, which is not allowed"
            )


def columns_of(inputs: Sequence[Any]) -> list[list[Any]]:
    """Return each tensor of the arguments with its value on every replica; None stays None.

    Raises:
        ValueError: The replicas' arguments differ in structure or in types.
        TypeError: They differ in the types of their containers.
    """
    for replica_inputs in inputs[1:]:
        tf.nest.assert_same_structure(inputs[0], replica_inputs)
    columns = [_as_tensors(column) for column in zip(*map(_flat, inputs), strict=True)]
    first = [_type(column[0]) for column in columns]
    for replica in range(1, len(inputs)):
        types = [_type(column[replica]) for column in columns]
        if types != first:
            raise ValueError(
                "Replicas must have matching input types. Replica 0 had "
                f"input types {first}, replica {replica} had input types {types}"
            )
    for column in columns:
        if any(value is None for value in column) and column[0] is not None:
            raise ValueError("An argument is None on some replicas and a tensor on others.")
    return columns


def _flat(nest: Any) -> list[Any]:
    return list(tf.nest.flatten(nest, expand_composites=True))


def _as_tensors(column: Sequence[Any]) -> list[Any]:
    if all(value is column[0] for value in column):
        return [None if column[0] is None else tf.convert_to_tensor(column[0])] * len(column)
    # Converting a tensor makes it an input of the graph, even if another tensor replaces it.
    return [
        value if value is None or isinstance(value, tf.Tensor) else tf.convert_to_tensor(value)
        for value in column
    ]


def _type(value: Any) -> tf.DType:
    return _NOTHING if value is None else value.dtype


def checked_result(result: Any) -> Any:
    """Return a replica's result as tensors, without the operations that only run.

    Returns:
        The same structure of tensors, composite tensors and None; None for an operation.

    Raises:
        ValueError: With TensorFlow's message, something is not a tensor, or an operation is not
            allowed at its place.
    """
    if result is None or isinstance(result, tf.Operation):
        return None
    result = variable_utils.convert_variables_to_tensors(result)
    flat = _flat(result)
    if not is_flat(result):
        _refuse_operations(flat)
        return tf.nest.pack_sequence_as(
            result, [_tensor(value, '"') for value in flat], expand_composites=True
        )
    flat = [value if isinstance(value, tf.Operation) else _tensor(value) for value in flat]
    tensors = [value for value in flat if not isinstance(value, tf.Operation)]
    if any(isinstance(value, tf.Operation) for value in flat[: len(tensors)]):
        raise ValueError(
            "TPU functions must return zero-or more Tensor values followed by "
            "zero or more Operations."
        )
    if isinstance(result, list):
        result = [value for value in result if not isinstance(value, tf.Operation)]
    return tf.nest.pack_sequence_as(result, tensors, expand_composites=True)


def _refuse_operations(flat: Sequence[Any]) -> None:
    for value in flat:
        if isinstance(value, tf.Operation):
            raise ValueError(
                "tpu.rewrite does not support Operation as return value in non-flat "
                "output structure. You can set returned Operations as control "
                "dependencies of returned Tensors so Operations are triggered when "
                f'Tensors are evaluated. Operation found: "{value.name}"'
            )


def _tensor(value: Any, quote: str = "") -> Any:
    if value is None or tf.is_tensor(value):
        return value
    try:
        return tf.convert_to_tensor(value)
    except Exception as error:
        raise ValueError(
            "TPU function return values must all either be Operations or "
            f"convertible to Tensors. Got error: {quote}{error}{quote}"
        ) from error


_MOST_BYTES = 2**26
"""The limit for stacking values that exist already, because a stack is a second copy."""


def _stacked(column: Sequence[Any], devices: Sequence[Sequence[str]]) -> Any | None:
    """Return the values of all replicas along a new axis 0, if that costs a step nothing.

    It costs nothing for values that never change: captured values, and numbers such as the
    replica's own. It costs nothing either for parts of one tensor from an input pipeline.
    """
    if len({device for logical in devices for device in logical}) > 1 or len(column) < 2:
        return None
    if column[0].dtype in {tf.resource, tf.variant} or not isinstance(column[0], tf.Tensor):
        return None
    device = devices[0][0]
    if all(isinstance(value, EagerTensor) for value in column):
        return _of_eager(column, device)
    if any(isinstance(value, EagerTensor) for value in column):
        return None
    operations = {value.op.type for value in column}
    if operations == {"Const"}:
        return _of_constants(column)
    return _unstacked(column) if operations == {"Unpack"} else None


def _of_eager(column: Sequence[Any], device: str) -> Any | None:
    if len({tuple(value.shape) for value in column}) > 1:
        return None
    size = column[0].shape.num_elements() * column[0].dtype.size * len(column)
    if size > _MOST_BYTES or not ops.executing_eagerly_outside_functions():
        return None
    with ops.init_scope(), tf.device(device):
        return tf.stack(column) if tf.executing_eagerly() else None


def _of_constants(column: Sequence[Any]) -> Any | None:
    values = [tf.get_static_value(value) for value in column]
    if any(value is None for value in values) or len({np.shape(value) for value in values}) > 1:
        return None
    return tf.constant(np.stack(values), column[0].dtype)


def _unstacked(column: Sequence[Any]) -> Any | None:
    """Return the tensor that consists of exactly these parts along axis 0, in their order."""
    unpack = column[0].op
    whole = unpack.get_attr("axis") == 0 and len(unpack.outputs) == len(column)
    indices = {id(part): index for index, part in enumerate(unpack.outputs)}
    order = [indices.get(id(part)) for part in column]
    if not whole or None in order or len(set(order)) < len(order):
        return None
    if order == list(range(len(order))):
        return unpack.inputs[0]
    return tf.gather(unpack.inputs[0], order)


def passed_to(
    traced: TracedFunction, columns: Sequence[Sequence[Any]], devices: Sequence[Sequence[str]]
) -> tuple[dict[str, Argument], dict[str, Sequence[Any]]]:
    """Return the arguments of a traced function: the call's arguments, then the captures.

    Args:
        traced: The function.
        columns: The arguments of the call, each with its value on every replica.
        devices: The devices that compute for each replica.

    Returns:
        For each argument, by its name: how it reaches the replicas, and the values that are passed
            for it. These are one value for all replicas, or one for each; for a variable, its
            handles.
    """
    graph = traced.graph
    external = {id(inner): outer for outer, inner in graph.captures}
    names = [argument.name for argument in traced.definition.signature.input_arg]
    passed = {
        name: _of_column(column, devices) for name, column in zip(names, columns, strict=False)
    }
    captured = graph.inputs[len(columns) :]
    for name, placeholder in zip(names[len(columns) :], captured, strict=True):
        variable = graph.tracing.variables.get(id(placeholder))
        if variable is None:
            passed[name] = Argument(Passing.SHARED), [external[id(placeholder)]]
        else:
            passed[name] = _of_variable(variable)
    arguments = {name: argument for name, (argument, _) in passed.items()}
    return arguments, {name: values for name, (_, values) in passed.items()}


def _of_column(
    column: Sequence[Any], devices: Sequence[Sequence[str]]
) -> tuple[Argument, Sequence[Any]]:
    if len(column) > 1 and all(value is column[0] for value in column):
        return Argument(Passing.SHARED), column[:1]
    whole = _stacked(column, devices)
    if whole is not None:
        return Argument(Passing.STACKED), [whole]
    return Argument(Passing.VARYING), column


def _of_variable(variable: TracedVariable) -> tuple[Argument, Sequence[Any]]:
    passing = Passing.MIRRORED if variable.mirrored else Passing.LOCAL
    copies = variable.together
    if copies is not None:
        # Its copies may have become separate since it was traced.
        handles, are_together = copies.handles(), copies.are_together
        copies.used |= are_together
        return Argument(passing, key=variable.key, traced_together=are_together), handles
    argument = Argument(
        passing,
        key=variable.key if variable.mirrored else "",
        home=variable.home,
        copy_type=variable.dtype,
    )
    return argument, [*variable.handles, *variable.copies]
