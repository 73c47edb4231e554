"""FunctionDefs: nodes, references, order, effects; types, shapes and constants; new nodes.

TensorFlow's functions are protocol buffers. A node of a function names its inputs in three ways:
``arg`` is an argument of the function, ``node:output:k`` is the k-th tensor of a node's output, and
``^node`` is a control dependency.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tpunb.tensorflow.virtual.private_names import (
    AttrValue,
    FunctionDef,
    NodeDef,
    dtypes,
    op_def_registry,
    tensor_util,
)

Library = Callable[[str], FunctionDef]
"""A lookup of a function by its name."""

CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
COLLECTIVES = frozenset({"CrossReplicaSum", "AllToAll", "CollectivePermute"})
LOOPS = frozenset({"While", "StatelessWhile"})
BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
CONTROL_FLOW = LOOPS | BRANCHES

FRESH = frozenset({"EmptyTensorList", "TensorListReserve"})
"""Operations that make lists without elements."""

SLICE_MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")

OUTSIDE = "_xla_outside_compilation"
"""The attribute by which `tf.compat.v1.tpu.outside_compilation` marks nodes to run on the host."""


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
    """The node and output that a node's input comes from.

    Attributes:
        source: The name of an argument or of a node.
        suffix: ``:output:k`` for a node's tensor, empty for an argument.
    """

    source: str
    suffix: str

    @property
    def index(self) -> int:
        """The tensor's index in its output list."""
        return int(self.suffix.rsplit(":", 1)[1])


@functools.lru_cache(maxsize=2**14)
def reference(text: str) -> Reference:
    """Return the reference in a text, ``arg`` or ``node:output:k``."""
    source, colon, rest = text.partition(":")
    return Reference(source, colon + rest)


def data_inputs(node: NodeDef) -> list[Reference]:
    """Return the tensors that a node takes, in order."""
    return [reference(text) for text in node.input if not text.startswith("^")]


def control_inputs(node: NodeDef) -> list[str]:
    """Return the nodes that must have run before a node."""
    return [text[1:] for text in node.input if text.startswith("^")]


@dataclasses.dataclass(frozen=True, slots=True)
class Returned:
    """One result of a function.

    Attributes:
        source: The tensor.
        type: The tensor's type, as a number of the protocol buffers.
    """

    source: Reference
    type: int


def returned(function: FunctionDef) -> list[Returned]:
    """Return a function's results, in order."""
    outputs = function.signature.output_arg
    return [Returned(reference(function.ret[output.name]), output.type) for output in outputs]


def function_attributes(node: NodeDef) -> Iterator[Any]:
    """Yield the functions in a node's attributes; their names may be changed."""
    functions: dict[str, Sequence[Any]] = {}
    for key, value in node.attr.items():
        field = value.WhichOneof("value")
        if field == "func":
            functions[key] = [value.func]
        elif field == "list":
            functions[key] = value.list.func
    for key in sorted(functions):
        yield from functions[key]


def called_functions(node: NodeDef) -> list[str]:
    """Return the names of the functions in a node's attributes."""
    return [function.name for function in function_attributes(node)]


def is_stateful(node: NodeDef) -> bool:
    """Return whether running a node twice differs from running it once."""
    definition = op_def_registry.get(node.op)
    return definition is None or bool(definition.is_stateful)


def has_node(function: FunctionDef, library: Library, test: Callable[[NodeDef], bool]) -> bool:
    """Return whether any node of a function, or of a function that it calls, passes a test."""
    return any(
        test(node) or any(has_node(library(name), library, test) for name in called_functions(node))
        for node in function.node_def
    )


def has_collectives(function: FunctionDef, library: Library) -> bool:
    """Return whether a function, or a function that it calls, contains collectives."""
    return has_node(function, library, lambda node: node.op in COLLECTIVES)


def has_outside(function: FunctionDef, library: Library) -> bool:
    """Return whether a function, or a function that it calls, must run on the host in part."""
    return has_node(function, library, lambda node: OUTSIDE in node.attr)


def needed(function: FunctionDef, *, without: Collection[str] = ()) -> set[str]:
    """Return the nodes that a function's results and effects come from; other nodes do not run.

    Args:
        function: The function.
        without: Operations that do not count as using their inputs.
    """
    nodes = {node.name: node for node in function.node_def}
    pending = [text.partition(":")[0] for text in function.ret.values()]
    pending += function.control_ret.values()
    pending += [name for name, node in nodes.items() if is_stateful(node)]
    needed_nodes: set[str] = set()
    while pending:
        name = pending.pop()
        if name in nodes and name not in needed_nodes:
            needed_nodes.add(name)
            if nodes[name].op not in without:
                pending += [text.lstrip("^").partition(":")[0] for text in nodes[name].input]
    return needed_nodes


def in_topological_order(nodes: Iterable[NodeDef]) -> list[NodeDef]:
    """Return nodes in an order in which each comes after all of its inputs."""
    by_name = {node.name: node for node in nodes}
    waiting = {
        name: {
            source
            for source in (text.lstrip("^").partition(":")[0] for text in node.input)
            if source in by_name
        }
        for name, node in by_name.items()
    }
    consumers: dict[str, list[str]] = {name: [] for name in by_name}
    for name, sources in waiting.items():
        for source in sources:
            consumers[source].append(name)
    ready = [name for name, sources in waiting.items() if not sources]
    remaining = {name: len(sources) for name, sources in waiting.items()}
    order: list[NodeDef] = []
    while ready:
        name = ready.pop()
        order.append(by_name[name])
        for consumer in consumers[name]:
            remaining[consumer] -= 1
            if not remaining[consumer]:
                ready.append(consumer)
    if len(order) != len(by_name):
        raise AssertionError("A function's graph has a cycle.")
    return order


READS = frozenset({"ReadVariableOp", "VariableShape", "ResourceGather", "ResourceGatherNd"})
ASSIGNMENTS = frozenset({"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"})

# The beginnings of the names of operations that change a variable. The last two advance a random
# generator's state.
_WRITERS = ("Assign", "Resource", "Rng", "Stateful")


def writes_variables(function: FunctionDef, library: Library) -> bool:
    """Return whether a function may change a variable."""
    unchanging = READS | CALLS
    return has_node(
        function,
        library,
        lambda node: node.op not in unchanging and node.op.startswith(_WRITERS),
    )


def arguments_read(function: FunctionDef, arguments: Collection[str], library: Library) -> set[str]:
    """Return the arguments whose variables a function, or a function that it calls, reads.

    Args:
        function: The function.
        arguments: The names of the arguments to look for.
        library: Finds the functions that it calls.
    """
    read: set[str] = set()
    if not arguments:
        return read
    sought = frozenset(arguments)
    for node in function.node_def:
        sources = enumerate(data_inputs(node))
        passed = {index: source.source for index, source in sources if source.source in sought}
        if not passed:
            continue
        if node.op in READS:
            read.update(passed.values())
        first = int(node.op in BRANCHES)  # A branch does not see its condition.
        for body in map(library, called_functions(node)):
            names = {
                index + first: argument.name
                for index, argument in enumerate(body.signature.input_arg)
            }
            inner = {names[index]: source for index, source in passed.items() if index in names}
            read.update(inner[name] for name in arguments_read(body, inner, library))
    return read


def has_effects(function: FunctionDef, library: Library) -> bool:
    """Return whether a function does more than compute, call collectives and read variables."""
    pure = READS | CONTROL_FLOW | COLLECTIVES
    return has_node(function, library, lambda node: is_stateful(node) and node.op not in pure)


def only_updates(node: NodeDef) -> bool:
    """Return whether a node only gives new values of variables, of a type that it names."""
    definition = op_def_registry.get(node.op)
    has_outputs = definition is None or len(definition.output_arg) > 0
    return not has_outputs and ("dtype" in node.attr or "T" in node.attr)


Add = Callable[..., str]
"""Writes a node, from its operation, name, device, inputs and attributes; returns its name."""

_names = itertools.count()


def new_node(
    op: str, name: str, inputs: Sequence[str] = (), device: str = "", **attributes: AttrValue
) -> NodeDef:
    """Return a new node."""
    return NodeDef(op=op, name=name, device=device, input=inputs, attr=attributes)


def add_node(
    function: FunctionDef,
    op: str,
    name: str,
    device: str,
    inputs: Sequence[str],
    **attributes: AttrValue,
) -> str:
    """Write a node into a function and return its name."""
    function.node_def.append(new_node(op, name, inputs, device, **attributes))
    return name


def new_constant(
    name: str, value: object, dtype: dtypes.DType = dtypes.int32, device: str = ""
) -> NodeDef:
    """Return a new constant; its tensor is `name:output:0`."""
    return new_node("Const", name, (), device, **_of_constant(value, dtype))


def add_constant(
    add: Add, name: str, device: str, value: object, dtype: dtypes.DType = dtypes.int32
) -> str:
    """Write a constant and return its tensor."""
    return f"{add('Const', name, device, [], **_of_constant(value, dtype))}:output:0"


def _of_constant(value: object, dtype: dtypes.DType) -> dict[str, AttrValue]:
    tensor = tensor_util.make_tensor_proto(value, dtype)
    return {"dtype": type_of(dtype), "value": AttrValue(tensor=tensor)}


def new_name(function: FunctionDef, cores: Sequence[Sequence[str]]) -> str:
    """Return an unused function name, for a function that is written for all replicas."""
    return f"{function.signature.name}_on_{len(cores)}_replicas_{next(_names)}"


def argument_name(name: str, replica: int | None = None, core: int = 0) -> str:
    """Return the argument for a replica, or for all; `core` is the logical device of a copy."""
    text = f"arg_{name}" if replica is None else f"arg_{name}_replica_{replica}"
    return f"{text}_core_{core}" if core else text


def instance(name: str, replica: int) -> str:
    """Return a node's name on a replica."""
    return f"{name}/replica_{replica}" if replica else name


def integer(value: int) -> AttrValue:
    """Return an attribute that is a whole number."""
    return AttrValue(i=value)


def type_of(dtype: dtypes.DType) -> AttrValue:
    """Return an attribute that is a type."""
    return AttrValue(type=dtype.as_datatype_enum)


def types_of(types: Sequence[dtypes.DType]) -> AttrValue:
    """Return an attribute that is a list of types."""
    value = AttrValue()
    value.list.type.extend(dtype.as_datatype_enum for dtype in types)
    return value


def set_types(node: NodeDef, inputs: Sequence[int], outputs: Sequence[int]) -> None:
    """Set the types of widened control flow; its shapes are left to inference."""
    for key, types in (("T", inputs), ("Tin", inputs), ("Tout", outputs)):
        if key in node.attr:
            del node.attr[key].list.type[:]
            node.attr[key].list.type.extend(types)
    for key in ("output_shapes", "_output_shapes"):
        if key in node.attr:
            del node.attr[key].list.shape[:]
            for _ in outputs if key == "output_shapes" else ():
                node.attr[key].list.shape.add().unknown_rank = True
    for key in [key for key in node.attr if key.startswith("_num_original") or key == "_class"]:
        del node.attr[key]


def make_identity(node: NodeDef) -> None:
    """Turn an annotation into an identity, because a CPU has no kernel for annotations."""
    node.op = "Identity"
    for key in [key for key in node.attr if key != "T"]:
        del node.attr[key]


Sizes = tuple[int, ...]
"""A fully known shape."""

KnownSizes = Mapping[tuple[str, int], Sizes]
"""The shapes of tensors, by their nodes' names and their positions among the nodes' outputs."""

_PASS_ON = frozenset({"Cast", "Identity"})


class StaticTensors:
    """The known shapes, types and constants of a replica function's tensors."""

    def __init__(
        self, function: FunctionDef, nodes: Mapping[str, NodeDef], sizes: KnownSizes
    ) -> None:
        self._arguments = {
            argument.name: argument.type for argument in function.signature.input_arg
        }
        self._nodes = nodes
        self._sizes = sizes

    def sizes(self, source: Reference) -> Sizes | None:
        """Return the shape of a tensor; None if it is not fully known."""
        return self.output_sizes(source.source, self.index(source))

    def output_sizes(self, name: str, index: int) -> Sizes | None:
        """Return the shape of a node's output, or of an argument."""
        known = self._sizes.get((name, index))
        node = self._nodes.get(name)
        if node is not None and node.op == "Const":
            return tuple(axis.size for axis in node.attr["value"].tensor.tensor_shape.dim)
        if known is None and node is not None and node.op in _PASS_ON:
            return self.sizes(data_inputs(node)[0])
        return known

    def node(self, source: Reference) -> NodeDef | None:
        """Return the node that gives a tensor; None for an argument."""
        return self._nodes.get(source.source)

    def bytes_of(self, node: NodeDef) -> float:
        """Return the bytes of a node's outputs; infinity if they are unknown."""
        total = 0
        for index, dtype in enumerate(output_types(node)):
            sizes = self.output_sizes(node.name, index)
            if sizes is None:
                return math.inf
            total += math.prod(sizes) * int(dtype.size)
        return total

    def index(self, source: Reference) -> int:
        """Return the position of a reference among all outputs of its node."""
        node = self._nodes.get(source.source)
        return 0 if node is None else output_index(node, source)

    def dtype(self, source: Reference) -> dtypes.DType:
        """Return the type of a tensor."""
        node = self._nodes.get(source.source)
        if node is None:
            return dtypes.as_dtype(self._arguments[source.source])
        return output_types(node)[self.index(source)]

    def value(self, source: Reference) -> np.ndarray | None:
        """Return the value of a tensor of constants; None if it is not known."""
        node = self._nodes.get(source.source)
        if node is None:
            return None
        if node.op == "Const":
            constant: np.ndarray = tensor_util.MakeNdarray(node.attr["value"].tensor)
            return constant
        if node.op not in {"Range", "Identity"}:
            return None
        values = [self.value(tensor) for tensor in data_inputs(node)]
        if any(value is None for value in values):
            return None
        return values[0] if node.op == "Identity" else np.arange(*map(int, values))  # type: ignore[arg-type]


def output_index(node: NodeDef, source: Reference) -> int:
    """Return the position of a reference among all outputs of its node."""
    _, output, index = source.suffix.split(":")
    before = 0
    for argument in op_def_registry.get(node.op).output_arg:
        if argument.name == output:
            break
        before += _count(node, argument)
    return before + int(index)


def output_types(node: NodeDef) -> list[dtypes.DType]:
    """Return the types of all tensors that a node gives."""
    types: list[int] = []
    for argument in op_def_registry.get(node.op).output_arg:
        if argument.type_list_attr:
            types.extend(node.attr[argument.type_list_attr].list.type)
            continue
        dtype = node.attr[argument.type_attr].type if argument.type_attr else argument.type
        types.extend([dtype] * _count(node, argument))
    return [dtypes.as_dtype(dtype) for dtype in types]


def _count(node: NodeDef, argument: object) -> int:
    number, types = argument.number_attr, argument.type_list_attr  # type: ignore[attr-defined]
    if types:
        return len(node.attr[types].list.type)
    return int(node.attr[number].i) if number else 1
