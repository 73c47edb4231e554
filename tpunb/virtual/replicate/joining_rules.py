"""Rules by which one node computes an operation for all replicas.

A rule sees a node with inputs that vary between the replicas. Axis 0 of a varying value need not be
a batch: a value without a batch is stacked along a new axis.
"""

from __future__ import annotations

import string

import numpy as np

from tpunb.virtual._tensorflow import AttrValue, dtypes
from tpunb.virtual.graph.function_def import SLICE_MASKS, Sizes, integer, type_of
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


def _reshape(seen: Seen) -> Plan | None:
    """Join a change of shape; only the resulting shape matters."""
    before, (after,) = seen.inputs[0].sizes, seen.outputs
    attributes = {"T": seen.node.attr["T"], "Tshape": type_of(dtypes.int32)}
    if before and after and before[0] == after[0]:
        return seen.plan([ROWS, constant(seen.rows(after))], Form.ROWS, "Reshape", attributes)
    takes = [STACKED, constant(seen.stacked(after))]
    return seen.plan(takes, Form.STACKED, "Reshape", attributes)


def _transpose(seen: Seen) -> Plan | None:
    order = seen.inputs[1].integers()
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
    """Join an operation that stacks tensors along a new axis, or unstacks one."""
    rank = len(seen.outputs[0] if seen.node.op == "Pack" else seen.inputs[0].sizes)
    attributes = {"axis": integer(1 + _from_front(seen.node.attr["axis"].i, rank))}
    return seen.plan([STACKED] * len(seen.inputs), Form.STACKED, attributes=attributes)


def _from_front(axis: int, rank: int) -> int:
    """Return an axis counted from the front, given an axis that may be counted from the end."""
    return axis + rank if axis < 0 else axis


def _split(seen: Seen) -> Plan | None:
    along, value = seen.inputs
    axis = along.integers()
    if axis is None:
        return None
    at = _from_front(axis[0], len(value.sizes))
    take, place = (ROWS, constant(at, along)) if at else (STACKED, constant(1, along))
    return seen.plan([place, take], take.form)


def _strided_slice(seen: Seen) -> Plan | None:
    """Join a slice, or its gradient, which takes the shape first and the values last."""
    is_slice = seen.node.op == "StridedSlice"
    bounds = seen.inputs[1:4]
    known = [one.integers() for one in bounds]
    if any(one is None for one in known):
        return None
    moved = [[front, *one] for front, one in zip((0, 0, 1), known, strict=True) if one is not None]
    takes = [*map(constant, moved, bounds)]
    masks = {
        key: integer(2 * seen.node.attr[key].i + (key in {"begin_mask", "end_mask"}))
        for key in SLICE_MASKS  # the whole of the new first axis is taken
    }
    if is_slice:
        takes = [STACKED, *takes]
    else:
        takes = [constant(seen.stacked(seen.outputs[0]), seen.inputs[0]), *takes, STACKED]
    return seen.plan(takes, Form.STACKED, attributes=masks)


def _pad(seen: Seen) -> Plan | None:
    margins = seen.inputs[1].value()
    if margins is None:
        return None
    moved = constant(np.concatenate([np.zeros([1, 2], np.int64), margins]), seen.inputs[1])
    return seen.plan([STACKED, moved], Form.STACKED)


def _tile(seen: Seen) -> Plan | None:
    times = seen.inputs[1].integers()
    if times is None:
        return None
    return seen.plan([STACKED, constant([1, *times], seen.inputs[1])], Form.STACKED)


def _broadcast(seen: Seen) -> Plan | None:
    (after,) = seen.outputs
    whole = constant(seen.stacked(after), seen.inputs[1])
    return seen.plan([_stacked(seen.inputs[0], len(after)), whole], Form.STACKED)


def _stacked(one: Input, rank: int) -> Take:
    """Take a varying input stacked, with axes of size 1 in front up to a rank."""
    if not one.varies:
        return SHARED
    return Take(Form.STACKED, (1,) * (rank - len(one.sizes)) + one.sizes)


_MOVES: dict[str, Holding] = {
    **holding(_broadcast, "BroadcastTo", varying=[0]),
    **holding(_concatenation, "ConcatV2"),
    **holding(_pack, "Pack Unpack", "axis"),
    **holding(_pad, "Pad", varying=[0]),
    **holding(_reshape, "ExpandDims Reshape Squeeze", "squeeze_dims", varying=[0]),
    **holding(_split, "Split", varying=[1]),
    **holding(_strided_slice, "StridedSlice", " ".join(SLICE_MASKS), varying=[0]),
    **holding(_strided_slice, "StridedSliceGrad", " ".join(SLICE_MASKS), varying=[4]),
    **holding(_tile, "Tile", varying=[0]),
    **holding(_transpose, "Transpose", varying=[0]),
}
"""The rules for operations that move elements."""


_GAIN = 4.0
"""A product of many rows takes less time than the same rows in many small products."""


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
    if rank > 2 and all(_is_row_wise(one, rank, result[0]) for one in seen.inputs):
        takes = [ROWS if one.varies else SHARED for one in seen.inputs]
        return seen.plan(takes, Form.ROWS, gain=_GAIN)
    return seen.plan([_stacked(one, rank) for one in seen.inputs], Form.STACKED, gain=_GAIN)


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
    # A factor that all replicas share would multiply the sum. With infinities that gives another
    # number.
    summed = seen.summed and all(one.varies for one in seen.inputs)
    whole = result if summed else replica + result
    attributes = {"equation": AttrValue(s=f"{','.join(labels)}->{whole}".encode())}
    takes = [STACKED if one.varies else SHARED for one in seen.inputs]
    gives = Form.SUMMED if summed else Form.STACKED
    return seen.plan(takes, gives, attributes=attributes, gain=_GAIN)


def _convolution(seen: Seen) -> Plan | None:
    return seen.plan([ROWS, SHARED], Form.ROWS, gain=_GAIN)


def _image_gradient(seen: Seen) -> Plan | None:
    sizes = constant(seen.rows(seen.outputs[0]), seen.inputs[0])
    return seen.plan([sizes, SHARED, ROWS], Form.ROWS, gain=_GAIN)


def _weights_gradient(seen: Seen) -> Plan | None:
    return seen.plan([ROWS, SHARED, ROWS], Form.SUMMED, gain=_GAIN) if seen.summed else None


def _mean_pooling_gradient(seen: Seen) -> Plan | None:
    sizes = constant(seen.rows(seen.outputs[0]), seen.inputs[0])
    return seen.plan([sizes, ROWS], Form.ROWS, gain=2.0)


_POOLING = "ksize strides padding explicit_paddings data_format"
_CONVOLUTION = "strides padding explicit_paddings data_format dilations use_cudnn_on_gpu"

_PRODUCTS: dict[str, Holding] = {
    **holding(_matrices, "MatMul", "transpose_a transpose_b grad_a grad_b"),
    **holding(_batched_matrices, "BatchMatMulV2", "adj_x adj_y grad_x grad_y"),
    **holding(_einsum, "Einsum", "equation"),
    **holding(_convolution, "Conv2D Conv3D DepthwiseConv2dNative", _CONVOLUTION, varying=[0]),
    **holding(
        _image_gradient,
        "Conv2DBackpropInput Conv3DBackpropInputV2 DepthwiseConv2dNativeBackpropInput",
        _CONVOLUTION,
        varying=[2],
    ),
    **holding(
        _weights_gradient,
        "Conv2DBackpropFilter Conv3DBackpropFilterV2 DepthwiseConv2dNativeBackpropFilter",
        _CONVOLUTION,
        varying=[0, 2],
    ),
    **holding(_mean_pooling_gradient, "AvgPoolGrad AvgPool3DGrad", _POOLING),
}
"""The rules for products, and for the gradients of pooling, which are similar."""


def _element(sizes: Sizes) -> Take:
    """Return how an element of a list is read and written."""
    return ROWS if sizes else STACKED


def _whole(seen: Seen, sizes: Sizes, like: Input) -> Take:
    """Return the shape of all replicas' elements, to replace the shape of one replica's element."""
    return constant(seen.rows(sizes) if sizes else seen.stacked(sizes), like)


def _get(seen: Seen) -> Plan | None:
    (sizes,) = seen.outputs
    takes = [LISTED, SHARED, _whole(seen, sizes, seen.inputs[2])]
    return seen.plan(takes, _element(sizes).form) if seen.inputs[0].varies else None


def _set(seen: Seen) -> Plan | None:
    return seen.plan([LISTED, SHARED, _element(seen.inputs[2].sizes)], Form.LISTED)


def _push(seen: Seen) -> Plan | None:
    return seen.plan([LISTED, _element(seen.inputs[1].sizes)], Form.LISTED)


def _pop(seen: Seen) -> Plan | None:
    _, sizes = seen.outputs
    takes = [LISTED, _whole(seen, sizes, seen.inputs[1])]
    return Plan(takes, [Form.LISTED, _element(sizes).form]) if seen.inputs[0].varies else None


def _stack(seen: Seen) -> Plan | None:
    (sizes,) = seen.outputs
    return seen.plan([LISTED, _whole(seen, sizes[1:], seen.inputs[1])], Form.INNER)


def _from_tensor(seen: Seen) -> Plan | None:
    shape = _of_elements(seen, seen.inputs[1])
    return seen.plan([INNER, shape], Form.LISTED) if seen.inputs[0].varies else None


def _new(seen: Seen) -> Plan | None:
    """Join a new list whose shape or length comes from a varying list."""
    if dtypes.as_dtype(seen.node.attr["element_dtype"].type) not in REAL:
        return None
    shape = LISTED if seen.inputs[0].varies else _of_elements(seen, seen.inputs[0])
    return seen.plan([shape, SHARED], Form.LISTED)


def _of_elements(seen: Seen, shape: Input) -> Take:
    """Return the shape of a new joined list's elements, to replace a replica's shape."""
    value = None if shape.varies else shape.value()
    return constant(listed_shape(value, seen.replicas), shape)


def _length(seen: Seen) -> Plan | None:
    return seen.plan([LISTED], Form.SHARED)


def _lists(seen: Seen) -> Plan | None:
    """Join an operation on lists that acts on each element, or returns their shape."""
    return seen.plan([LISTED] * len(seen.inputs), Form.LISTED)


_LISTS: dict[str, Holding] = {
    **holding(_get, "TensorListGetItem", varying=[0, 2]),
    **holding(_set, "TensorListSetItem", varying=[0, 2]),
    **holding(_push, "TensorListPushBack"),
    **holding(_pop, "TensorListPopBack"),
    **holding(_stack, "TensorListStack", "num_elements"),
    **holding(_from_tensor, "TensorListFromTensor"),
    **holding(_new, "EmptyTensorList TensorListReserve"),
    **holding(_length, "TensorListLength"),
    **holding(_lists, "AddN Identity TensorListElementShape ZerosLike"),
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


def rule_of(op: str, *, lists: bool = False) -> Holding | None:
    """Return the rule for an operation, or for its use with lists; None if there is none."""
    return (_LISTS if lists else _RULES).get(op)


def operations() -> frozenset[str]:
    """Return the operations that have a rule."""
    return frozenset({**_RULES, **_LISTS})


def _elementwise(seen: Seen) -> Plan | None:
    """Join an operation on elements whose inputs broadcast."""
    (result,) = seen.outputs
    if result and all(_is_row_wise(one, len(result), result[0]) for one in seen.inputs):
        return seen.plan([ROWS if one.varies else SHARED for one in seen.inputs], Form.ROWS)
    return seen.plan([_stacked(one, len(result)) for one in seen.inputs], Form.STACKED)


def _is_row_wise(one: Input, rank: int, size: int) -> bool:
    """Return whether each row of a result comes from one row of an input, or from a shared row."""
    if one.varies:
        return len(one.sizes) == rank and one.sizes[0] == size
    return len(one.sizes) < rank or one.sizes[0] == 1


def _uniform(seen: Seen) -> Plan | None:
    """Join an operation on the elements of inputs of one shape."""
    if len({one.sizes for one in seen.inputs}) != 1:
        return None
    take = ROWS if seen.outputs[0] else STACKED
    return seen.plan([take] * len(seen.inputs), take.form)


def linear(seen: Seen) -> Plan | None:
    """Join an operation that can equally be applied to the sum of the varying inputs."""
    if seen.node.op not in _LINEAR or not _is_linear(seen):
        return None
    return seen.plan([SUMMED if one.varies else SHARED for one in seen.inputs], Form.SUMMED)


def _is_linear(seen: Seen) -> bool:
    """Return whether a node of a `_LINEAR` operation is linear in its varying inputs."""
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
    if seen.node.op in {"AddN", "AddV2", "Sub"}:
        return all(one.varies and one.sizes == seen.outputs[0] for one in seen.inputs)
    return seen.inputs[0].varies and not any(one.varies for one in seen.inputs[1:])


def _is_usual(factor: np.ndarray | None) -> bool:
    """Return whether a factor or divisor is known, finite and not zero.

    A sum times infinity is infinite, but products of both signs have no sum.
    """
    known = None if factor is None else np.asarray(factor, np.float64)
    return known is not None and bool(np.all(np.isfinite(known) & (known != 0)))


def _softmax(seen: Seen) -> Plan | None:
    take = ROWS if len(seen.inputs[0].sizes) > 1 else STACKED
    return seen.plan([take], take.form)


def _reduction(seen: Seen) -> Plan | None:
    """Join a reduction over axes, which are the second input."""
    value, over = seen.inputs
    axes = over.integers()
    if axes is None:
        return None
    rank = len(value.sizes)
    axes = [_from_front(axis, rank) for axis in axes]
    if rank and 0 not in axes and seen.outputs[0]:
        return seen.plan([ROWS, SHARED], Form.ROWS)
    if rank and 0 in axes and seen.summed and seen.node.op == "Sum":
        return seen.plan([ROWS, SHARED], Form.SUMMED)
    return seen.plan([STACKED, _like(over, [axis + 1 for axis in axes])], Form.STACKED)


def _like(one: Input, values: list[int]) -> Take:
    """Return integers that replace an input: a single integer if the input is a scalar."""
    return constant(values if one.sizes else values[0], one)


def _rows_of(*places: int) -> Rule:
    """Return a rule for operations on each row of some inputs, with other inputs shared."""

    def rule(seen: Seen) -> Plan | None:
        if any(one.varies and k not in places for k, one in enumerate(seen.inputs)):
            return None
        takes = [ROWS if k in places else SHARED for k in range(len(seen.inputs))]
        return seen.plan(takes, Form.ROWS, gain=2.0)

    return rule


def _one_hot(seen: Seen) -> Plan | None:
    axis = seen.node.attr["axis"].i
    if axis == -1 and seen.inputs[0].sizes:
        return seen.plan([ROWS, SHARED, SHARED, SHARED], Form.ROWS)
    moved = integer(axis if axis == -1 else axis + 1)
    return seen.plan([STACKED, SHARED, SHARED, SHARED], Form.STACKED, attributes={"axis": moved})


def _gather(seen: Seen) -> Plan | None:
    """Join a gathering of rows, from a shared table or from each replica's own."""
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
    moved = _like(axis, [_from_front(at, len(table.sizes)) + 1])
    if not indices.varies:
        return None if inner else seen.plan([STACKED, SHARED, moved], Form.STACKED)
    attributes = {"batch_dims": integer(inner + 1)}
    return seen.plan([STACKED, STACKED, moved], Form.STACKED, attributes=attributes)


def _gather_from_variable(seen: Seen) -> Plan | None:
    take = ROWS if seen.inputs[1].sizes else STACKED
    return seen.plan([SHARED, take], take.form)


def _segment_sum(seen: Seen) -> Plan | None:
    """Join a sum of rows by ids, which is the gradient of a gathering."""
    data, ids, _ = seen.inputs
    if not seen.summed or len(ids.sizes) != 1 or not data.sizes:
        return None
    return seen.plan([ROWS, ROWS, SHARED], Form.SUMMED)


def _cast(seen: Seen) -> Plan | None:
    """Join a change of type.

    If a number does not fit into a small or unsigned integer, the processor's result depends on the
    number's place in a tensor.
    """
    result = dtypes.as_dtype(seen.node.attr["DstT"].type)
    whole = result.is_integer and result not in {dtypes.int32, dtypes.int64}
    return None if whole and seen.inputs[0].dtype.is_floating else _elementwise(seen)


def _bitcast(seen: Seen) -> Plan | None:
    return _elementwise(seen) if seen.outputs[0] == seen.inputs[0].sizes else None


def _bias_gradient(seen: Seen) -> Plan | None:
    return seen.plan([ROWS], Form.SUMMED) if seen.summed else None


def _bias(seen: Seen) -> Plan | None:
    return seen.plan([ROWS, SHARED], Form.ROWS)


_RULES: dict[str, Holding] = {
    **holding(_elementwise, _BROADCASTING, "alpha"),
    **holding(_cast, "Cast", "Truncate"),
    **holding(_uniform, _UNIFORM, "alpha"),
    **_PRODUCTS,
    **_MOVES,
    **holding(_softmax, "LogSoftmax Softmax"),
    **holding(_reduction, _REDUCTIONS, "exclusive keep_dims reverse", varying=[0]),
    **holding(_rows_of(0), "AvgPool AvgPool3D MaxPool MaxPool3D", _POOLING),
    **holding(_rows_of(0, 1, 2), "MaxPoolGrad MaxPool3DGrad", _POOLING),
    **holding(_rows_of(0), _RESIZING, "align_corners half_pixel_centers"),
    **holding(_rows_of(0, 1), "ResizeBilinearGrad", "align_corners half_pixel_centers"),
    **holding(_rows_of(0, 1), "InTopKV2 SparseSoftmaxCrossEntropyWithLogits"),
    **holding(_bitcast, "Bitcast"),
    **holding(_bias, "BiasAdd", "data_format", varying=[0]),
    **holding(_bias_gradient, "BiasAddGrad", "data_format"),
    **holding(_gather, "GatherV2", "batch_dims", varying=[0, 1]),
    **holding(_gather_from_variable, "ResourceGather"),
    **holding(_one_hot, "OneHot", "axis", varying=[0]),
    **holding(_segment_sum, "UnsortedSegmentSum", varying=[0, 1]),
}
