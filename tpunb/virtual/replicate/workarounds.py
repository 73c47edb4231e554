"""Nodes rewritten around faults of TensorFlow's kernels and of its optimizer.

The last batch of a data set may leave replicas without examples, and some of TensorFlow's
kernels are wrong for a batch of size zero. With oneDNN, a convolution returns the shape of
its input, its gradient leaves out the bias, and the gradient of a max-pooling crashes the
process. Without oneDNN, the gradient of a depthwise convolution's filter is uninitialized
memory. Nodes whose sizes are known only at run time are rewritten around these faults,
which costs next to nothing and keeps oneDNN's speed. Control flow and some tensors are
hidden from constant folding, which is wrong about them. Some maxima are written as minima,
because TensorFlow's optimizer takes them for a LeakyRelu.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from tpunb.virtual._tensorflow import AttrValue, FunctionDef, NodeDef, dtypes, tensor_util
from tpunb.virtual.graph.function_def import (
    CONTROL_FLOW,
    SLICE_MASKS,
    Add,
    Reference,
    add_constant,
    add_node,
    control_inputs,
    data_inputs,
    integer,
    is_stateful,
    type_of,
)
from tpunb.virtual.graph.rewrite import Rewrite

# Their stateful twins differ in one thing: constant folding leaves them alone.
_STATEFUL = {
    "StatelessWhile": "While",
    "StatelessIf": "If",
    "StatelessCase": "Case",
    "PartitionedCall": "StatefulPartitionedCall",  # one that XLA compiles: it may hold a loop
}
_INT32 = type_of(dtypes.int32)


def hide(add: Add, name: str, device: str, tensor: str, kind: AttrValue) -> str:
    """Hides from TensorFlow's optimizer where a tensor comes from."""
    # A placeholder's default may be overridden, so that the optimizer does not fold it.
    unknown = AttrValue()
    unknown.shape.unknown_rank = True
    name = f"{name}/hidden"
    add("PlaceholderWithDefault", name, device, [tensor], dtype=kind, shape=unknown)
    return f"{name}:output:0"


def keep_from_folding(add: Add, node: NodeDef, *, in_body: bool = False) -> None:
    """Keeps from TensorFlow's optimizer what it does wrong here.

    Control flow and compiled calls of constants are folded by running them in one thread,
    where a loop that is not lowered recurses once a round: 30,000 rounds overflow the stack.
    And a tensor that is stacked with itself becomes a tile, whose constants then wait for
    the first branch of the condition around it, whichever branch it is in.

    What control flow waits for is lost too: a wait for a node from which data comes as well is
    removed, and then the data, if no branch needs it in the end. So one node waits for all, which
    nothing comes from.

    Args:
        add: Writes further nodes.
        node: A node of any kind, which may be changed. Something must need it: what is
            stateful runs in any case.
        in_body: Whether it is in a body of control flow. Its inputs may be one tensor there
            although they have two names.
    """
    node.op = _STATEFUL.get(node.op, node.op)
    if node.op in CONTROL_FLOW:
        _keep_waits(add, node)
    if in_body and node.op == "Pack":
        node.input[0] = hide(add, node.name, node.device, node.input[0], node.attr["T"])
    if node.op == "Case":
        # Of a constant index TensorFlow's optimizer makes a call without side effects, and
        # removes the call with all its updates of variables if nobody reads its result.
        node.input[0] = hide(add, node.name, node.device, node.input[0], _INT32)


def _keep_waits(add: Add, node: NodeDef) -> None:
    """Makes a node wait for its control inputs by one that the optimizer leaves as it is."""
    waits = [f"^{name}" for name in control_inputs(node)]
    if not waits:
        return
    kept = [text for text in node.input if not text.startswith("^")]
    trigger = add("ControlTrigger", f"{node.name}/waits", node.device, waits)
    del node.input[:]
    node.input.extend([*kept, f"^{trigger}"])


CONVOLUTIONS = frozenset({"Conv2D", "Conv3D", "DepthwiseConv2dNative"})
_NO_MASKS = dict.fromkeys(SLICE_MASKS, integer(0))


def guard(add: Add, node: NodeDef, shape: Sequence[int] | None = None) -> str | None:
    """Makes a node safe for a replica without examples.

    Args:
        add: Writes further nodes.
        node: The node; it may be changed.
        shape: The shape of its result, -1 for the batch; None where more is unknown.

    Returns:
        What is to be read in place of its result; None if that stays.
    """
    if node.op in CONVOLUTIONS:
        if shape is not None:
            return _give_shape(add, node, shape)
        return _with_one_row(add, node, ("T",), rank=5 if node.op == "Conv3D" else 4)
    if node.op == "MaxPool3DGrad":  # it has no second version
        return _with_one_row(add, node, ("TInput", "TInput", "T"), rank=5)
    if node.op == "DepthwiseConv2dNativeBackpropFilter":
        return _or_zeros(add, node)
    if node.op == "MaxPoolGrad" and node.attr["padding"].s != b"EXPLICIT":
        _without_onednn(add, node)
    elif node.op == "BiasAddGrad":
        # oneDNN would compute it together with the convolution's gradient, and of
        # nothing would give only that.
        node.input[0] = hide(add, node.name, node.device, node.input[0], node.attr["T"])
    return None


def guard_all(function: FunctionDef) -> None:
    """Makes the nodes of a function that is called by replicas safe."""
    add = functools.partial(add_node, function)
    instead: dict[str, str] = {}
    for node in list(function.node_def):
        text = guard(add, node)
        if text is not None:
            instead[f"{node.name}:output:0"] = text
    for node in function.node_def:
        for place, text in enumerate(node.input):
            if text in instead and instead[text].partition(":")[0] != node.name:
                node.input[place] = instead[text]
    for name, text in list(function.ret.items()):
        function.ret[name] = instead.get(text, text)


def _give_shape(add: Add, node: NodeDef, shape: Sequence[int]) -> str:
    """Gives a convolution's result its shape."""
    constant = add_constant(add, f"{node.name}/shape", node.device, shape)
    # TensorFlow's optimizer believes the shape that it infers, and would remove a
    # reshape to it.
    hidden = hide(add, node.name, node.device, constant, _INT32)
    inputs = [f"{node.name}:output:0", hidden]
    made = add(
        "Reshape", f"{node.name}/shaped", node.device, inputs, T=node.attr["T"], Tshape=_INT32
    )
    return f"{made}:output:0"


def _with_one_row(add: Add, node: NodeDef, types: Sequence[str], rank: int) -> str:
    """Gives a node an example of zeros in addition, and leaves that out of its result."""
    rows = [[0, 1], *[[0, 0]] * (rank - 1)]
    margins = add_constant(add, f"{node.name}/margins", node.device, rows)
    for place, key in enumerate(types):
        inputs = [node.input[place], margins]
        name = f"{node.name}/padded_{place}"
        kind = node.attr[key]
        padded = add("Pad", name, node.device, inputs, T=kind, Tpaddings=_INT32)
        # oneDNN would take the padding into the convolution, as one of its image.
        node.input[place] = hide(add, name, node.device, f"{padded}:output:0", kind)
    limits = [
        add_constant(add, f"{node.name}/{name}", node.device, [value])
        for name, value in (("begin", 0), ("end", -1), ("strides", 1))
    ]
    inputs = [f"{node.name}:output:0", *limits]
    made = add(
        "StridedSlice",
        f"{node.name}/rows",
        node.device,
        inputs,
        T=node.attr["T"],
        Index=_INT32,
        **_NO_MASKS,
    )
    return f"{made}:output:0"


def _or_zeros(add: Add, node: NodeDef) -> str:
    """Takes zeros for a sum over no examples."""
    kind, device = node.attr["T"], node.device
    size = add("Size", f"{node.name}/size", device, [node.input[0]], T=kind, out_type=_INT32)
    none = add_constant(add, f"{node.name}/none", device, 0)
    inputs = [f"{size}:output:0", none]
    some = add("Greater", f"{node.name}/some", device, inputs, T=_INT32)
    zero = add("Cast", f"{node.name}/zero", device, [none], SrcT=_INT32, DstT=kind)
    inputs = [f"{some}:z:0", f"{node.name}:output:0", f"{zero}:y:0"]
    made = add("SelectV2", f"{node.name}/or_zeros", device, inputs, T=kind)
    return f"{made}:output:0"


def _without_onednn(add: Add, node: NodeDef) -> None:
    """Makes a max-pooling's gradient its second version, for which oneDNN has no kernel."""
    windows = [
        add_constant(add, f"{node.name}/{key}", node.device, list(node.attr[key].list.i))
        for key in ("ksize", "strides")
    ]
    waits = [f"^{name}" for name in control_inputs(node)]
    inputs = [text for text in node.input if not text.startswith("^")]
    del node.input[:]
    node.input.extend([*inputs, *windows, *waits])
    node.op = "MaxPoolGradV2"
    for key in ("ksize", "strides", "explicit_paddings"):
        if key in node.attr:
            del node.attr[key]


def without_leaky_relu(function: FunctionDef) -> FunctionDef:
    """Write `maximum(x, c * x)` as a minimum where c may be above 1.

    TensorFlow's optimizer makes it a LeakyRelu without looking whether c is at most 1: the result
    is then the minimum. See `FindMulAndMaximum` in grappler's remapper.cc, up to TensorFlow 2.21.
    The optimizer merges equal nodes and folds constants before, so that x and c can look otherwise
    here.
    """
    nodes = {node.name: node for node in function.node_def}

    @functools.cache
    def is_folded(name: str) -> bool:
        node = nodes.get(name)
        if node is None or is_stateful(node):
            return False
        sources = data_inputs(node)
        return node.op == "Const" or bool(sources and all(is_folded(one.source) for one in sources))

    def may_be_above_one(source: Reference) -> bool:
        node = nodes.get(source.source)
        if node is None or node.op != "Const":
            return is_folded(source.source)
        value = tensor_util.MakeNdarray(node.attr["value"].tensor)
        return value.size == 1 and bool((value > 1).any())

    def may_be_leaky_relu(node: NodeDef) -> bool:
        if node.op != "Maximum" or not dtypes.as_dtype(node.attr["T"].type).is_floating:
            return False
        sources = (nodes.get(one.source) for one in data_inputs(node))
        products = [one for one in sources if one is not None and one.op == "Mul"]
        return any(may_be_above_one(factor) for one in products for factor in data_inputs(one))

    maxima = {node.name for node in function.node_def if may_be_leaky_relu(node)}
    if not maxima:
        return function
    rewrite = Rewrite(function)
    for node in function.node_def:
        if node.name in maxima:
            _write_as_minimum(rewrite, node)
        else:
            rewrite.keep(node)
    return rewrite.finish()


def _write_as_minimum(rewrite: Rewrite, node: NodeDef) -> None:
    """Replace a maximum by the negative of the minimum of the negatives: the same number."""
    add = functools.partial(add_node, rewrite.result)
    kind, device = node.attr["T"], node.device
    waits = [f"^{name}" for name in control_inputs(node)]
    negatives = [
        f"{add('Neg', f'{node.name}/negative_{place}', device, [text], T=kind)}:y:0"
        for place, text in enumerate(node.input[: len(node.input) - len(waits)])
    ]
    least = add("Minimum", f"{node.name}/minimum", device, negatives, T=kind)
    maximum = add("Neg", f"{node.name}/maximum", device, [f"{least}:z:0", *waits], T=kind)
    rewrite.replace({f"{node.name}:z:0": f"{maximum}:y:0"})
    rewrite.drop(node.name, [maximum])
