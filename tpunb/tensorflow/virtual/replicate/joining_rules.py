"""Rules by which one node computes an operation for all replicas.

A rule sees a node with inputs that vary between the replicas. Axis 0 of a varying value need not be
a batch: a value without a batch is stacked along a new axis.
"""

from __future__ import annotations

import string

import numpy as np

from tpunb.tensorflow.virtual.graph.function_def import SLICE_MASKS, Sizes, integer, type_of
from tpunb.tensorflow.virtual.private_names import AttrValue, dtypes
from tpunb.tensorflow.virtual.replicate.joined_forms import (
    INNER,
    LISTED,
    REAL,
    ROWS,
    SHARED,
    STACKED,
    SUMMED,
    Form,
    Input,
    JoiningRule,
    KnownNode,
    Plan,
    Rule,
    Take,
    constant,
    listed_shape,
    rules_for,
)


def _reshape(node: KnownNode) -> Plan | None:
    """Join a change of shape; only the resulting shape matters."""
    before, (after,) = node.inputs[0].sizes, node.outputs
    attributes = {"T": node.definition.attr["T"], "Tshape": type_of(dtypes.int32)}
    if before and after and before[0] == after[0]:
        return node.plan([ROWS, constant(node.rows(after))], Form.ROWS, "Reshape", attributes)
    takes = [STACKED, constant(node.stacked(after))]
    return node.plan(takes, Form.STACKED, "Reshape", attributes)


def _transpose(node: KnownNode) -> Plan | None:
    order = node.inputs[1].integers()
    if order is None:
        return None
    if order and order[0] == 0:
        return node.plan([ROWS, SHARED], Form.ROWS)
    moved = constant([0, *(axis + 1 for axis in order)], node.inputs[1])
    return node.plan([STACKED, moved], Form.STACKED)


def _concatenation(node: KnownNode) -> Plan | None:
    *values, along = node.inputs
    axis = along.integers()
    if axis is None:
        return None
    at = _from_front(axis[0], len(node.outputs[0]))
    if at:
        return node.plan([ROWS] * len(values) + [constant(at, along)], Form.ROWS)
    return node.plan([STACKED] * len(values) + [constant(1, along)], Form.STACKED)


def _pack(node: KnownNode) -> Plan | None:
    """Join an operation that stacks tensors along a new axis, or unstacks one."""
    rank = len(node.outputs[0] if node.definition.op == "Pack" else node.inputs[0].sizes)
    attributes = {"axis": integer(1 + _from_front(node.definition.attr["axis"].i, rank))}
    return node.plan([STACKED] * len(node.inputs), Form.STACKED, attributes=attributes)


def _from_front(axis: int, rank: int) -> int:
    """Return an axis counted from the front, given an axis that may be counted from the end."""
    return axis + rank if axis < 0 else axis


def _split(node: KnownNode) -> Plan | None:
    along, value = node.inputs
    axis = along.integers()
    if axis is None:
        return None
    at = _from_front(axis[0], len(value.sizes))
    take, position = (ROWS, constant(at, along)) if at else (STACKED, constant(1, along))
    return node.plan([position, take], take.form)


def _strided_slice(node: KnownNode) -> Plan | None:
    """Join a slice, or its gradient, which takes the shape first and the values last."""
    is_slice = node.definition.op == "StridedSlice"
    bounds = node.inputs[1:4]
    known = [bound.integers() for bound in bounds]
    if any(numbers is None for numbers in known):
        return None
    moved = [
        [front, *numbers]
        for front, numbers in zip((0, 0, 1), known, strict=True)
        if numbers is not None
    ]
    takes = [*map(constant, moved, bounds)]
    masks = {
        key: integer(2 * node.definition.attr[key].i + (key in {"begin_mask", "end_mask"}))
        for key in SLICE_MASKS  # the whole of the new first axis is taken
    }
    if is_slice:
        takes = [STACKED, *takes]
    else:
        takes = [constant(node.stacked(node.outputs[0]), node.inputs[0]), *takes, STACKED]
    return node.plan(takes, Form.STACKED, attributes=masks)


def _pad(node: KnownNode) -> Plan | None:
    margins = node.inputs[1].value()
    if margins is None:
        return None
    moved = constant(np.concatenate([np.zeros([1, 2], np.int64), margins]), node.inputs[1])
    return node.plan([STACKED, moved], Form.STACKED)


def _tile(node: KnownNode) -> Plan | None:
    times = node.inputs[1].integers()
    if times is None:
        return None
    return node.plan([STACKED, constant([1, *times], node.inputs[1])], Form.STACKED)


def _broadcast(node: KnownNode) -> Plan | None:
    (after,) = node.outputs
    whole = constant(node.stacked(after), node.inputs[1])
    return node.plan([_stacked(node.inputs[0], len(after)), whole], Form.STACKED)


def _stacked(tensor: Input, rank: int) -> Take:
    """Take a varying input stacked, with axes of size 1 in front up to a rank."""
    if not tensor.varies:
        return SHARED
    return Take(Form.STACKED, (1,) * (rank - len(tensor.sizes)) + tensor.sizes)


_MOVES: dict[str, JoiningRule] = {
    **rules_for(_broadcast, "BroadcastTo", varying=[0]),
    **rules_for(_concatenation, "ConcatV2"),
    **rules_for(_pack, "Pack Unpack", "axis"),
    **rules_for(_pad, "Pad", varying=[0]),
    **rules_for(_reshape, "ExpandDims Reshape Squeeze", "squeeze_dims", varying=[0]),
    **rules_for(_split, "Split", varying=[1]),
    **rules_for(_strided_slice, "StridedSlice", " ".join(SLICE_MASKS), varying=[0]),
    **rules_for(_strided_slice, "StridedSliceGrad", " ".join(SLICE_MASKS), varying=[4]),
    **rules_for(_tile, "Tile", varying=[0]),
    **rules_for(_transpose, "Transpose", varying=[0]),
}
"""The rules for operations that move elements."""


_GAIN = 4.0
"""A product of many rows takes less time than the same rows in many small products.

A product of 16 rows by 64 x 64 weights, for each of 8 replicas, saves 5 to 7 nodes for each replica
(`python -m benchmarks.joining_costs`, two AMD EPYC processors, TensorFlow 2.21, 2026-11-28).
"""


def _matrices(node: KnownNode) -> Plan | None:
    a, b = node.inputs
    turned_a, turned_b = (node.definition.attr[key].b for key in ("transpose_a", "transpose_b"))
    if node.summed and a.varies and b.varies and turned_a and not turned_b:
        return node.plan([ROWS, ROWS], Form.SUMMED, gain=_GAIN)
    if a.varies and not b.varies and not turned_a:
        return node.plan([ROWS, SHARED], Form.ROWS, gain=_GAIN)
    attributes = {
        "T": node.definition.attr["T"],
        "adj_x": AttrValue(b=turned_a),
        "adj_y": AttrValue(b=turned_b),
    }
    takes = [STACKED if tensor.varies else SHARED for tensor in node.inputs]
    return node.plan(takes, Form.STACKED, "BatchMatMulV2", attributes)


def _batched_matrices(node: KnownNode) -> Plan | None:
    (result,) = node.outputs
    rank = len(result)
    if rank > 2 and all(_is_row_wise(tensor, rank, result[0]) for tensor in node.inputs):
        takes = [ROWS if tensor.varies else SHARED for tensor in node.inputs]
        return node.plan(takes, Form.ROWS, gain=_GAIN)
    return node.plan([_stacked(tensor, rank) for tensor in node.inputs], Form.STACKED, gain=_GAIN)


def _einsum(node: KnownNode) -> Plan | None:
    equation = node.definition.attr["equation"].s.decode().replace(" ", "")
    operands, arrow, result = equation.partition("->")
    labels = operands.split(",")
    free = [letter for letter in string.ascii_letters if letter not in equation]
    if not arrow or not free or len(labels) != len(node.inputs):
        return None
    replica = free[0]
    labels = [
        replica + letters if tensor.varies else letters
        for letters, tensor in zip(labels, node.inputs, strict=True)
    ]
    # A factor that all replicas share would multiply the sum. With infinities that gives another
    # number.
    summed = node.summed and all(tensor.varies for tensor in node.inputs)
    whole = result if summed else replica + result
    attributes = {"equation": AttrValue(s=f"{','.join(labels)}->{whole}".encode())}
    takes = [STACKED if tensor.varies else SHARED for tensor in node.inputs]
    gives = Form.SUMMED if summed else Form.STACKED
    return node.plan(takes, gives, attributes=attributes, gain=_GAIN)


def _rows_of(*inputs: int, gain: float = 2.0, summed: bool = False) -> Rule:
    """Return a rule for operations on each row of some inputs, with other inputs shared.

    Args:
        inputs: The indices of these inputs.
        gain: The saving; see `Plan`.
        summed: Whether the operation sums over the rows.
    """

    def rule(node: KnownNode) -> Plan | None:
        if summed and not node.summed:
            return None
        if any(tensor.varies and k not in inputs for k, tensor in enumerate(node.inputs)):
            return None
        takes = [ROWS if k in inputs else SHARED for k in range(len(node.inputs))]
        return node.plan(takes, Form.SUMMED if summed else Form.ROWS, gain=gain)

    return rule


def _image_gradient(node: KnownNode) -> Plan | None:
    sizes = constant(node.rows(node.outputs[0]), node.inputs[0])
    return node.plan([sizes, SHARED, ROWS], Form.ROWS, gain=_GAIN)


def _mean_pooling_gradient(node: KnownNode) -> Plan | None:
    sizes = constant(node.rows(node.outputs[0]), node.inputs[0])
    return node.plan([sizes, ROWS], Form.ROWS, gain=2.0)


_POOLING = "ksize strides padding explicit_paddings data_format"
_CONVOLUTION = "strides padding explicit_paddings data_format dilations use_cudnn_on_gpu"

_PRODUCTS: dict[str, JoiningRule] = {
    **rules_for(_matrices, "MatMul", "transpose_a transpose_b grad_a grad_b"),
    **rules_for(_batched_matrices, "BatchMatMulV2", "adj_x adj_y grad_x grad_y"),
    **rules_for(_einsum, "Einsum", "equation"),
    **rules_for(_rows_of(0, gain=_GAIN), "Conv2D Conv3D DepthwiseConv2dNative", _CONVOLUTION),
    **rules_for(
        _image_gradient,
        "Conv2DBackpropInput Conv3DBackpropInputV2 DepthwiseConv2dNativeBackpropInput",
        _CONVOLUTION,
        varying=[2],
    ),
    **rules_for(
        _rows_of(0, 2, gain=_GAIN, summed=True),
        "Conv2DBackpropFilter Conv3DBackpropFilterV2 DepthwiseConv2dNativeBackpropFilter",
        _CONVOLUTION,
    ),
    **rules_for(_mean_pooling_gradient, "AvgPoolGrad AvgPool3DGrad", _POOLING),
}
"""The rules for products, and for the gradients of pooling, which are similar."""


def _element(sizes: Sizes) -> Take:
    """Return how an element of a list is read and written."""
    return ROWS if sizes else STACKED


def _whole(node: KnownNode, sizes: Sizes, like: Input) -> Take:
    """Return the shape of all replicas' elements, to replace the shape of one replica's element."""
    return constant(node.rows(sizes) if sizes else node.stacked(sizes), like)


def _get(node: KnownNode) -> Plan | None:
    (sizes,) = node.outputs
    takes = [LISTED, SHARED, _whole(node, sizes, node.inputs[2])]
    return node.plan(takes, _element(sizes).form) if node.inputs[0].varies else None


def _set(node: KnownNode) -> Plan | None:
    return node.plan([LISTED, SHARED, _element(node.inputs[2].sizes)], Form.LISTED)


def _push(node: KnownNode) -> Plan | None:
    return node.plan([LISTED, _element(node.inputs[1].sizes)], Form.LISTED)


def _pop(node: KnownNode) -> Plan | None:
    _, sizes = node.outputs
    takes = [LISTED, _whole(node, sizes, node.inputs[1])]
    return Plan(takes, [Form.LISTED, _element(sizes).form]) if node.inputs[0].varies else None


def _stack(node: KnownNode) -> Plan | None:
    (sizes,) = node.outputs
    return node.plan([LISTED, _whole(node, sizes[1:], node.inputs[1])], Form.INNER)


def _from_tensor(node: KnownNode) -> Plan | None:
    shape = _of_elements(node, node.inputs[1])
    return node.plan([INNER, shape], Form.LISTED) if node.inputs[0].varies else None


def _new(node: KnownNode) -> Plan | None:
    """Join a new list whose shape or length comes from a varying list."""
    if dtypes.as_dtype(node.definition.attr["element_dtype"].type) not in REAL:
        return None
    shape = LISTED if node.inputs[0].varies else _of_elements(node, node.inputs[0])
    return node.plan([shape, SHARED], Form.LISTED)


def _of_elements(node: KnownNode, shape: Input) -> Take:
    """Return the shape of a new joined list's elements, to replace a replica's shape."""
    value = None if shape.varies else shape.value()
    return constant(listed_shape(value, node.replicas), shape)


def _length(node: KnownNode) -> Plan | None:
    return node.plan([LISTED], Form.SHARED)


def _lists(node: KnownNode) -> Plan | None:
    """Join an operation on lists that acts on each element, or returns their shape."""
    return node.plan([LISTED] * len(node.inputs), Form.LISTED)


_LISTS: dict[str, JoiningRule] = {
    **rules_for(_get, "TensorListGetItem", varying=[0, 2]),
    **rules_for(_set, "TensorListSetItem", varying=[0, 2]),
    **rules_for(_push, "TensorListPushBack"),
    **rules_for(_pop, "TensorListPopBack"),
    **rules_for(_stack, "TensorListStack", "num_elements"),
    **rules_for(_from_tensor, "TensorListFromTensor"),
    **rules_for(_new, "EmptyTensorList TensorListReserve"),
    **rules_for(_length, "TensorListLength"),
    **rules_for(_lists, "AddN Identity TensorListElementShape ZerosLike"),
}
"""The rules for lists of tensors.

The shape of a varying list's elements is itself kept as a list; only new lists may take it.
"""


_BROADCASTING = """
    Abs AddV2 BitwiseAnd Ceil Cos DivNoNan Elu Equal Erf Erfc Exp Expm1 Floor FloorDiv FloorMod
    Greater GreaterEqual Identity IsFinite IsInf IsNan LeakyRelu Less LessEqual Log Log1p LogicalAnd
    LogicalNot LogicalOr Maximum Minimum Mul Neg NotEqual OnesLike Pow RealDiv Reciprocal Relu Relu6
    Round Rsqrt SelectV2 Selu Sigmoid Sign Sin Softplus Softsign Sqrt Square SquaredDifference
    StopGradient Sub Tanh ZerosLike
"""
_UNIFORM = """
    AddN EluGrad LeakyReluGrad Relu6Grad ReluGrad RsqrtGrad Select SeluGrad SigmoidGrad
    SoftmaxCrossEntropyWithLogits SoftsignGrad SqrtGrad TanhGrad
"""
_REDUCTIONS = "All Any ArgMax Cumsum Max Mean Min Prod ReverseV2 Sum"
_RESIZING = "ResizeBilinear ResizeNearestNeighbor ResizeNearestNeighborGrad"
_LINEAR = frozenset(
    {"AddN", "AddV2", "ExpandDims", "Identity", "Mul", "Neg", "RealDiv", "Reshape", "Squeeze"}
    | {"StopGradient", "Sub", "Transpose"}
)
"""Operations that give the sum of the replicas' results for the sum of the replicas' values."""


def rule_of(op: str, *, lists: bool = False) -> JoiningRule | None:
    """Return the rule for an operation, or for its use with lists; None if there is none."""
    return (_LISTS if lists else _RULES).get(op)


def operations() -> frozenset[str]:
    """Return the operations that have a rule."""
    return frozenset({**_RULES, **_LISTS})


def _elementwise(node: KnownNode) -> Plan | None:
    """Join an operation on elements whose inputs broadcast."""
    (result,) = node.outputs
    if result and all(_is_row_wise(tensor, len(result), result[0]) for tensor in node.inputs):
        return node.plan([ROWS if tensor.varies else SHARED for tensor in node.inputs], Form.ROWS)
    return node.plan([_stacked(tensor, len(result)) for tensor in node.inputs], Form.STACKED)


def _is_row_wise(tensor: Input, rank: int, size: int) -> bool:
    """Return whether each row of a result comes from one row of an input, or from a shared row."""
    if tensor.varies:
        return len(tensor.sizes) == rank and tensor.sizes[0] == size
    return len(tensor.sizes) < rank or tensor.sizes[0] == 1


def _uniform(node: KnownNode) -> Plan | None:
    """Join an operation on the elements of inputs of one shape."""
    if len({tensor.sizes for tensor in node.inputs}) != 1:
        return None
    take = ROWS if node.outputs[0] else STACKED
    return node.plan([take] * len(node.inputs), take.form)


def linear(node: KnownNode) -> Plan | None:
    """Join an operation that can equally be applied to the sum of the varying inputs."""
    if node.definition.op not in _LINEAR or not _is_linear(node):
        return None
    return node.plan([SUMMED if tensor.varies else SHARED for tensor in node.inputs], Form.SUMMED)


def _is_linear(node: KnownNode) -> bool:
    """Return whether a node of a `_LINEAR` operation is linear in its varying inputs."""
    if node.definition.op in {"Mul", "RealDiv"}:
        first, second = node.inputs
        varying, factor = (first, second) if first.varies else (second, first)
        divided = node.definition.op == "RealDiv" and second.varies
        return (
            not factor.varies
            and not divided
            and varying.sizes == node.outputs[0]
            and _is_usual(factor.value())
        )
    if node.definition.op in {"AddN", "AddV2", "Sub"}:
        return all(tensor.varies and tensor.sizes == node.outputs[0] for tensor in node.inputs)
    return node.inputs[0].varies and not any(tensor.varies for tensor in node.inputs[1:])


def _is_usual(factor: np.ndarray | None) -> bool:
    """Return whether a factor or divisor is known, finite and not zero.

    A sum times infinity is infinite, but products of both signs have no sum.
    """
    known = None if factor is None else np.asarray(factor, np.float64)
    return known is not None and bool(np.all(np.isfinite(known) & (known != 0)))


def _softmax(node: KnownNode) -> Plan | None:
    take = ROWS if len(node.inputs[0].sizes) > 1 else STACKED
    return node.plan([take], take.form)


def _reduction(node: KnownNode) -> Plan | None:
    """Join a reduction over axes, which are the second input."""
    value, over = node.inputs
    axes = over.integers()
    if axes is None:
        return None
    rank = len(value.sizes)
    axes = [_from_front(axis, rank) for axis in axes]
    if rank and 0 not in axes and node.outputs[0]:
        return node.plan([ROWS, SHARED], Form.ROWS)
    if rank and 0 in axes and node.summed and node.definition.op == "Sum":
        return node.plan([ROWS, SHARED], Form.SUMMED)
    return node.plan([STACKED, _like(over, [axis + 1 for axis in axes])], Form.STACKED)


def _like(tensor: Input, values: list[int]) -> Take:
    """Return integers that replace an input: a single integer if the input is a scalar."""
    return constant(values if tensor.sizes else values[0], tensor)


def _one_hot(node: KnownNode) -> Plan | None:
    axis = node.definition.attr["axis"].i
    if axis == -1 and node.inputs[0].sizes:
        return node.plan([ROWS, SHARED, SHARED, SHARED], Form.ROWS)
    moved = integer(axis if axis == -1 else axis + 1)
    return node.plan([STACKED, SHARED, SHARED, SHARED], Form.STACKED, attributes={"axis": moved})


def _gather(node: KnownNode) -> Plan | None:
    """Join a gathering of rows, from a shared table or from each replica's own."""
    table, indices, axis = node.inputs
    along, inner = axis.integers(), node.definition.attr["batch_dims"].i
    if along is None or inner < 0:
        return None
    (at,) = along
    if not table.varies:
        if at or inner:
            return None
        take = ROWS if indices.sizes else STACKED
        return node.plan([SHARED, take, SHARED], take.form)
    moved = _like(axis, [_from_front(at, len(table.sizes)) + 1])
    if not indices.varies:
        return None if inner else node.plan([STACKED, SHARED, moved], Form.STACKED)
    attributes = {"batch_dims": integer(inner + 1)}
    return node.plan([STACKED, STACKED, moved], Form.STACKED, attributes=attributes)


def _gather_from_variable(node: KnownNode) -> Plan | None:
    take = ROWS if node.inputs[1].sizes else STACKED
    return node.plan([SHARED, take], take.form)


def _segment_sum(node: KnownNode) -> Plan | None:
    """Join a sum of rows by ids, which is the gradient of a gathering."""
    data, ids, _ = node.inputs
    if not node.summed or len(ids.sizes) != 1 or not data.sizes:
        return None
    return node.plan([ROWS, ROWS, SHARED], Form.SUMMED)


def _cast(node: KnownNode) -> Plan | None:
    """Join a change of type.

    If a number does not fit into a small or unsigned integer, the processor's result depends on the
    number's place in a tensor.
    """
    result = dtypes.as_dtype(node.definition.attr["DstT"].type)
    whole = result.is_integer and result not in {dtypes.int32, dtypes.int64}
    return None if whole and node.inputs[0].dtype.is_floating else _elementwise(node)


def _bitcast(node: KnownNode) -> Plan | None:
    return _elementwise(node) if node.outputs[0] == node.inputs[0].sizes else None


_RULES: dict[str, JoiningRule] = {
    **rules_for(_elementwise, _BROADCASTING, "alpha"),
    **rules_for(_cast, "Cast", "Truncate"),
    **rules_for(_uniform, _UNIFORM, "alpha"),
    **_PRODUCTS,
    **_MOVES,
    **rules_for(_softmax, "LogSoftmax Softmax"),
    **rules_for(_reduction, _REDUCTIONS, "exclusive keep_dims reverse", varying=[0]),
    **rules_for(_rows_of(0), "AvgPool AvgPool3D MaxPool MaxPool3D", _POOLING),
    **rules_for(_rows_of(0, 1, 2), "MaxPoolGrad MaxPool3DGrad", _POOLING),
    **rules_for(_rows_of(0), _RESIZING, "align_corners half_pixel_centers"),
    **rules_for(_rows_of(0, 1), "ResizeBilinearGrad", "align_corners half_pixel_centers"),
    **rules_for(_rows_of(0, 1), "InTopKV2 SparseSoftmaxCrossEntropyWithLogits"),
    **rules_for(_bitcast, "Bitcast"),
    **rules_for(_rows_of(0, gain=1.0), "BiasAdd", "data_format"),
    **rules_for(_rows_of(0, gain=1.0, summed=True), "BiasAddGrad", "data_format"),
    **rules_for(_gather, "GatherV2", "batch_dims", varying=[0, 1]),
    **rules_for(_gather_from_variable, "ResourceGather"),
    **rules_for(_one_hot, "OneHot", "axis", varying=[0]),
    **rules_for(_segment_sum, "UnsortedSegmentSum", varying=[0, 1]),
}
