"""Operations on nothing: a replica that has got no examples.

The last batch of a data set may leave replicas without any. TensorFlow's oneDNN kernels
are not made for that: a convolution of nothing has the shape of its input in place of
that of its result, its gradient leaves out the bias, and the gradient of a max-pooling
ends the process. Where sizes are known only at run time, each is led around, which costs
next to nothing; oneDNN's speed is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpunb.virtual._tensorflow import AttrValue, FuncGraph, NodeDef, dtypes
from tpunb.virtual.graphs import CALLS, control_inputs
from tpunb.virtual.nodes import type_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpunb.virtual.writer import Writer

_CONVOLUTIONS = frozenset({"Conv2D", "Conv3D", "DepthwiseConv2dNative"})
_INT32 = type_of(dtypes.int32)


def unknown_sizes(graph: FuncGraph) -> dict[str, tuple[int, ...]] | None:
    """The convolutions whose batch is of unknown size.

    Args:
        graph: The traced replica function.

    Returns:
        The shapes of their results, -1 for the batch, by the names that the nodes have when
        all calls are inlined; a shape of which more is unknown is not among them. None
        if the function takes no tensor of unknown size.
    """
    known = all(
        tensor.dtype == dtypes.resource or tensor.shape.is_fully_defined()
        for tensor in graph.inputs
    )
    return None if known else _shapes(graph, "")


def _shapes(graph: FuncGraph, path: str) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for operation in graph.get_operations():
        if operation.type in CALLS:
            function = graph._functions.get(operation.get_attr("f").name)
            body = getattr(function, "_cached_graph", None)
            if body is not None:
                found.update(_shapes(body, f"{path}{operation.name}/"))
        elif operation.type in _CONVOLUTIONS:
            shape = operation.outputs[0].shape
            batch, *rest = shape.as_list() if shape.rank else [0]
            if batch is None and None not in rest and 0 not in rest:
                found[path + operation.name] = (-1, *rest)
    return found


def guard(writer: Writer, copy: NodeDef, name: str, replica: int) -> None:
    """Makes a node safe for a replica without examples.

    Args:
        writer: Has written the node.
        copy: The node of the replica; it may be changed.
        name: The name that it was traced under.
        replica: The replica.
    """
    shapes = writer.shapes or {}
    if name in shapes:
        _give_shape(writer, copy, name, replica, shapes[name])
    elif copy.op == "MaxPoolGrad" and copy.attr["padding"].s != b"EXPLICIT":
        _without_onednn(writer, copy)
    elif copy.op == "BiasAddGrad":
        # oneDNN would compute it together with the convolution's gradient, and of
        # nothing would give only that.
        copy.input[0] = _hidden(writer, copy, copy.input[0], copy.attr["T"])


def _give_shape(
    writer: Writer, copy: NodeDef, name: str, replica: int, shape: Sequence[int]
) -> None:
    """Gives a convolution's result its shape, and that to those who read it."""
    constant = _integers(writer, f"{copy.name}/shape", copy.device, shape)
    # TensorFlow's optimizer believes the shape that it infers, and would remove a
    # reshape to it.
    hidden = _hidden(writer, copy, constant, _INT32)
    made = writer.add(
        "Reshape",
        f"{copy.name}/shaped",
        copy.device,
        [f"{copy.name}:output:0", hidden],
        T=copy.attr["T"],
        Tshape=_INT32,
    )
    writer.tensors[(name, ":output:0", replica)] = f"{made}:output:0"


def _without_onednn(writer: Writer, copy: NodeDef) -> None:
    """Makes a max-pooling's gradient its second version, for which oneDNN has no kernel."""
    windows = [
        _integers(writer, f"{copy.name}/{key}", copy.device, copy.attr[key].list.i)
        for key in ("ksize", "strides")
    ]
    waits = [f"^{name}" for name in control_inputs(copy)]
    inputs = [text for text in copy.input if not text.startswith("^")]
    del copy.input[:]
    copy.input.extend([*inputs, *windows, *waits])
    copy.op = "MaxPoolGradV2"
    for key in ("ksize", "strides", "explicit_paddings"):
        if key in copy.attr:
            del copy.attr[key]


def _hidden(writer: Writer, copy: NodeDef, tensor: str, kind: AttrValue) -> str:
    """Hides from TensorFlow's optimizer where a tensor comes from; gives what to read."""
    unknown = AttrValue()
    unknown.shape.unknown_rank = True
    name = f"{copy.name}/hidden"
    writer.add("PlaceholderWithDefault", name, copy.device, [tensor], dtype=kind, shape=unknown)
    return f"{name}:output:0"


def _integers(writer: Writer, name: str, device: str, values: Sequence[int]) -> str:
    """Writes a constant vector of type int32 and gives its tensor."""
    tensor = AttrValue()
    tensor.tensor.dtype = dtypes.int32.as_datatype_enum
    tensor.tensor.tensor_shape.dim.add().size = len(values)
    tensor.tensor.int_val.extend(values)
    writer.add("Const", name, device, [], dtype=_INT32, value=tensor)
    return f"{name}:output:0"
