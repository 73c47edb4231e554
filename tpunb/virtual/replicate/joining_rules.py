"""How one node does for all replicas what it does on each, by operation.

A rule sees a node of which some inputs vary between the replicas. Axis 0 of what varies
need not be a batch: a value that has none is stacked along a new axis.
"""

from __future__ import annotations

from tpunb.virtual._tensorflow import AttrValue
from tpunb.virtual.replicate.joined_forms import (
    ROWS,
    SHARED,
    STACKED,
    SUMMED,
    Form,
    Input,
    Plan,
    Rule,
    Seen,
    Take,
    constant,
)
from tpunb.virtual.replicate.joining_products import PRODUCTS
from tpunb.virtual.replicate.joining_shapes import SHAPES

_BROADCASTING = """
    Abs Acos Acosh Add AddV2 Angle ApproximateEqual Asin Asinh Atan Atan2 Atanh BitwiseAnd
    BitwiseOr BitwiseXor Cast Ceil CheckNumerics Conj Cos Cosh Digamma Div DivNoNan Elu Equal Erf
    Erfc Erfinv Exp Expm1 Floor FloorDiv FloorMod Greater GreaterEqual Identity Igamma Igammac Inv
    Invert IsFinite IsInf IsNan LeakyRelu LeftShift Less LessEqual Lgamma Log Log1p LogicalAnd
    LogicalNot LogicalOr Maximum Minimum Mod Mul MulNoNan Ndtri Neg NextAfter NotEqual OnesLike
    Pow PreventGradient RealDiv Reciprocal Relu Relu6 RightShift Rint Round Rsqrt SelectV2 Selu
    Sigmoid Sign Sin Sinh Snapshot Softplus Softsign Sqrt Square SquaredDifference StopGradient
    Sub Tan Tanh TruncateDiv TruncateMod Xdivy Xlog1py Xlogy ZerosLike Zeta
"""
_UNIFORM = """
    AddN EluGrad InvGrad LeakyReluGrad ReciprocalGrad Relu6Grad ReluGrad RsqrtGrad Select SeluGrad
    SigmoidGrad SoftplusGrad SoftsignGrad SqrtGrad TanhGrad
"""
_REDUCTIONS = """
    All Any ArgMax ArgMin Cumprod Cumsum EuclideanNorm Max Mean Min Prod ReverseV2 Sum
"""
_ON_IMAGES = """
    AvgPool AvgPool3D DepthToSpace LRN MaxPool MaxPool3D ResizeBilinear ResizeNearestNeighbor
    ResizeNearestNeighborGrad SpaceToDepth
"""
_LINEAR = """
    Add AddN AddV2 ExpandDims Identity Mul Neg RealDiv Reshape Squeeze StopGradient Sub Transpose
"""
"""Of the sum of the replicas' values they make the sum of what they make of each."""


def rule_of(op: str) -> Rule | None:
    """The rule for an operation; None if there is none."""
    return _RULES.get(op)


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
        varying = first if first.varies else second
        one = first.varies != second.varies
        divided = seen.node.op == "RealDiv" and second.varies
        return one and not divided and varying.sizes == seen.outputs[0]
    if seen.node.op in {"Add", "AddN", "AddV2", "Sub"}:
        return all(one.varies and one.sizes == seen.outputs[0] for one in seen.inputs)
    return seen.inputs[0].varies and not any(one.varies for one in seen.inputs[1:])


def _along_last_axis(seen: Seen) -> Plan | None:
    """A softmax, or the largest elements of each row."""
    take = ROWS if len(seen.inputs[0].sizes) > 1 else STACKED
    rest = [SHARED] * (len(seen.inputs) - 1)
    if any(one.varies for one in seen.inputs[1:]):
        return None
    return seen.plan([take, *rest], take.form)


def _cross_entropy(seen: Seen) -> Plan | None:
    """A cross-entropy of each row."""
    if any(one.sizes[0] != seen.inputs[0].sizes[0] for one in seen.inputs):
        return None
    return seen.plan([ROWS] * len(seen.inputs), Form.ROWS)


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
    if seen.node.attr["batch_dims"].i:
        return None
    take = ROWS if indices.sizes else STACKED
    return seen.plan([SHARED, take], take.form)


def _segment_sum(seen: Seen) -> Plan | None:
    """Rows summed by ids: the gradient of a gathering."""
    data, ids, number = seen.inputs
    if not seen.summed or number.varies or len(ids.sizes) != 1 or not data.sizes:
        return None
    return seen.plan([ROWS, ROWS, SHARED], Form.SUMMED)


def _bitcast(seen: Seen) -> Plan | None:
    return broadcasting(seen) if seen.outputs[0] == seen.inputs[0].sizes else None


def _bias_gradient(seen: Seen) -> Plan | None:
    return seen.plan([ROWS], Form.SUMMED) if seen.summed else None


def _bias(seen: Seen) -> Plan | None:
    return seen.plan([ROWS, SHARED], Form.ROWS) if not seen.inputs[1].varies else None


def _normalization(seen: Seen) -> Plan | None:
    """A batch normalization by given means; in training the statistics are each replica's."""
    if seen.node.attr["is_training"].b or any(one.varies for one in seen.inputs[1:]):
        return None
    gives = [Form.ROWS] + [Form.SHARED] * (len(seen.outputs) - 1)
    return Plan([ROWS] + [SHARED] * (len(seen.inputs) - 1), gives)


_RULES: dict[str, Rule] = {
    **dict.fromkeys(_BROADCASTING.split(), broadcasting),
    **dict.fromkeys(_UNIFORM.split(), uniform),
    **PRODUCTS,
    **SHAPES,
    **dict.fromkeys(("Softmax", "LogSoftmax", "TopKV2"), _along_last_axis),
    **dict.fromkeys(
        ("SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits"), _cross_entropy
    ),
    **dict.fromkeys(_REDUCTIONS.split(), _reduction),
    **dict.fromkeys(_ON_IMAGES.split(), _rows_of(0)),
    "InTopKV2": _rows_of(0, 1),
    "ResizeBilinearGrad": _rows_of(0, 1),
    "MaxPoolGrad": _rows_of(0, 1, 2),
    "MaxPool3DGrad": _rows_of(0, 1, 2),
    "Bitcast": _bitcast,
    "BiasAdd": _bias,
    "BiasAddGrad": _bias_gradient,
    "FusedBatchNormV3": _normalization,
    "GatherV2": _gather,
    "OneHot": _one_hot,
    "ResourceGather": _gather_from_variable,
    "UnsortedSegmentSum": _segment_sum,
}
