"""A `tf.data` pipeline as its graph: stages with their statistics, and changed copies of it.

tf.data keeps a model of each iterator that tunes itself: the time and the elements of each stage.
The Python objects of a dataset cannot change, so a changed copy is made from the serialized graph.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tpunb.tensorflow.virtual.graph.function_def import called_functions
from tpunb.tensorflow.virtual.private_names import ModelProto

AUTOTUNE = tf.data.AUTOTUNE

_FUNCTION = re.compile(
    r"^__inference_(?:Dataset_(?:(?:flat_)?map|interleave|filter|scan|take_while|reduce)_)?"
)
_NO_NAME = re.compile(r"class|Dataset_")
"""The beginnings of names that TensorFlow gives to functions of classes and to its own."""

_BATCHING = re.compile(r"Batch(?!To)")
_TRANSFORMATION = re.compile(r"^(?:Parallel|Legacy|_?Anonymous)*(\w+?)(?:Dataset)?(?:V\d+)?$")
_METHODS = {
    "padded_batch": "batch",
    "finite_repeat": "repeat",
    "forever_repeat": "repeat",
    "file_cache": "cache",
    "file_cache_impl": "cache",
    "memory_cache": "cache",
    "memory_cache_impl": "cache",
    "tensor": "from_tensors",
    "from_tensor": "from_tensors",
    "tensor_slice": "from_tensor_slices",
    "generator": "from_generator",
    "tfrecord": "TFRecordDataset",
    "text_line": "TextLineDataset",
}
"""The users' names for stages whose operations have other names."""

_BETWEEN_LOOKS = 0.02
"""The seconds between looks, so that looking takes little of the measured time."""

_IGNORE_STATE = 1
"""`ExternalStatePolicy.IGNORE`: a function's counters go on counting."""

_CALLS_PYTHON = frozenset({"PyFunc", "EagerPyFunc", "PyFuncStateless"})
_OF_GENERATORS = "flat_map_fn"
"""TensorFlow's own function in `Dataset.from_generator`."""

_DECODES = frozenset({"DecodeJpeg", "DecodeImage", "DecodePng", "DecodeWebP"})
_RESIZES = frozenset({"ResizeBilinear", "ResizeNearestNeighbor", "ResizeBicubic", "ResizeArea"})
_RESIZES |= {"ScaleAndTranslate", "CropAndResize"}


@dataclasses.dataclass(frozen=True)
class StageStatistics:
    """A stage in tf.data's model of an iterator.

    Attributes:
        name: The transformation, with the user's function if it has one.
        seconds: The time that the stage worked.
        elements: The number of elements that it gave.
        workers: Its parallelism.
    """

    name: str
    seconds: float
    elements: int
    workers: int


class Pipeline:
    """A dataset and its graph.

    Args:
        dataset: The dataset.

    Raises:
        tf.errors.OpError: The dataset cannot be serialized.
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self._dataset = dataset
        graph = tf.raw_ops.DatasetToGraphV2(
            input_dataset=tf.data.experimental.to_variant(dataset),
            external_state_policy=_IGNORE_STATE,
            strip_device_assignment=True,
        )
        self._graph = tf.compat.v1.GraphDef.FromString(graph.numpy())
        self._functions = {
            function.signature.name: function for function in self._graph.library.function
        }

    @property
    def is_batched(self) -> bool:
        """True if a stage makes batches."""
        return any(_BATCHING.search(node.op) for node in self._graph.node)

    @property
    def operations(self) -> frozenset[str]:
        """The operations of the stages, such as `"MapDataset"`."""
        return frozenset(node.op for node in self._graph.node)

    @property
    def last(self) -> str:
        """The operation of the last stage, leaving out options."""
        nodes = {node.name: node for node in self._graph.node}
        node = next(node for node in self._graph.node if node.op == "_Retval")
        while node.op in {"_Retval", "OptionsDataset", "ModelDataset"}:
            node = nodes[node.input[0].partition(":")[0]]
        return str(node.op)

    def in_parallel(self) -> tf.data.Dataset | None:
        """Return the dataset with its serial maps on several threads; None if it has none."""
        graph = tf.compat.v1.GraphDef()
        graph.CopyFrom(self._graph)
        serial = [node for node in graph.node if node.op == "MapDataset"]
        if not serial:
            return None
        count = graph.node.add(name="tpunb_parallel_calls", op="Const")
        count.attr["dtype"].type = tf.int64.as_datatype_enum
        count.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(AUTOTUNE, tf.int64))
        for node in serial:
            node.op = "ParallelMapDatasetV2"
            node.input.append(count.name)
            node.attr["deterministic"].s = b"default"
            if "force_synchronous" in node.attr:
                del node.attr["force_synchronous"]
        variant = tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString())
        changed = tf.data.experimental.from_variant(variant, self._dataset.element_spec)
        return changed.with_options(self._dataset.options())

    def serial_maps(self) -> Iterator[str]:
        """Yield the names of functions that are mapped on one thread."""
        for node in self._graph.node:
            if node.op == "MapDataset":
                yield self._function(node)

    def maps_before_batches(self) -> Iterator[str]:
        """Yield the names of functions that are mapped over examples which are batched later."""
        batched = False
        for node in reversed(self._graph.node):
            batched |= bool(_BATCHING.search(node.op))
            if batched and "Map" in node.op and "Batch" not in node.op and "Flat" not in node.op:
                yield self._function(node)

    def functions_with(self, *kinds: frozenset[str]) -> Iterator[str]:
        """Yield the names of functions with an operation of each kind."""
        for node in self._graph.node:
            reached = self._reached(node)
            if reached and all(kind & reached for kind in kinds):
                yield self._function(node)

    @property
    def python(self) -> list[str]:
        """The names of the user's functions that call Python."""
        names = self.functions_with(_CALLS_PYTHON)
        return [name for name in names if name and name != _OF_GENERATORS]

    @property
    def has_generator(self) -> bool:
        """True if elements come from a Python generator."""
        return _OF_GENERATORS in self.functions_with(_CALLS_PYTHON)

    @property
    def decoding_for_resizing(self) -> list[str]:
        """The names of functions that decode images and resize them."""
        return [name for name in self.functions_with(_DECODES, _RESIZES) if name]

    def names(self) -> Mapping[str, list[str]]:
        """Return the users' functions by their transformations, from the last stage on."""
        functions: dict[str, list[str]] = collections.defaultdict(list)
        for node in reversed(self._graph.node):
            if name := self._function(node):
                functions[transformation(node.op)].append(name)
        return functions

    def _function(self, node: Any) -> str:
        """Return the name of a node's function, without TensorFlow's prefix and suffix."""
        names = called_functions(node)
        name = _FUNCTION.sub("", re.sub(r"_\d+$", "", names[0])) if names else ""
        return "" if _NO_NAME.match(name) else name

    def _reached(self, node: Any) -> frozenset[str]:
        """Return the operations of the functions that a node calls, directly or indirectly."""
        pending = called_functions(node)
        operations: set[str] = set()
        seen: set[str] = set()
        while pending:
            name = pending.pop()
            if name in seen or name not in self._functions:
                continue
            seen.add(name)
            for inner in self._functions[name].node_def:
                operations.add(inner.op)
                pending += called_functions(inner)
        return frozenset(operations)


def transformation(name: str) -> str:
    """Return the transformation of a stage: `"map"` for `"ParallelMapV2"` or `"MapDataset"`."""
    match = _TRANSFORMATION.match(name)
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", match[1] if match else name).lower()
    return _METHODS.get(words, words)


def with_statistics(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return the dataset with a stage for each transformation in the code, and a model of them."""
    options = tf.data.Options()
    options.autotune.enabled = True
    options.experimental_optimization.apply_default_optimizations = False
    return dataset.with_options(options)


class Statistics:
    """A pipeline whose stages are counted while it is read. It begins again when it ends.

    Composite tensors, such as ragged tensors, have no statistics here.

    Args:
        dataset: The pipeline.
        names: The result of `Pipeline.names`.

    Raises:
        NotImplementedError: This TensorFlow, or this dataset, has no statistics.
    """

    def __init__(self, dataset: tf.data.Dataset, names: Mapping[str, Sequence[str]]) -> None:
        specs = tf.nest.flatten(dataset.element_spec)
        is_plain = all(isinstance(spec, tf.TensorSpec) for spec in specs)
        if not is_plain or not hasattr(tf.raw_ops, "IteratorGetModelProto"):
            raise NotImplementedError
        self._dataset, self._names = with_statistics(dataset), names
        self._types = [spec.dtype for spec in specs]
        self._shapes = [spec.shape for spec in specs]
        self._passes: list[tuple[Sequence[StageStatistics], Sequence[StageStatistics]]] = []
        self._looked = 0.0

    def __iter__(self) -> Iterator[Any]:
        more = True
        while more:
            more = False
            for iterator in self._elements():
                more = True
                self._look(iterator)
                yield None

    def stages(self) -> list[StageStatistics]:
        """Return the stages' work after the first element of each pass, the last stage first.

        A pass with only one look counts as a whole.
        """
        worked = [differences(first, last) for first, last in self._passes]
        names = [[stage.name for stage in stages] for stages in worked]
        complete = [stages for stages, own in zip(worked, names, strict=True) if own == names[-1]]
        return [_sum(stages) for stages in zip(*complete, strict=True)]

    def _elements(self) -> Iterator[Any]:
        """Yield the iterator of a pass after each of its elements."""
        iterator = tf.raw_ops.AnonymousIteratorV3(
            output_types=self._types, output_shapes=self._shapes
        )
        variant = tf.data.experimental.to_variant(self._dataset)
        tf.raw_ops.MakeIterator(dataset=variant, iterator=iterator)
        self._looked = 0.0
        with contextlib.suppress(tf.errors.OutOfRangeError):
            while True:
                tf.raw_ops.IteratorGetNext(
                    iterator=iterator, output_types=self._types, output_shapes=self._shapes
                )
                yield iterator

    def _look(self, iterator: Any) -> None:
        """Record the work of the stages; tf.data forgets it at the end of a pass."""
        is_first = not self._looked
        if not is_first and time.monotonic() - self._looked < _BETWEEN_LOOKS:
            return
        self._looked = time.monotonic()
        model = tf.raw_ops.IteratorGetModelProto(iterator=iterator).numpy()
        work = stages_of(ModelProto.FromString(model), self._names)
        if is_first:
            self._passes.append((work, work))
        else:
            self._passes[-1] = (self._passes[-1][0], work)


def stages_of(model: Any, names: Mapping[str, Sequence[str]]) -> list[StageStatistics]:
    """Return the stages in tf.data's model of an iterator, the last first.

    Args:
        model: The model.
        names: The users' functions, by transformation, in the same order.
    """
    nodes: list[tuple[str, Any]] = []
    pending = [model.output]
    while pending:
        node = model.nodes[pending.pop(0)]
        pending += node.inputs
        if node.name != "Root":
            nodes.append((transformation(node.name), node))
    counts = collections.Counter(kind for kind, _ in nodes)
    used: collections.Counter[str] = collections.Counter()
    stages = []
    for kind, node in nodes:
        functions = names.get(kind, ())
        name = kind
        if len(functions) == counts[kind] and functions[used[kind]]:
            name = f"{kind}({functions[used[kind]]})"
        used[kind] += 1
        workers = [
            int(parameter.value) for parameter in node.parameters if parameter.name == "parallelism"
        ]
        seconds = node.processing_time / 1e9
        stages.append(StageStatistics(name, seconds, node.num_elements, max([1, *workers])))
    return stages


def differences(
    before: Sequence[StageStatistics], after: Sequence[StageStatistics]
) -> list[StageStatistics]:
    """Return the stages' work between two looks; since the start if there was only one look."""
    if before is after or [stage.name for stage in before] != [stage.name for stage in after]:
        return list(after)
    return [
        dataclasses.replace(
            new, seconds=new.seconds - old.seconds, elements=new.elements - old.elements
        )
        for old, new in zip(before, after, strict=True)
    ]


def _sum(stages: Sequence[StageStatistics]) -> StageStatistics:
    return dataclasses.replace(
        stages[-1],
        seconds=sum(max(stage.seconds, 0.0) for stage in stages),
        elements=sum(max(stage.elements, 0) for stage in stages),
    )
