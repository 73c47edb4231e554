"""A replica function with stand-ins for what is not the compiler's.

Cross-replica operations give way to operations of the same shape, and what runs on
the host by soft device placement to arguments.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tpunb.virtual._tensorflow import FunctionDef, NodeDef, dtypes
from tpunb.virtual.replicate.graphs import (
    COLLECTIVES,
    Library,
    called_functions,
    has_collectives,
    needed,
)
from tpunb.virtual.replicate.nodes import int32_tensor, make_identity
from tpunb.virtual.strict.collective_marks import mark

__all__ = ["ANY_SIZE", "OUTSIDE", "RESIZES", "CompilerFunctions", "Host", "Parameter"]

_names = itertools.count()

ANY_SIZE = 8
"""What stands for a size that is known only when the step runs."""

RESIZES = frozenset({"ResizeBilinearGrad", "ResizeNearestNeighborGrad"})
"""Gradients of resizing images, for which TPUs have kernels of their own and XLA has none.

Source: tensorflow/core/tpu/kernels/image_resize_ops.cc, in TensorFlow since 2020.
"""

OUTSIDE = "_xla_outside_compilation"
"""What `tf.compat.v1.tpu.outside_compilation` marks runs on the host, as it was asked to."""

Host = Mapping[str, Mapping[str, tf.TensorSpec]]
"""Nodes that run on the host; what each gives, by the end of the reference to it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """An argument of the replica function.

    Attributes:
        spec: Its shape and type; sizes may be unknown. None for a variable.
        handle: A variable's handle on the first core.
    """

    spec: tf.TensorSpec | None = None
    handle: Any = None


class CompilerFunctions:
    """Writes functions with stand-ins for what is not the compiler's.

    Args:
        library: Finds functions by their names.
        for_tpu: Whether the TPU's own compiler goes on from here: it knows the operations
            across replicas and the annotations of partitions, for which XLA on a CPU only
            needs something of their shape.
    """

    def __init__(self, library: Library, *, for_tpu: bool = False) -> None:
        self.made: list[FunctionDef] = []
        self._library = library
        self._for_tpu = for_tpu

    def write(
        self,
        function: FunctionDef,
        parameters: Mapping[str, Parameter],
        host: Host,
    ) -> tuple[FunctionDef, list[tf.TensorSpec]]:
        """Writes the replica function: tensors first among its arguments, then variables.

        Returns:
            The function and the specs of its tensors.
        """
        given = [_argument(f"host_{k}", spec) for k, spec in enumerate(_all(host))]
        result = self._copy(function, host, [argument.name for argument in given])
        arguments = list(function.signature.input_arg)
        tensors = [a for a in arguments if parameters[a.name].spec is not None]
        used = {text.partition(":")[0] for node in result.node_def for text in node.input}
        variables = [a for a in arguments if parameters[a.name].spec is None and a.name in used]
        kept = [*tensors, *given, *variables]
        del result.signature.input_arg[:]
        result.signature.input_arg.extend(kept)
        result.arg_attr.clear()
        specs = [spec for a in tensors if (spec := parameters[a.name].spec) is not None]
        _drop_outputs(result, host)
        return result, [*specs, *_all(host)]

    def _copy(
        self,
        function: FunctionDef,
        host: Host | None = None,
        given: Sequence[str] = (),
    ) -> FunctionDef:
        host = host or {}
        result = FunctionDef()
        result.CopyFrom(function)
        result.signature.name = f"{function.signature.name}_lowered_{next(_names)}"
        tensors: dict[str, str] = {}
        names = iter(given)
        for name, specs in host.items():
            tensors.update({name + suffix: next(names) for suffix in specs})
        del result.node_def[:]
        kept = needed(function) - host.keys()
        nodes = {node.name: node for node in function.node_def}
        for node in function.node_def:
            if node.name in kept:
                result.node_def.extend(self._stand_in(node, nodes))
        for node in result.node_def:
            _point(node, host, tensors)
        _keep_effects(result, host)
        self.made.append(result)
        return result

    def _stand_in(self, node: NodeDef, nodes: Mapping[str, NodeDef]) -> list[NodeDef]:
        copy = NodeDef()
        copy.CopyFrom(node)
        copy.device = ""
        if self._for_tpu and node.op in COLLECTIVES and (marked := _marked(copy, nodes)):
            return marked
        if self._for_tpu and node.op == "XlaSharding":
            return [copy]
        if node.op == "AllToAll" and node.attr["split_count"].i > 1:
            return _exchange(copy)
        if node.op in COLLECTIVES or node.op == "XlaSharding":
            _pass_on(copy)
        if node.op == "FakeParam":
            _give_size(copy)
        if node.op == "ResizeBilinearGrad":
            del copy.input[0]  # what is left has the shape and the type of the result
            _pass_on(copy)
        if node.op == "ResizeNearestNeighborGrad":
            return _resized(copy)
        for key in sorted(copy.attr):
            value = copy.attr[key]
            functions = [value.func] if value.WhichOneof("value") == "func" else value.list.func
            for called in functions:
                called.name = self._body(called.name)
        return [copy]

    def _body(self, name: str) -> str:
        """A function that is called; a copy of it if anything in it has to be replaced."""
        body = self._library(name)
        if not _needs_copy(body, self._library):
            return name
        return str(self._copy(body, _silent(body)).signature.name)


def _silent(body: FunctionDef) -> Host:
    """What runs on the host and gives the core nothing back."""
    used = {text.partition(":")[0] for node in body.node_def for text in node.input if ":" in text}
    used |= {text.partition(":")[0] for text in body.ret.values()}
    return {n.name: {} for n in body.node_def if OUTSIDE in n.attr and n.name not in used}


def _drop_outputs(function: FunctionDef, host: Host) -> None:
    """Leaves out what a compiler cannot return: what the host makes, and resources."""
    for output in list(function.signature.output_arg):
        source = function.ret[output.name].partition(":")[0]
        kind = dtypes.as_dtype(output.type)
        if source in host or kind in {dtypes.resource, dtypes.variant}:
            function.signature.output_arg.remove(output)
            del function.ret[output.name]


def _needs_copy(function: FunctionDef, library: Library) -> bool:
    if has_collectives(function, library) or len(needed(function)) < len(function.node_def):
        return True
    return any(
        node.op in {"XlaSharding", "FakeParam"}
        or node.op in RESIZES
        or OUTSIDE in node.attr
        or node.device
        or any(_needs_copy(library(name), library) for name in called_functions(node))
        for node in function.node_def
    )


def _marked(node: NodeDef, nodes: Mapping[str, NodeDef]) -> list[NodeDef]:
    """A mark for the TPU's compiler, after what gives its shape; none where there can be none."""
    before = _exchange(node) if node.op == "AllToAll" and node.attr["split_count"].i > 1 else []
    value = node.input[0]
    if before:
        before[-1].name = f"{node.name}/exchanged"
        value = f"{before[-1].name}:output:0"
    found = mark(node, nodes, value)
    return [*before, *found] if found else []


def _pass_on(node: NodeDef) -> None:
    """Makes a node pass on the first of its inputs, which has the shape of its result."""
    kept = [text for text in node.input if not text.startswith("^")][:1]
    controls = [text for text in node.input if text.startswith("^")]
    del node.input[:]
    node.input.extend([*kept, *controls])
    make_identity(node)


def _give_size(node: NodeDef) -> None:
    """Gives what a branch leaves out the size that it most likely has in the others.

    TensorFlow writes 0 for an unknown size (`_convert_dynamic_dimension_to_zero`). The
    results of the branches then differ in shape, which XLA does not look for: it has
    written and read beside its memory and taken the process with it.
    """
    for dimension in node.attr["shape"].shape.dim:
        if dimension.size <= 0:
            dimension.size = ANY_SIZE


def _resized(node: NodeDef) -> list[NodeDef]:
    """The shape that resizing's gradient has: that of a resizing back."""
    back = NodeDef()
    back.CopyFrom(node)
    back.name, back.op = f"{node.name}/back", "ResizeNearestNeighbor"
    del node.input[:]
    node.input.append(f"{back.name}:resized_images:0")
    _pass_on(node)
    return [back, node]


def _exchange(node: NodeDef) -> list[NodeDef]:
    """An `AllToAll`'s shape without its partners: split, and joined along another axis."""
    split, concat, count = (
        node.attr[key].i for key in ("split_dimension", "concat_dimension", "split_count")
    )
    kind = node.attr["T"]
    axes = [
        _constant(f"{node.name}/{name}", value) for name, value in (("s", split), ("c", concat))
    ]
    parts = NodeDef(name=f"{node.name}/parts", op="Split")
    parts.input.extend([f"{axes[0].name}:output:0", node.input[0]])
    parts.attr["T"].CopyFrom(kind)
    parts.attr["num_split"].i = count
    joined = NodeDef(name=f"{node.name}/joined", op="ConcatV2")
    joined.input.extend(f"{parts.name}:output:{k}" for k in range(count))
    joined.input.append(f"{axes[1].name}:output:0")
    joined.attr["T"].CopyFrom(kind)
    joined.attr["N"].i = count
    joined.attr["Tidx"].type = dtypes.int32.as_datatype_enum
    result = NodeDef(name=node.name, op="Identity")
    result.input.append(f"{joined.name}:output:0")
    result.attr["T"].CopyFrom(kind)
    return [*axes, parts, joined, result]


def _constant(name: str, value: int) -> NodeDef:
    node = NodeDef(name=name, op="Const")
    node.attr["dtype"].type = dtypes.int32.as_datatype_enum
    node.attr["value"].CopyFrom(int32_tensor(value))
    return node


def _all(host: Host) -> list[tf.TensorSpec]:
    return [spec for specs in host.values() for spec in specs.values()]


def _argument(name: str, spec: tf.TensorSpec) -> Any:
    argument = FunctionDef().signature.input_arg.add()
    argument.name, argument.type = name, spec.dtype.as_datatype_enum
    return argument


def _point(node: NodeDef, host: Host, tensors: Mapping[str, str]) -> None:
    inputs = [
        # What was a tensor of the host is an argument now.
        tensors.get(text, text)
        for text in node.input
        if text.lstrip("^") not in host
    ]
    del node.input[:]
    node.input.extend(inputs)


def _keep_effects(function: FunctionDef, host: Collection[str]) -> None:
    for key in [key for key, name in function.control_ret.items() if name in host]:
        del function.control_ret[key]
    del function.signature.control_output[:]
    function.signature.control_output.extend(function.control_ret)
