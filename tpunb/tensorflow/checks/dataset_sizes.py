"""The largest sizes of a dataset's elements if their type leaves a size open.

`batch(n)` stores n in the dataset, but the type of the elements has None, because the last batch
may be smaller. Sizes that no transformation names are read from the first element. This happens
only if reading it has no side effects: no Python function is called, no file is written, no state
is changed.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tpunb.tensorflow.virtual.graph.tensorflow_graphs import add_functions_of
from tpunb.tensorflow.virtual.input.datasets import (
    BatchSizes,
    deserialized,
    inputs_of,
    is_recut,
    keeps_all_elements,
    keeps_elements,
    mapped_by,
    rows_of_batches,
    serialized,
    sizes_of_batching,
)
from tpunb.tensorflow.virtual.private_names import FuncGraph, op_def_registry

_READS_ONLY = frozenset(
    {"Assert", "LookupTableFindV2", "LookupTableSizeV2", "Multinomial", "ReadVariableOp"}
    | {"HashTableV2", "VarHandleOp", "_Arg", "_Retval"}
)
"""Stateful operations that leave no trace when they run, besides datasets and random numbers."""

_LEAVE_TRACES = ("Generator", "Snapshot", "Save", "DataService", "Iterator", "Dummy", "RemoteCall")
"""Datasets that do more than read: they call Python, write files or ask a server."""


@dataclasses.dataclass(frozen=True)
class DatasetBatch:
    """A batch of a dataset that is not read: its type and its largest sizes.

    Attributes:
        element_spec: The batch's type; a size that is not fixed is None.
        largest: The same type with the largest sizes that are known; others are None.
        dataset: The dataset.
        was_read: Whether the first batch had to be read for the sizes.
        is_full: Whether it is known that no batch is smaller.
    """

    element_spec: Any
    largest: Any
    dataset: Any = dataclasses.field(repr=False)
    was_read: bool = False
    is_full: bool = False

    def fixed(self) -> DatasetBatch:
        """Return this batch with its largest sizes, and with an unread dataset of such batches."""

        def of_largest(*element: Any) -> Any:
            value = element if isinstance(self.largest, tuple) else element[0]
            return tf.nest.map_structure(_ensured, value, self.largest)

        sized = self.dataset.map(of_largest)
        return dataclasses.replace(self, element_spec=self.largest, dataset=sized)

    @property
    def rows(self) -> int | None:
        """The number of rows of the largest batch; None if it is not known."""
        return next(
            (spec.shape[0] for spec in tf.nest.flatten(self.largest) if _has_rows(spec)), None
        )

    def with_batch(self, rows: int) -> DatasetBatch:
        """Return this batch with other numbers of rows; an open number stays open, up to `rows`."""

        def resized(spec: Any, largest: Any) -> Any:
            if not _has_rows(spec) or largest.shape[0] != self.rows:
                return spec
            return tf.TensorSpec([rows, *spec.shape[1:]], spec.dtype)

        def resized_if_fixed(spec: Any, largest: Any) -> Any:
            is_open = _has_rows(spec) and spec.shape[0] is None
            return spec if is_open else resized(spec, largest)

        return dataclasses.replace(
            self,
            element_spec=tf.nest.map_structure(resized_if_fixed, self.element_spec, self.largest),
            largest=tf.nest.map_structure(resized, self.largest, self.largest),
        )


def _has_rows(spec: Any) -> bool:
    return isinstance(spec, tf.TensorSpec) and bool(spec.shape.rank)


def _ensured(value: Any, spec: Any) -> Any:
    return tf.ensure_shape(value, spec.shape) if isinstance(spec, tf.TensorSpec) else value


def batch_of(dataset: tf.data.Dataset) -> DatasetBatch:
    """Return a description of a dataset's batch."""
    element = dataset.element_spec
    largest = tf.nest.pack_sequence_as(element, _named(dataset))
    is_read = not _is_known(largest) and tf.executing_eagerly()
    first = _first_shapes(dataset) if is_read else None
    if first is not None:
        largest = tf.nest.map_structure(_completed, largest, first)
    is_full = batch_sizes(dataset).last == 0
    return DatasetBatch(element, largest, dataset, was_read=first is not None, is_full=is_full)


def with_batches(args: Sequence[Any]) -> tuple[Any, ...]:
    """Return arguments with a `DatasetBatch` for each dataset."""
    return tuple(
        batch_of(argument) if isinstance(argument, tf.data.Dataset) else argument
        for argument in args
    )


def _is_known(specs: Any) -> bool:
    tensors = [spec for spec in tf.nest.flatten(specs) if isinstance(spec, tf.TensorSpec)]
    return all(spec.shape.is_fully_defined() for spec in tensors)


def _completed(spec: Any, other: Any) -> Any:
    """Return a type that takes its unknown sizes from another type."""
    if not isinstance(spec, tf.TensorSpec) or not isinstance(other, tf.TensorSpec):
        return spec
    if spec.shape.rank is None:
        return tf.TensorSpec(other.shape, spec.dtype)
    if spec.shape.rank != other.shape.rank:
        return spec
    sizes = [
        mine if mine is not None else theirs
        for mine, theirs in zip(spec.shape, other.shape, strict=True)
    ]
    return tf.TensorSpec(sizes, spec.dtype)


def batch_sizes(dataset: Any) -> BatchSizes:
    """Return the sizes of a dataset's batches, if it makes batches and keeps their sizes."""
    if keeps_all_elements(dataset):
        return batch_sizes(inputs_of(dataset)[0])
    if keeps_elements(dataset):
        return BatchSizes(batch_sizes(inputs_of(dataset)[0]).full)
    if mapped_by(dataset) is not None:
        sizes = batch_sizes(inputs_of(dataset)[0])
        return sizes if sizes.full in _numbers_of_rows(dataset) else BatchSizes()
    return sizes_of_batching(dataset)


def _numbers_of_rows(dataset: Any) -> set[int | None]:
    """Return the only number of rows of a dataset's batches; empty if components differ."""
    numbers = {spec.shape[0] for spec in _named(dataset) if _has_rows(spec)}
    return numbers if len(numbers) == 1 else set()


# The sizes that transformations name.


def _named(dataset: Any) -> list[Any]:
    """Return the types of an element's components, with the sizes that the dataset names."""
    own: list[Any] = tf.nest.flatten(dataset.element_spec)
    if _is_known(own):
        return own
    inputs, kind = inputs_of(dataset), type(dataset).__name__.lstrip("_")
    if keeps_elements(dataset):
        specs = _named(inputs[0])
    elif (rows := rows_of_batches(dataset)) is not None:
        specs = _in_batches(own, rows, _named(inputs[0]), stacked=not is_recut(dataset))
    elif (function := mapped_by(dataset)) is not None:
        specs = _mapped(function, inputs)
    elif kind == "ZipDataset":
        specs = [spec for dataset in inputs for spec in _named(dataset)]
    elif kind == "ConcatenateDataset":
        specs = [_larger(*pair) for pair in zip(*map(_named, inputs), strict=True)]
    else:
        return own
    if len(specs) != len(own):
        return own
    return [_completed(*pair) for pair in zip(own, specs, strict=True)]


def _in_batches(own: list[Any], rows: int, inputs: list[Any], *, stacked: bool) -> list[Any]:
    """Return the types of batches with this number of rows, made of elements or other batches."""
    batched = []
    for spec, single in zip(own, inputs, strict=True):
        if not _has_rows(spec):
            batched.append(spec)
            continue
        inner: Sequence[int | None] = spec.shape[1:]
        if isinstance(single, tf.TensorSpec) and single.shape.rank is not None:
            sizes = single.shape.as_list() if stacked else single.shape.as_list()[1:]
            inner = [a if a is not None else b for a, b in zip(inner, sizes, strict=True)]
        batched.append(tf.TensorSpec([rows, *inner], spec.dtype))
    return batched


def _larger(spec: Any, other: Any) -> Any:
    """Return a type for elements of two types: each size is the larger of the two."""
    if not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None:
        return spec
    if not isinstance(other, tf.TensorSpec) or other.shape.rank != spec.shape.rank:
        return spec
    pairs = zip(spec.shape, other.shape, strict=True)
    return tf.TensorSpec([None if None in pair else max(pair) for pair in pairs], spec.dtype)


def _mapped(graph: FuncGraph, inputs: Sequence[Any]) -> list[Any]:
    """Return the types that TensorFlow infers for a function's results on the inputs' elements."""
    element = [spec for dataset in inputs for spec in _named(dataset)]
    inferred = FuncGraph("element")
    with inferred.as_default():
        arguments = {}
        for tensor, spec in itertools.zip_longest(graph.inputs, element[: len(graph.inputs)]):
            known = isinstance(spec, tf.TensorSpec) and spec.dtype == tensor.dtype
            shape = spec.shape if known else tensor.shape
            arguments[tensor.name] = tf.compat.v1.placeholder(tensor.dtype, shape)
        add_functions_of(inferred, graph)
        names = [tensor.name for tensor in graph.outputs]
        try:
            outputs = tf.graph_util.import_graph_def(
                graph.as_graph_def(), input_map=arguments, return_elements=names, name=""
            )
        except ValueError:  # the function does not take this size
            return []
    return [tf.TensorSpec(output.shape, output.dtype) for output in outputs]


# The first batch.


def _first_shapes(dataset: tf.data.Dataset) -> Any:
    """Return the types of the first element; None if it is not read."""
    try:
        definition = serialized(dataset)
        if not _only_reads(definition):
            return None
        _unshuffle(definition)
        first = next(iter(deserialized(definition, dataset.element_spec)), None)
    except (tf.errors.OpError, ValueError, TypeError):
        logging.getLogger("tpunb.virtual").debug("The first batch is not read.", exc_info=True)
        return None
    if first is None:
        return None
    return tf.nest.map_structure(
        lambda component: (
            tf.TensorSpec(component.shape, component.dtype)
            if isinstance(component, tf.Tensor)
            else None
        ),
        first,
    )


def _only_reads(definition: Any) -> bool:
    """Return whether running a dataset's operations leaves no trace."""
    functions = definition.library.function
    nodes = itertools.chain(definition.node, *(function.node_def for function in functions))
    own = {function.signature.name for function in functions}
    constants = {node.name: node for node in definition.node if node.op == "Const"}
    return all(node.op in own or _leaves_no_trace(node, constants) for node in nodes)


def _leaves_no_trace(node: Any, constants: Any) -> bool:
    kind = node.op
    if "Dataset" in kind:
        if kind.startswith("CacheDataset"):
            name = constants.get(node.input[1])
            return name is not None and not any(name.attr["value"].tensor.string_val)
        return not kind.startswith(_LEAVE_TRACES)
    definition = op_def_registry.get(kind)
    if definition is None:
        return False
    return not definition.is_stateful or kind in _READS_ONLY or "Random" in kind


def _unshuffle(definition: Any) -> None:
    """Make a dataset read its elements in order: filling a shuffle buffer may take minutes."""
    sources = {
        node.name: node.input[0] for node in definition.node if node.op.startswith("ShuffleDataset")
    }
    for node in definition.node:
        for place, name in enumerate(node.input):
            while name in sources:
                name = sources[name]
            node.input[place] = name
