"""How one node does for all replicas what it does on each, by operation.

A rule sees a node of which some inputs vary between the replicas. Axis 0 of what varies
need not be a batch: a value that has none is stacked along a new axis.
"""

from __future__ import annotations

import string

import numpy as np

from tpunb.virtual._tensorflow import AttrValue, dtypes
from tpunb.virtual.graph.function_def import Sizes, integer, type_of
from tpunb.virtual.replicate.joined_forms import (
    INNER,
    LISTED,
    REAL,
    ROWS,
    SHARED,
    STACKED,
    SUMMED,
    Form,
    Holding,
    Input,
    Plan,
    Rule,
    Seen,
    Take,
    constant,
    holding,
    listed_shape,
)

_MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


def _reshape(seen: Seen) -> Plan | None:
    """A change of shape, of which only the result matters."""
    before, (after,) = seen.inputs[0].sizes, seen.outputs
    if not seen.inputs[0].varies or any(one.varies for one in seen.inputs[1:]):
        return None
    attributes = {"T": seen.node.attr["T"], "Tshape": type_of(dtypes.int32)}
    op = "Reshape"
    if before and after and before[0] == after[0]:
        return seen.plan([ROWS, constant(seen.rows(after))], Form.ROWS, op, attributes)
    return seen.plan([STACKED, constant(seen.stacked(after))], Form.STACKED, op, attributes)


def _transpose(seen: Seen) -> Plan | None:
    order = _known(seen.inputs[1])
    if order is None:
        return None
    if order and order[0] == 0:
        return seen.plan([ROWS, SHARED], Form.ROWS)
    moved = constant([0, *(axis + 1 for axis in order)], seen.inputs[1])
    return seen.plan([STACKED, moved], Form.STACKED)


def _concatenation(seen: Seen) -> Plan | None:
    *values, along = seen.inputs
    axis = along.integers()
    if axis is None:
        return None
    at = _from_front(axis[0], len(seen.outputs[0]))
    if at:
        return seen.plan([ROWS] * len(values) + [constant(at, along)], Form.ROWS)
    return seen.plan([STACKED] * len(values) + [constant(1, along)], Form.STACKED)


def _pack(seen: Seen) -> Plan | None:
    return _along_attribute(seen, len(seen.outputs[0]))


def _unpack(seen: Seen) -> Plan | None:
    return _along_attribute(seen, len(seen.inputs[0].sizes))


def _along_attribute(seen: Seen, rank: int) -> Plan | None:
    attributes = {"axis": integer(1 + _from_front(seen.node.attr["axis"].i, rank))}
    return seen.plan([STACKED] * len(seen.inputs), Form.STACKED, attributes=attributes)


def _from_front(axis: int, rank: int) -> int:
    """An axis that may be counted from the end, counted from the front."""
    return axis + rank if axis < 0 else axis


def _split(seen: Seen) -> Plan | None:
    """Parts along an axis, which is the first input, or after the sizes the third."""
    by_sizes = seen.node.op == "SplitV"
    value, along = (seen.inputs[0], seen.inputs[2]) if by_sizes else seen.inputs[::-1]
    axis = along.integers()
    if axis is None or not value.varies or (by_sizes and seen.inputs[1].varies):
        return None
    at = _from_front(axis[0], len(value.sizes))
    take, place = (ROWS, constant(at, along)) if at else (STACKED, constant(1, along))
    takes = [take, SHARED, place] if by_sizes else [place, take]
    return seen.plan(takes, take.form)


def _strided_slice(seen: Seen) -> Plan | None:
    bounds = [_known(one) for one in seen.inputs[1:]]
    if any(one is None for one in bounds) or not seen.inputs[0].varies:
        return None
    begin, end, strides = (one for one in bounds if one is not None)
    moved = ([0, *begin], [0, *end], [1, *strides])
    takes = [STACKED, *map(constant, moved, seen.inputs[1:])]
    return seen.plan(takes, Form.STACKED, attributes=_moved_masks(seen))


def _strided_slice_gradient(seen: Seen) -> Plan | None:
    bounds = [_known(one) for one in seen.inputs[1:4]]
    if any(one is None for one in bounds) or not seen.inputs[4].varies:
        return None
    begin, end, strides = (one for one in bounds if one is not None)
    whole = seen.stacked(seen.outputs[0])
    integers = (whole, [0, *begin], [0, *end], [1, *strides])
    takes = [*map(constant, integers, seen.inputs), STACKED]
    return seen.plan(takes, Form.STACKED, attributes=_moved_masks(seen))


def _moved_masks(seen: Seen) -> dict[str, AttrValue]:
    """The masks of a slice with an axis more in front, of which all is taken."""
    return {
        key: integer(2 * seen.node.attr[key].i + (key in {"begin_mask", "end_mask"}))
        for key in _MASKS
    }


def _known(one: Input) -> list[int] | None:
    return None if one.varies else one.integers()


def _slice(seen: Seen) -> Plan | None:
    begin = _known(seen.inputs[1])
    if begin is None or seen.inputs[2].varies:
        return None
    integers = ([0, *begin], seen.stacked(seen.outputs[0]))
    return seen.plan([STACKED, *map(constant, integers, seen.inputs[1:])], Form.STACKED)


def _pad(seen: Seen) -> Plan | None:
    margins = None if seen.inputs[1].varies else seen.inputs[1].value()
    if margins is None or any(one.varies for one in seen.inputs[2:]):
        return None
    moved = constant(np.concatenate([np.zeros([1, 2], np.int64), margins]), seen.inputs[1])
    return seen.plan([STACKED, moved, *[SHARED] * len(seen.inputs[2:])], Form.STACKED)


def _tile(seen: Seen) -> Plan | None:
    times = _known(seen.inputs[1])
    if times is None:
        return None
    return seen.plan([STACKED, constant([1, *times], seen.inputs[1])], Form.STACKED)


def _broadcast(seen: Seen) -> Plan | None:
    value, (after,) = seen.inputs[0], seen.outputs
    if not value.varies or seen.inputs[1].varies:
        return None
    sizes = (1,) * (len(after) - len(value.sizes)) + value.sizes
    whole = constant(seen.stacked(after), seen.inputs[1])
    return seen.plan([Take(Form.STACKED, sizes), whole], Form.STACKED)


SHAPES: dict[str, Holding] = {
    **holding(_broadcast, "BroadcastTo"),
    **holding(_concatenation, "ConcatV2"),
    **holding(_pack, "Pack", "axis"),
    **holding(_pad, "MirrorPad Pad PadV2", "mode"),
    **holding(_reshape, "ExpandDims Reshape Squeeze", "squeeze_dims"),
    **holding(_slice, "Slice"),
    **holding(_split, "Split SplitV"),
    **holding(_strided_slice, "StridedSlice", " ".join(_MASKS)),
    **holding(_strided_slice_gradient, "StridedSliceGrad", " ".join(_MASKS)),
    **holding(_tile, "Tile"),
    **holding(_transpose, "Transpose"),
    **holding(_unpack, "Unpack", "axis"),
}
"""The rules for what moves elements."""


_GAIN = 4.0
"""A product of many rows takes less than as many products of few."""


def _matrices(seen: Seen) -> Plan | None:
    a, b = seen.inputs
    turned_a, turned_b = (seen.node.attr[key].b for key in ("transpose_a", "transpose_b"))
    if seen.summed and a.varies and b.varies and turned_a and not turned_b:
        return seen.plan([ROWS, ROWS], Form.SUMMED, gain=_GAIN)
    if a.varies and not b.varies and not turned_a:
        return seen.plan([ROWS, SHARED], Form.ROWS, gain=_GAIN)
    attributes = {
        "T": seen.node.attr["T"],
        "adj_x": AttrValue(b=turned_a),
        "adj_y": AttrValue(b=turned_b),
    }
    takes = [STACKED if one.varies else SHARED for one in seen.inputs]
    return seen.plan(takes, Form.STACKED, "BatchMatMulV2", attributes)


def _batched_matrices(seen: Seen) -> Plan | None:
    (result,) = seen.outputs
    rank = len(result)

    def is_row_wise(k: int) -> bool:
        one = seen.inputs[k]
        if one.varies:
            return len(one.sizes) == rank and one.sizes[0] == result[0]
        return len(one.sizes) < rank or one.sizes[0] == 1

    both = all(one.varies for one in seen.inputs)
    if not both and seen.node.op == "BatchMatMul":  # which does not broadcast
        return None
    if rank > 2 and is_row_wise(0) and is_row_wise(1):
        takes = [ROWS if one.varies else SHARED for one in seen.inputs]
        return seen.plan(takes, Form.ROWS, gain=_GAIN)
    takes = [
        Take(Form.STACKED, (1,) * (rank - len(one.sizes)) + one.sizes) if one.varies else SHARED
        for one in seen.inputs
    ]
    return seen.plan(takes, Form.STACKED, gain=_GAIN)


def _einsum(seen: Seen) -> Plan | None:
    equation = seen.node.attr["equation"].s.decode().replace(" ", "")
    given, arrow, result = equation.partition("->")
    labels = given.split(",")
    free = [letter for letter in string.ascii_letters if letter not in equation]
    if not arrow or not free or len(labels) != len(seen.inputs):
        return None
    replica = free[0]
    labels = [
        replica + one if taken.varies else one
        for one, taken in zip(labels, seen.inputs, strict=True)
    ]
    # Of a factor that all share it would multiply the sum: of infinities another number.
    summed = seen.summed and all(one.varies for one in seen.inputs)
    whole = result if summed else replica + result
    attributes = {"equation": AttrValue(s=f"{','.join(labels)}->{whole}".encode())}
    takes = [STACKED if one.varies else SHARED for one in seen.inputs]
    gives = Form.SUMMED if summed else Form.STACKED
    return seen.plan(takes, gives, attributes=attributes, gain=_GAIN)


def _convolution(seen: Seen) -> Plan | None:
    image, weights = seen.inputs
    if not image.varies or weights.varies:
        return None
    return seen.plan([ROWS, SHARED], Form.ROWS, gain=_GAIN)


def _image_gradient(seen: Seen) -> Plan | None:
    _, weights, gradient = seen.inputs
    if weights.varies or not gradient.varies:
        return None
    sizes = constant(seen.rows(seen.outputs[0]), seen.inputs[0])
    return seen.plan([sizes, SHARED, ROWS], Form.ROWS, gain=_GAIN)


def _weights_gradient(seen: Seen) -> Plan | None:
    if not seen.summed or seen.inputs[1].varies:
        return None
    return seen.plan([ROWS, SHARED, ROWS], Form.SUMMED, gain=_GAIN)


def _mean_pooling_gradient(seen: Seen) -> Plan | None:
    sizes = constant(seen.rows(seen.outputs[0]), seen.inputs[0])
    return seen.plan([sizes, ROWS], Form.ROWS, gain=2.0)


POOLING = "ksize strides padding explicit_paddings data_format"
_CONVOLUTION = "strides padding explicit_paddings data_format dilations use_cudnn_on_gpu"

PRODUCTS: dict[str, Holding] = {
    **holding(_matrices, "MatMul", "transpose_a transpose_b grad_a grad_b"),
    **holding(_batched_matrices, "BatchMatMul BatchMatMulV2", "adj_x adj_y grad_x grad_y"),
    **holding(_einsum, "Einsum", "equation"),
    **holding(_convolution, "Conv2D Conv3D DepthwiseConv2dNative", _CONVOLUTION),
    **holding(
        _image_gradient,
        "Conv2DBackpropInput Conv3DBackpropInputV2 DepthwiseConv2dNativeBackpropInput",
        _CONVOLUTION,
    ),
    **holding(
        _weights_gradient,
        "Conv2DBackpropFilter Conv3DBackpropFilterV2 DepthwiseConv2dNativeBackpropFilter",
        _CONVOLUTION,
    ),
    **holding(_mean_pooling_gradient, "AvgPoolGrad AvgPool3DGrad", POOLING),
}
"""The rules for what multiplies, and for the gradients of pooling, which are alike."""


def _element(sizes: Sizes) -> Take:
    """How an element of a list is taken and given."""
    return ROWS if sizes else STACKED


def _whole(seen: Seen, sizes: Sizes, like: Input) -> Take:
    """The shape of all replicas' elements of a shape, in place of the shape of one."""
    return constant(seen.rows(sizes) if sizes else seen.stacked(sizes), like)


def _get(seen: Seen) -> Plan | None:
    values, index, shape = seen.inputs
    if not values.varies or index.varies:
        return None
    (sizes,) = seen.outputs
    return seen.plan([LISTED, SHARED, _whole(seen, sizes, shape)], _element(sizes).form)


def _set(seen: Seen) -> Plan | None:
    _, index, item = seen.inputs
    return None if index.varies else seen.plan([LISTED, SHARED, _element(item.sizes)], Form.LISTED)


def _push(seen: Seen) -> Plan | None:
    return seen.plan([LISTED, _element(seen.inputs[1].sizes)], Form.LISTED)


def _pop(seen: Seen) -> Plan | None:
    _, sizes = seen.outputs
    if not seen.inputs[0].varies:
        return None
    takes = [LISTED, _whole(seen, sizes, seen.inputs[1])]
    return Plan(takes, [Form.LISTED, _element(sizes).form])


def _stack(seen: Seen) -> Plan | None:
    (sizes,) = seen.outputs
    return seen.plan([LISTED, _whole(seen, sizes[1:], seen.inputs[1])], Form.INNER)


def _from_tensor(seen: Seen) -> Plan | None:
    shape = _of_elements(seen, seen.inputs[1])
    return seen.plan([INNER, shape], Form.LISTED) if seen.inputs[0].varies else None


def _new(seen: Seen) -> Plan | None:
    """A list whose shape, or length, is that of one that varies."""
    if dtypes.as_dtype(seen.node.attr["element_dtype"].type) not in REAL:
        return None
    shape = LISTED if seen.inputs[0].varies else _of_elements(seen, seen.inputs[0])
    return seen.plan([shape, SHARED], Form.LISTED)


def _of_elements(seen: Seen, shape: Input) -> Take:
    """The shape that the elements of a new list have, in place of that of a replica's."""
    value = None if shape.varies else shape.value()
    return constant(listed_shape(value, seen.replicas), shape)


def _length(seen: Seen) -> Plan | None:
    return seen.plan([LISTED], Form.SHARED)


def _lists(seen: Seen) -> Plan | None:
    """What does with each element what it does with a list, or tells their shape."""
    return seen.plan([LISTED] * len(seen.inputs), Form.LISTED)


LISTS: dict[str, Holding] = {
    **holding(_get, "TensorListGetItem"),
    **holding(_set, "TensorListSetItem"),
    **holding(_push, "TensorListPushBack"),
    **holding(_pop, "TensorListPopBack"),
    **holding(_stack, "TensorListStack", "num_elements"),
    **holding(_from_tensor, "TensorListFromTensor"),
    **holding(_new, "EmptyTensorList TensorListReserve"),
    **holding(_length, "TensorListLength"),
    **holding(_lists, "AddN Identity TensorListElementShape ZerosLike"),
}
"""The rules for lists of tensors.

Of lists that vary, the shape of an element is a list's too: it goes into new lists alone.
"""


_BROADCASTING = """
    Abs Acos Acosh Add AddV2 Asin Asinh Atan Atan2 Atanh BitwiseAnd
    BitwiseOr BitwiseXor Ceil CheckNumerics Cos Cosh Digamma Div DivNoNan Elu Equal Erf
    Erfc Erfinv Exp Expm1 Floor FloorDiv FloorMod Greater GreaterEqual Identity Igamma Igammac Inv
    Invert IsFinite IsInf IsNan LeakyRelu LeftShift Less LessEqual Lgamma Log Log1p LogicalAnd
    LogicalNot LogicalOr Maximum Minimum Mod Mul MulNoNan Ndtri Neg NextAfter NotEqual OnesLike
    Pow PreventGradient RealDiv Reciprocal Relu Relu6 RightShift Rint Round Rsqrt SelectV2 Selu
    Sigmoid Sign Sin Sinh Snapshot Softplus Softsign Sqrt Square SquaredDifference StopGradient
    Sub Tan Tanh TruncateDiv TruncateMod Xdivy Xlog1py Xlogy ZerosLike Zeta
"""
_UNIFORM = """
    AddN ApproximateEqual EluGrad InvGrad LeakyReluGrad ReciprocalGrad Relu6Grad ReluGrad RsqrtGrad
    Select SeluGrad SigmoidGrad SoftmaxCrossEntropyWithLogits SoftplusGrad SoftsignGrad SqrtGrad
    TanhGrad
"""
_REDUCTIONS = """
    All Any ArgMax ArgMin Cumprod Cumsum EuclideanNorm Max Mean Min Prod ReverseV2 Sum
"""
_RESIZING = "ResizeBilinear ResizeNearestNeighbor ResizeNearestNeighborGrad"
_LINEAR = """
    Add AddN AddV2 ExpandDims Identity Mul Neg RealDiv Reshape Squeeze StopGradient Sub Transpose
"""
"""Of the sum of the replicas' values they make the sum of what they make of each."""


def rule_of(op: str, *, lists: bool = False) -> Holding | None:
    """The rule for an operation; None if there is none.

    Args:
        op: The operation.
        lists: Whether it takes or gives a list of tensors.
    """
    return (LISTS if lists else _RULES).get(op)


def operations() -> frozenset[str]:
    """The operations that have a rule."""
    return frozenset({**_RULES, **LISTS})


def broadcasting(seen: Seen) -> Plan | None:
    """An operation on elements, whose inputs broadcast."""
    (result,) = seen.outputs
    if result and all(_is_row_wise(one, len(result), result[0]) for one in seen.inputs):
        return seen.plan([ROWS if one.varies else SHARED for one in seen.inputs], Form.ROWS)
    takes = [
        Take(Form.STACKED, (1,) * (len(result) - len(one.sizes)) + one.sizes)
        if one.varies
        else SHARED
        for one in seen.inputs
    ]
    return seen.plan(takes, Form.STACKED)


def _is_row_wise(one: Input, rank: int, size: int) -> bool:
    """Whether each row of a result comes from one row of an input, or from one for all."""
    if one.varies:
        return len(one.sizes) == rank and one.sizes[0] == size
    return len(one.sizes) < rank or one.sizes[0] == 1


def uniform(seen: Seen) -> Plan | None:
    """An operation on the elements of inputs of one shape."""
    if len({one.sizes for one in seen.inputs}) != 1:
        return None
    take = ROWS if seen.outputs[0] else STACKED
    return seen.plan([take] * len(seen.inputs), take.form)


def linear(seen: Seen) -> Plan | None:
    """An operation that can as well be done with the sum of what varies."""
    if seen.node.op not in _LINEAR.split() or not _is_linear(seen):
        return None
    return seen.plan([SUMMED if one.varies else SHARED for one in seen.inputs], Form.SUMMED)


def _is_linear(seen: Seen) -> bool:
    """Whether a node of a `_LINEAR` operation is linear in what varies."""
    if seen.node.op in {"Mul", "RealDiv"}:
        first, second = seen.inputs
        varying, factor = (first, second) if first.varies else (second, first)
        divided = seen.node.op == "RealDiv" and second.varies
        return (
            not factor.varies
            and not divided
            and varying.sizes == seen.outputs[0]
            and _is_usual(factor.value())
        )
    if seen.node.op in {"Add", "AddN", "AddV2", "Sub"}:
        return all(one.varies and one.sizes == seen.outputs[0] for one in seen.inputs)
    return seen.inputs[0].varies and not any(one.varies for one in seen.inputs[1:])


def _is_usual(factor: np.ndarray | None) -> bool:
    """Whether a factor, or divisor, is known and finite: an infinite one tells no sum of products.

    A sum times infinity is infinite where the products are of both signs, and have no sum.
    """
    known = None if factor is None else np.asarray(factor, np.float64)
    return known is not None and bool(np.all(np.isfinite(known) & (known != 0)))


def _along_last_axis(seen: Seen) -> Plan | None:
    """A softmax, or the largest elements of each row."""
    take = ROWS if len(seen.inputs[0].sizes) > 1 else STACKED
    rest = [SHARED] * (len(seen.inputs) - 1)
    if any(one.varies for one in seen.inputs[1:]):
        return None
    return seen.plan([take, *rest], take.form)


def _reduction(seen: Seen) -> Plan | None:
    """A reduction over axes, which are the second input."""
    value, over = seen.inputs
    axes = None if over.varies else over.integers()
    if axes is None:
        return None
    rank = len(value.sizes)
    axes = [axis + rank if axis < 0 else axis for axis in axes]
    if rank and 0 not in axes and seen.outputs[0]:
        return seen.plan([ROWS, SHARED], Form.ROWS)
    if rank and 0 in axes and seen.summed and seen.node.op == "Sum":
        return seen.plan([ROWS, SHARED], Form.SUMMED)
    shape = _like(over, [axis + 1 for axis in axes])
    return seen.plan([STACKED, shape], Form.STACKED)


def _like(one: Input, values: list[int]) -> Take:
    """Integers in place of an input: one alone where that is a scalar."""
    return constant(values if one.sizes else values[0], one)


def _rows_of(*places: int) -> Rule:
    """The rule for what works on each row of some inputs, and takes others as they are."""

    def rule(seen: Seen) -> Plan | None:
        if any(one.varies and k not in places for k, one in enumerate(seen.inputs)):
            return None
        takes = [ROWS if k in places else SHARED for k in range(len(seen.inputs))]
        return seen.plan(takes, Form.ROWS, gain=2.0)

    return rule


def _one_hot(seen: Seen) -> Plan | None:
    axis = seen.node.attr["axis"].i
    if any(one.varies for one in seen.inputs[1:]):
        return None
    if axis == -1 and seen.inputs[0].sizes:
        return seen.plan([ROWS, SHARED, SHARED, SHARED], Form.ROWS)
    moved = AttrValue(i=axis if axis == -1 else axis + 1)
    return seen.plan([STACKED, SHARED, SHARED, SHARED], Form.STACKED, attributes={"axis": moved})


def _gather(seen: Seen) -> Plan | None:
    """Rows of a table that all share, or of each replica's own."""
    table, indices, axis = seen.inputs
    along, inner = axis.integers(), seen.node.attr["batch_dims"].i
    if along is None or inner < 0:
        return None
    (at,) = along
    if not table.varies:
        if at or inner:
            return None
        take = ROWS if indices.sizes else STACKED
        return seen.plan([SHARED, take, SHARED], take.form)
    at = at + len(table.sizes) if at < 0 else at
    moved = _like(axis, [at + 1])
    if not indices.varies:
        if inner:
            return None
        return seen.plan([STACKED, SHARED, moved], Form.STACKED)
    attributes = {"batch_dims": AttrValue(i=inner + 1)}
    return seen.plan([STACKED, STACKED, moved], Form.STACKED, attributes=attributes)


def _gather_from_variable(seen: Seen) -> Plan | None:
    _, indices = seen.inputs
    take = ROWS if indices.sizes else STACKED
    return seen.plan([SHARED, take], take.form)


def _segment_sum(seen: Seen) -> Plan | None:
    """Rows summed by ids: the gradient of a gathering."""
    data, ids, number = seen.inputs
    if not seen.summed or number.varies or len(ids.sizes) != 1 or not data.sizes:
        return None
    return seen.plan([ROWS, ROWS, SHARED], Form.SUMMED)


def _cast(seen: Seen) -> Plan | None:
    """A change of type.

    What a processor makes of numbers that a small or unsigned integer does not hold depends on
    their place in a tensor.
    """
    result = dtypes.as_dtype(seen.node.attr["DstT"].type)
    whole = result.is_integer and result not in {dtypes.int32, dtypes.int64}
    return None if whole and seen.inputs[0].dtype.is_floating else broadcasting(seen)


def _bitcast(seen: Seen) -> Plan | None:
    return broadcasting(seen) if seen.outputs[0] == seen.inputs[0].sizes else None


def _bias_gradient(seen: Seen) -> Plan | None:
    return seen.plan([ROWS], Form.SUMMED) if seen.summed else None


def _bias(seen: Seen) -> Plan | None:
    return seen.plan([ROWS, SHARED], Form.ROWS) if not seen.inputs[1].varies else None


_RULES: dict[str, Holding] = {
    **holding(broadcasting, _BROADCASTING, "alpha message"),
    **holding(_cast, "Cast", "Truncate"),
    **holding(uniform, _UNIFORM, "alpha tolerance"),
    **PRODUCTS,
    **SHAPES,
    **holding(_along_last_axis, "LogSoftmax Softmax TopKV2", "sorted"),
    **holding(_reduction, _REDUCTIONS, "exclusive keep_dims reverse"),
    **holding(_rows_of(0), "AvgPool AvgPool3D MaxPool MaxPool3D", POOLING),
    **holding(_rows_of(0, 1, 2), "MaxPoolGrad MaxPool3DGrad", POOLING),
    **holding(_rows_of(0), "DepthToSpace SpaceToDepth", "block_size data_format"),
    **holding(_rows_of(0), "LRN", "alpha beta bias depth_radius"),
    **holding(_rows_of(0), _RESIZING, "align_corners half_pixel_centers"),
    **holding(_rows_of(0, 1), "ResizeBilinearGrad", "align_corners half_pixel_centers"),
    **holding(_rows_of(0, 1), "InTopKV2 SparseSoftmaxCrossEntropyWithLogits"),
    **holding(_bitcast, "Bitcast"),
    **holding(_bias, "BiasAdd", "data_format"),
    **holding(_bias_gradient, "BiasAddGrad", "data_format"),
    **holding(_gather, "GatherV2", "batch_dims"),
    **holding(_gather_from_variable, "ResourceGather"),
    **holding(_one_hot, "OneHot", "axis"),
    **holding(_segment_sum, "UnsortedSegmentSum"),
}
