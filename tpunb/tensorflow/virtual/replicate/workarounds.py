"""Nodes rewritten around faults of TensorFlow's kernels and of its optimizer.

The last batch of a data set may leave replicas without examples, and some of TensorFlow's kernels
are wrong for a batch of size zero, up to TensorFlow 2.21:

- With oneDNN, a convolution returns the shape of its input (core/kernels/mkl/mkl_conv_ops.cc), and
  its gradient leaves out the bias.
- With oneDNN, the gradient of a max-pooling crashes the process:
  https://github.com/tensorflow/tensorflow/issues/126128.
- Without oneDNN, the gradient of a depthwise convolution's filter is uninitialized memory.

Nodes whose sizes are known only at run time are rewritten around these faults. The changes cost
next to nothing and keep oneDNN's speed. Control flow and some tensors are hidden from constant
folding, which handles them wrongly. Arithmetic is hidden from TensorFlow's optimizer where the
optimizer changes more than the last digits.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from tpunb.tensorflow.virtual.graph.function_def import (
    CONTROL_FLOW,
    SLICE_MASKS,
    Add,
    add_constant,
    add_node,
    control_inputs,
    data_inputs,
    integer,
    type_of,
)
from tpunb.tensorflow.virtual.private_names import AttrValue, FunctionDef, NodeDef, dtypes

# The stateful versions differ only in that constant folding leaves them alone.
_STATEFUL = {
    "StatelessWhile": "While",
    "StatelessIf": "If",
    "StatelessCase": "Case",
    # XLA compiles this call, which may contain a loop.
    "PartitionedCall": "StatefulPartitionedCall",
}
_INT32 = type_of(dtypes.int32)


def hide(add: Add, name: str, device: str, tensor: str, dtype: AttrValue) -> str:
    """Hide the source of a tensor from TensorFlow's optimizer."""
    # A placeholder's default may be overridden, so the optimizer does not fold it.
    unknown = AttrValue()
    unknown.shape.unknown_rank = True
    name = f"{name}/hidden"
    add("PlaceholderWithDefault", name, device, [tensor], dtype=dtype, shape=unknown)
    return f"{name}:output:0"


def keep_from_folding(add: Add, node: NodeDef, *, in_body: bool = False) -> None:
    """Keep TensorFlow's optimizer from changes that are wrong here, up to TensorFlow 2.21.

    It folds control flow and compiled calls of constants by running them in one thread. There, a
    loop that is not lowered recurses once a round, and 30,000 rounds overflow the stack. It also
    turns a tensor that is stacked with itself into a tile. The tile's constants then wait for the
    first branch of the condition around it, even if it is in another branch.

    It also loses control inputs of control flow. It removes a wait for a node that gives data as
    well, and then the data, if no branch needs the data in the end. So one node without outputs
    waits for all of them.

    Args:
        add: Writes further nodes.
        node: A node of any kind, which may be changed. Other nodes must need it, because a stateful
            node runs in any case.
        in_body: Whether it is in a body of control flow. There its inputs may be one tensor
            although they have two names.
    """
    node.op = _STATEFUL.get(node.op, node.op)
    if node.op in CONTROL_FLOW:
        _keep_waits(add, node)
    if in_body and node.op == "Pack":
        node.input[0] = hide(add, node.name, node.device, node.input[0], node.attr["T"])
    if node.op == "Case":
        # TensorFlow's optimizer turns a constant index into a call without side effects. It then
        # removes the call with all its updates of variables if nothing reads its result.
        node.input[0] = hide(add, node.name, node.device, node.input[0], _INT32)


def _keep_waits(add: Add, node: NodeDef) -> None:
    """Make a node wait for its control inputs through a node that the optimizer keeps."""
    waits = [f"^{name}" for name in control_inputs(node)]
    if not waits:
        return
    data = [text for text in node.input if not text.startswith("^")]
    trigger = add("ControlTrigger", f"{node.name}/waits", node.device, waits)
    del node.input[:]
    node.input.extend([*data, f"^{trigger}"])


_COMPARISONS = frozenset({"Greater", "GreaterEqual", "Less", "LessEqual"})
_PARTIAL = frozenset({"Acos", "Acosh", "Asin", "Atanh", "Log", "Log1p", "Rsqrt", "Sqrt"})
"""Functions that are NaN for some numbers."""
_TYING = _PARTIAL | frozenset(
    {"Asinh", "Atan", "Ceil", "Elu", "Erf", "Erfc", "Exp", "Expm1", "Floor", "Relu", "Relu6"}
    | {"Rint", "Selu", "Sigmoid", "Sign", "Sinh", "Softplus", "Softsign", "Tanh"}
)
"""Monotonic functions that give different numbers the same result, if only by rounding."""
_FUSED = frozenset({"Add", "AddV2", "BiasAdd", *(f"FusedBatchNorm{k}" for k in ("", "V2", "V3"))})
_CHANGED = {
    # `not a < b` becomes `a >= b`, which is false for NaN (`RemoveLogicalNotStage`).
    "LogicalNot": _COMPARISONS,
    # The maximum of square roots becomes the square root of the maximum, which loses NaN. See
    # `OptimizeMaxOrMinOfMonotonicStage`.
    **dict.fromkeys(("Max", "Min"), _PARTIAL),
    **dict.fromkeys(("MaxPool", "MaxPool3D", "MaxPoolV2"), _PARTIAL),
    # The place of the largest f(x) becomes the place of the largest x, although an earlier f(x) may
    # be as large: https://github.com/tensorflow/tensorflow/issues/116436 and 118675. Releases after
    # 2.21 have https://github.com/tensorflow/tensorflow/pull/122826, which limits this.
    **dict.fromkeys(("ArgMax", "ArgMin"), _TYING),
    # log(1 + x) becomes log1p(x) (`ConvertLog1pStage`), and log(softmax(x)) becomes log_softmax(x)
    # (`LogSoftmaxStage`). Both are finite where the sum or the softmax is rounded to 1 or to 0.
    # exp(x) - 1 becomes expm1(x) (`ConvertExpm1Stage`).
    "Log": frozenset({"Add", "AddV2", "Softmax"}),
    "Sub": frozenset({"Exp"}),
    # oneDNN's fused product or batch norm, with a bias and a Relu, gives 0 for NaN.
    **dict.fromkeys(("Relu", "Relu6"), _FUSED),
}
"""Operations that TensorFlow's optimizer changes together with the producers of their first input.

The stages are in core/grappler/optimizers/arithmetic_optimizer.cc, and oneDNN's fusions in
remapper.cc beside it, up to TensorFlow 2.21. `python -m differential --optimizer` compares
functions with the optimizer and without.
"""
_TRANSPARENT = frozenset({"Cast", "Identity", "Reshape", "StopGradient"})


def keep_arithmetic(add: Add, node: NodeDef, copy: NodeDef, nodes: Mapping[str, NodeDef]) -> None:
    """Keep TensorFlow's optimizer from changing what a node computes.

    Args:
        add: Writes further nodes.
        node: A node as it was traced.
        copy: The node as it is written; its first input may be replaced.
        nodes: The traced nodes, by their names.
    """
    if copy.op != node.op or not _is_changed(node, nodes):
        return
    dtype = node.attr["T"] if "T" in node.attr else type_of(dtypes.bool)
    copy.input[0] = hide(add, f"{copy.name}/kept", copy.device, copy.input[0], dtype)


def _is_changed(node: NodeDef, nodes: Mapping[str, NodeDef]) -> bool:
    if node.op == "Maximum":
        # With https://github.com/tensorflow/tensorflow/pull/56375, `maximum(x, c * x)` becomes a
        # LeakyRelu even if c is above 1, where it is the minimum. The product's inputs can look
        # different here.
        producers = [_producer(source.source, nodes) for source in data_inputs(node)]
        return "Const" not in producers and dtypes.as_dtype(node.attr["T"].type).is_floating
    return node.op in _CHANGED and (
        _producer(data_inputs(node)[0].source, nodes) in _CHANGED[node.op]
    )


def _producer(name: str, nodes: Mapping[str, NodeDef]) -> str:
    """Return the operation that gives a tensor, ignoring nodes that the optimizer may remove."""
    while name in nodes and nodes[name].op in _TRANSPARENT:
        name = data_inputs(nodes[name])[0].source
    return nodes[name].op if name in nodes else ""


CONVOLUTIONS = frozenset({"Conv2D", "Conv3D", "DepthwiseConv2dNative"})
_NO_MASKS = dict.fromkeys(SLICE_MASKS, integer(0))


def guard(add: Add, node: NodeDef, shape: Sequence[int] | None = None) -> str | None:
    """Make a node safe for a replica without examples.

    Args:
        add: Writes further nodes.
        node: The node; it may be changed.
        shape: The shape of its result, with -1 for the batch; None if other sizes are unknown.

    Returns:
        The tensor to read instead of its result; None if the result stays.
    """
    if node.op in CONVOLUTIONS:
        if shape is not None:
            return _give_shape(add, node, shape)
        return _with_one_row(add, node, ("T",), rank=5 if node.op == "Conv3D" else 4)
    if node.op == "MaxPool3DGrad":  # MaxPool3DGrad has no second version
        return _with_one_row(add, node, ("TInput", "TInput", "T"), rank=5)
    if node.op == "DepthwiseConv2dNativeBackpropFilter":
        return _or_zeros(add, node)
    if node.op == "MaxPoolGrad" and node.attr["padding"].s != b"EXPLICIT":
        _without_onednn(add, node)
    elif node.op == "BiasAddGrad":
        # oneDNN would compute it together with the convolution's gradient, and would give only that
        # gradient for an empty batch.
        node.input[0] = hide(add, node.name, node.device, node.input[0], node.attr["T"])
    return None


def guard_all(function: FunctionDef) -> None:
    """Make the nodes of a function that replicas call safe."""
    add = functools.partial(add_node, function)
    instead: dict[str, str] = {}
    for node in list(function.node_def):
        text = guard(add, node)
        if text is not None:
            instead[f"{node.name}:output:0"] = text
    for node in function.node_def:
        for index, text in enumerate(node.input):
            if text in instead and instead[text].partition(":")[0] != node.name:
                node.input[index] = instead[text]
    for name, text in list(function.ret.items()):
        function.ret[name] = instead.get(text, text)


def _give_shape(add: Add, node: NodeDef, shape: Sequence[int]) -> str:
    """Give a convolution's result its shape."""
    constant = add_constant(add, f"{node.name}/shape", node.device, shape)
    # TensorFlow's optimizer trusts the shape that it infers, and would remove a reshape to it.
    hidden = hide(add, node.name, node.device, constant, _INT32)
    inputs = [f"{node.name}:output:0", hidden]
    reshape = add(
        "Reshape", f"{node.name}/shaped", node.device, inputs, T=node.attr["T"], Tshape=_INT32
    )
    return f"{reshape}:output:0"


def _with_one_row(add: Add, node: NodeDef, types: Sequence[str], rank: int) -> str:
    """Give a node an additional example of zeros, and leave it out of the result."""
    rows = [[0, 1], *[[0, 0]] * (rank - 1)]
    margins = add_constant(add, f"{node.name}/margins", node.device, rows)
    for index, key in enumerate(types):
        inputs = [node.input[index], margins]
        name = f"{node.name}/padded_{index}"
        dtype = node.attr[key]
        padded = add("Pad", name, node.device, inputs, T=dtype, Tpaddings=_INT32)
        # oneDNN would merge the padding into the convolution, as padding of its image.
        node.input[index] = hide(add, name, node.device, f"{padded}:output:0", dtype)
    limits = [
        add_constant(add, f"{node.name}/{name}", node.device, [value])
        for name, value in (("begin", 0), ("end", -1), ("strides", 1))
    ]
    inputs = [f"{node.name}:output:0", *limits]
    rows_kept = add(
        "StridedSlice",
        f"{node.name}/rows",
        node.device,
        inputs,
        T=node.attr["T"],
        Index=_INT32,
        **_NO_MASKS,
    )
    return f"{rows_kept}:output:0"


def _or_zeros(add: Add, node: NodeDef) -> str:
    """Use zeros as the sum over no examples."""
    dtype, device = node.attr["T"], node.device
    size = add("Size", f"{node.name}/size", device, [node.input[0]], T=dtype, out_type=_INT32)
    none = add_constant(add, f"{node.name}/none", device, 0)
    inputs = [f"{size}:output:0", none]
    some = add("Greater", f"{node.name}/some", device, inputs, T=_INT32)
    zero = add("Cast", f"{node.name}/zero", device, [none], SrcT=_INT32, DstT=dtype)
    inputs = [f"{some}:z:0", f"{node.name}:output:0", f"{zero}:y:0"]
    select = add("SelectV2", f"{node.name}/or_zeros", device, inputs, T=dtype)
    return f"{select}:output:0"


def _without_onednn(add: Add, node: NodeDef) -> None:
    """Turn a max-pooling's gradient into its second version: oneDNN has no kernel for it."""
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
