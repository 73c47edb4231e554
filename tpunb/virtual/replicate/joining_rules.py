"""How one node does for all replicas what it does on each, by operation.

A rule sees a node of which some inputs vary between the replicas. Axis 0 of what varies
need not be a batch: a value that has none is stacked along a new axis.
"""

from __future__ import annotations

import numpy as np

from tpunb.virtual._tensorflow import AttrValue, dtypes
from tpunb.virtual.replicate.joined_forms import (
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
)
from tpunb.virtual.replicate.joining_lists import LISTS
from tpunb.virtual.replicate.joining_products import POOLING, PRODUCTS
from tpunb.virtual.replicate.joining_shapes import SHAPES

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
