"""Names and attributes of the nodes of a function for all replicas."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from tpunb.virtual._tensorflow import AttrValue, FunctionDef, NodeDef, dtypes, tensor_util

Add = Callable[..., str]
"""Writes a node: its operation, name, device and inputs, then attributes; gives its name."""

_names = itertools.count()


def new_node(
    op: str, name: str, inputs: Sequence[str] = (), device: str = "", **attributes: AttrValue
) -> NodeDef:
    """Makes a node."""
    return NodeDef(op=op, name=name, device=device, input=inputs, attr=attributes)


def add_node(
    function: FunctionDef,
    op: str,
    name: str,
    device: str,
    inputs: Sequence[str],
    **attributes: AttrValue,
) -> str:
    """Writes a node into a function and gives its name."""
    function.node_def.append(new_node(op, name, inputs, device, **attributes))
    return name


def new_constant(
    name: str, value: object, kind: dtypes.DType = dtypes.int32, device: str = ""
) -> NodeDef:
    """Makes a constant; its tensor is `name:output:0`."""
    return new_node("Const", name, (), device, **_of_constant(value, kind))


def add_constant(
    add: Add, name: str, device: str, value: object, kind: dtypes.DType = dtypes.int32
) -> str:
    """Writes a constant and gives its tensor."""
    return f"{add('Const', name, device, [], **_of_constant(value, kind))}:output:0"


def _of_constant(value: object, kind: dtypes.DType) -> dict[str, AttrValue]:
    tensor = tensor_util.make_tensor_proto(value, kind)
    return {"dtype": type_of(kind), "value": AttrValue(tensor=tensor)}


def new_name(function: FunctionDef, cores: Sequence[Sequence[str]]) -> str:
    """A name that no function has, for one that is written for all replicas."""
    return f"{function.signature.name}_on_{len(cores)}_replicas_{next(_names)}"


def argument_name(name: str, replica: int | None = None, core: int = 0) -> str:
    """The argument for a replica, or for all; `core` is the logical device of a copy."""
    text = f"arg_{name}" if replica is None else f"arg_{name}_replica_{replica}"
    return f"{text}_core_{core}" if core else text


def instance(name: str, replica: int) -> str:
    """A node's name on a replica."""
    return f"{name}/replica_{replica}" if replica else name


def integer(value: int) -> AttrValue:
    """An attribute that is a whole number."""
    return AttrValue(i=value)


def type_of(kind: dtypes.DType) -> AttrValue:
    """An attribute that is a type."""
    return AttrValue(type=kind.as_datatype_enum)


def types_of(kinds: Sequence[dtypes.DType]) -> AttrValue:
    """An attribute that is a list of types."""
    value = AttrValue()
    value.list.type.extend(kind.as_datatype_enum for kind in kinds)
    return value


def set_types(node: NodeDef, inputs: Sequence[int], outputs: Sequence[int]) -> None:
    """Sets the types of widened control flow; its shapes are left to inference."""
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
    """Makes an identity of an annotation, for which a CPU has no kernel."""
    node.op = "Identity"
    for key in [key for key in node.attr if key != "T"]:
        del node.attr[key]
