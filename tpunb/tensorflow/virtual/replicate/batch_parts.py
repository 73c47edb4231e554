"""Batches of unknown size, cut into a part for each replica, and their probable size.

To join the replicas' work, the size of their parts must be known. A dataset predicts it:
`batch(128)` gives each of 8 replicas 16 examples, except in the last batch. This is a guess. A
function for all replicas compares it with the actual sizes, so a wrong guess only makes the
function slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tpunb.tensorflow.virtual.graph.tensorflow_graphs import (
    add_functions_of,
    named_operations,
    set_attr,
)
from tpunb.tensorflow.virtual.private_names import (
    AttrValue,
    FuncGraph,
    FunctionDef,
    distribute_values,
    function_def_to_graph_def,
    handle_data_util,
)
from tpunb.tensorflow.virtual.replicate.workarounds import CONVOLUTIONS


class BatchParts(distribute_values.PerReplica):  # type: ignore[misc]
    """A `PerReplica` of parts of a batch.

    If a function is called with a plain `PerReplica`, as in Keras's training step, TensorFlow
    passes each part by itself. Inside the function they would no longer be recognizable as parts.

    Args:
        whole: The batch.
        sizes: The sizes of its parts along axis 0, of shape [replicas].
        order: The index of each replica's part.
        usual: The size of every part of most batches; None if it is not known.
    """

    def __init__(
        self, whole: tf.Tensor, sizes: tf.Tensor, order: Sequence[int], usual: int | None = None
    ) -> None:
        self.whole = whole
        self.sizes = sizes
        self.order = tuple(order)
        self.usual = usual
        super().__init__(self.parts())
        if not tf.executing_eagerly():
            for part in self.values:
                part._tpunb_batch = self

    def parts(self) -> list[tf.Tensor]:
        """Return each replica's part, cut in the graph that is being built."""
        if _known_size(self.whole, self.order, self.usual) is not None:
            parts = tf.unstack(self._in_usual_parts())
        else:
            parts = tf.raw_ops.SplitV(
                value=self.whole, size_splits=self.sizes, axis=0, num_split=len(self.order)
            )
        return [parts[index] for index in self.order]

    def stacked(self) -> tf.Tensor:
        """Return the replicas' parts along a new axis 0; they must have the usual size."""
        parts = self._in_usual_parts()
        in_order = self.order == tuple(range(len(self.order)))
        return parts if in_order else tf.gather(parts, self.order)

    def _in_usual_parts(self) -> tf.Tensor:
        return tf.reshape(self.whole, [len(self.order), self.usual, *self.whole.shape[1:]])

    @property
    def _type_spec(self) -> BatchPartsSpec:
        return BatchPartsSpec(tf.TensorSpec.from_tensor(self.whole), self.order, self.usual)


class BatchPartsSpec(distribute_values.PerReplicaSpec):  # type: ignore[misc]
    """The type of `BatchParts`; a trace for batches of one usual size is right for others."""

    __slots__ = ["_order", "_part", "_usual", "_whole"]

    def __init__(
        self, whole: tf.TensorSpec, order: Sequence[int], usual: int | None = None
    ) -> None:
        size = _known_size(whole, order, usual)
        self._part = tf.TensorSpec([size, *whole.shape[1:]], whole.dtype)
        super().__init__(*[self._part] * len(order))
        self._whole = tf.TensorSpec(whole.shape, whole.dtype)
        self._order = tuple(order)
        self._usual = usual

    @property
    def value_type(self) -> type:
        """The class of the values of this type."""
        return BatchParts

    def _serialize(self) -> tuple[Any, ...]:
        # Types ignore the usual size, which is a guess, but not a size that all batches have.
        return self._whole, self._order, self._part.shape[0]

    @property
    def _component_specs(self) -> list[tf.TensorSpec]:
        return [self._whole, tf.TensorSpec([len(self._order)], tf.int32)]

    def _to_components(self, value: BatchParts) -> list[tf.Tensor]:
        return [value.whole, value.sizes]

    def _from_components(self, components: Sequence[tf.Tensor]) -> BatchParts:
        whole, sizes = components
        return BatchParts(whole, sizes, self._order, self._usual)

    def is_subtype_of(self, other: Any) -> bool:
        """Return whether a function traced for another type is right for this type."""
        if type(other) is distribute_values.PerReplicaSpec:
            return bool(self._of_any_parts().is_subtype_of(other))
        return bool(super().is_subtype_of(other))

    def most_specific_common_supertype(self, others: Sequence[Any]) -> Any:
        """Return a type that a trace for all these types can use; None if none exists."""
        if all(type(other) is BatchPartsSpec for other in others):
            return super().most_specific_common_supertype(others)
        plain = [spec._of_any_parts() if type(spec) is BatchPartsSpec else spec for spec in others]
        return self._of_any_parts().most_specific_common_supertype(plain)

    def _of_any_parts(self) -> Any:
        """Return the type of values that need not be parts of one batch."""
        return distribute_values.PerReplicaSpec(*[self._part] * len(self._order))


def _known_size(whole: Any, order: Sequence[int], usual: int | None) -> int | None:
    """Return the size of every part if no batch of another size has this type; None otherwise."""
    is_full = usual is not None and whole.shape[0] == len(order) * usual
    return usual if is_full else None


def cut_batches(columns: Sequence[Sequence[Any]]) -> dict[int, BatchParts]:
    """Return the arguments that are parts of batches whose usual size is known.

    Returns:
        The batches, by the indices of the arguments. It is empty unless all arguments of unknown
        size are such parts, and only the first axis is unknown.
    """
    batches: dict[int, BatchParts] = {}
    for index, column in enumerate(columns):
        if all(value.shape.is_fully_defined() for value in column):
            continue
        batch = getattr(column[0], "_tpunb_batch", None)
        if batch is None or not batch.usual or len(batch.values) != len(column):
            return {}
        are_its_parts = all(value is part for value, part in zip(column, batch.values, strict=True))
        if not are_its_parts or not batch.whole.shape[1:].is_fully_defined():
            return {}
        batches[index] = batch
    return batches


def graph_of_usual_size(
    graph: FuncGraph, definition: FunctionDef, batches: Mapping[int, BatchParts]
) -> FuncGraph | None:
    """Return a replica function with shapes that TensorFlow infers for parts of the usual size.

    It is not traced again: Python code that runs while it is traced runs once.

    Returns:
        The graph of the definition; None if the function is not for parts of that size.
    """
    inferred = FuncGraph(f"{graph.name}_of_usual_size")
    with inferred.as_default():
        for index, traced in enumerate(graph.inputs):
            batch, shape = batches.get(index), traced.shape
            if batch is not None:
                shape = tf.TensorShape([batch.usual, *batch.whole.shape[1:]])
            placeholder = tf.compat.v1.placeholder(traced.dtype, shape)
            handle_data_util.copy_handle_data(traced, placeholder)
            inferred.inputs.append(placeholder)
        add_functions_of(inferred, graph)
        nodes, _ = function_def_to_graph_def(definition)
        names = [f"{argument.name}:0" for argument in definition.signature.input_arg]
        arguments = dict(zip(names, inferred.inputs, strict=True))
        try:
            tf.graph_util.import_graph_def(nodes, input_map=arguments, name="")
        except ValueError:
            return None
    return inferred


def are_as_usual(batches: Iterable[BatchParts]) -> tf.Tensor:
    """Return whether all parts of batches are of the usual size: a scalar of type bool."""
    known = {id(batch.sizes): tf.equal(batch.sizes, batch.usual) for batch in batches}
    return tf.reduce_all(tf.stack(list(known.values())))


def chosen(condition: tf.Tensor, this: Callable[[], Any], other: Callable[[], Any]) -> list[Any]:
    """Return the result of one of two functions; the other is not run."""
    # TensorFlow's conditional needs an output: the constant, which is dropped below.
    both = [lambda function=function: [tf.constant(0), *function()] for function in (this, other)]
    outputs = tf.cond(condition, *both)
    operation = outputs[0].op
    while operation.type not in {"If", "StatelessIf"}:
        operation = operation.inputs[0].op
    # Not lowered into the graph around it, which would visit the nodes of both branches.
    set_attr(operation, "_lower_using_switch_merge", AttrValue(b=False))
    return list(outputs[1:])


def unknown_sizes(graph: FuncGraph) -> dict[str, tuple[int, ...]] | None:
    """Return the convolutions of a replica function whose batch is of unknown size.

    Returns:
        The shapes of their results, with -1 for the batch, by the names that the nodes have when
        all calls are inlined. Shapes with other unknown sizes are left out. None if the function
        takes no tensor of unknown size.
    """
    known = all(
        tensor.dtype == tf.resource
        or (tensor.shape.is_fully_defined() and 0 not in tensor.shape.as_list())
        for tensor in graph.inputs
    )
    if known:
        return None
    shapes: dict[str, tuple[int, ...]] = {}
    for name, operation in named_operations(graph):
        if operation.type in CONVOLUTIONS:
            shape = operation.outputs[0].shape
            batch, *rest = shape.as_list() if shape.rank else [0]
            if not batch and None not in rest and 0 not in rest:
                shapes[name] = (-1, *rest)
    return shapes
