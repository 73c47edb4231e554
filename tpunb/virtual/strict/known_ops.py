"""Operations that a TPU is known to compile, so that its compiler need not be asked.

Compiling a function as far as XLA's intermediate form takes a fifth of its first step. A function
of these operations alone, without branches, compiles for certain if constants and shapes give the
sizes that XLA wants as constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tpunb.virtual._tensorflow import FunctionDef, NodeDef, dtypes
from tpunb.virtual.graph.function_def import data_inputs

_ELEMENTWISE = """
    Abs Acos Acosh Add AddN AddV2 ApproximateEqual Asin Asinh Atan Atan2 Atanh Cast Ceil ClipByValue
    Cos Cosh Div DivNoNan Elu EluGrad Equal Erf Erfc Exp Expm1 Floor FloorDiv FloorMod Greater
    GreaterEqual Identity IdentityN Inv IsFinite IsInf IsNan LeakyRelu LeakyReluGrad Less LessEqual
    Log Log1p LogicalAnd LogicalNot LogicalOr Maximum Minimum Mod Mul MulNoNan Neg NotEqual OnesLike
    Pow PreventGradient RealDiv Reciprocal ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad Rint Round
    Rsqrt RsqrtGrad Select SelectV2 Selu SeluGrad Sigmoid SigmoidGrad Sign Sin Sinh Softplus
    SoftplusGrad Softsign SoftsignGrad Sqrt SqrtGrad Square SquaredDifference StopGradient Sub Tan
    Tanh TanhGrad TruncateDiv TruncateMod Xdivy Xlog1py Xlogy ZerosLike
"""
_OTHERS = """
    Assert AssignAddVariableOp AssignSubVariableOp AssignVariableOp AvgPool AvgPool3D BatchMatMul
    BatchMatMulV2 BatchMatMulV3 BiasAdd BiasAddGrad Bitcast BitwiseAnd BitwiseOr BitwiseXor
    BroadcastGradientArgs CollectivePermute Const Conv2D Conv3D
    CrossReplicaSum DepthwiseConv2dNative DepthToSpace Einsum FusedBatchNorm FusedBatchNormGrad
    FusedBatchNormGradV2 FusedBatchNormGradV3 FusedBatchNormV2 FusedBatchNormV3 L2Loss LogSoftmax
    MatMul MaxPool MaxPoolGrad NoOp Pack Rank ReadVariableOp ResourceApplyAdam
    ResourceApplyGradientDescent ResourceApplyKerasMomentum ResourceApplyMomentum Shape ShapeN Size
    Softmax SoftmaxCrossEntropyWithLogits SpaceToDepth SparseSoftmaxCrossEntropyWithLogits
    Squeeze StatelessRandomGetKeyCounter Unpack VariableShape XlaSharding
"""
_ANY_INPUTS = frozenset(f"{_ELEMENTWISE} {_OTHERS}".split())

# Which of the inputs have to be constants; negative numbers count from the end.
_CONSTANT_INPUTS = {
    "All": (1,),
    "Any": (1,),
    "ArgMax": (1,),
    "ArgMin": (1,),
    "AvgPoolGrad": (0,),
    "BroadcastTo": (1,),
    "ConcatV2": (-1,),
    "Conv2DBackpropFilter": (1,),
    "Conv2DBackpropInput": (0,),
    "Cumsum": (1,),
    "DepthwiseConv2dNativeBackpropFilter": (1,),
    "DepthwiseConv2dNativeBackpropInput": (0,),
    "ExpandDims": (1,),
    "Fill": (0,),
    "GatherV2": (2,),
    "InvertPermutation": (0,),
    "Max": (1,),
    "Mean": (1,),
    "Min": (1,),
    "OneHot": (1,),
    "Pad": (1,),
    "PadV2": (1,),
    "Prod": (1,),
    "RandomStandardNormal": (0,),
    "RandomUniform": (0,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "ReverseV2": (1,),
    "Slice": (1, 2),
    "Split": (0,),
    "SplitV": (1, 2),
    "StatelessRandomNormalV2": (0,),
    "StatelessRandomUniformV2": (0,),
    "StatelessTruncatedNormalV2": (0,),
    "StridedSlice": (1, 2, 3),
    "StridedSliceGrad": (0, 1, 2, 3),
    "Sum": (1,),
    "Tile": (1,),
    "TopKV2": (1,),
    "Transpose": (1,),
    "TruncatedNormal": (0,),
    "UnsortedSegmentSum": (2,),
}
_ALL_CONSTANT = frozenset({"ConcatOffset"})
# They say how large something is, which is known when a TPU compiles.
_SIZES = frozenset(
    ["BroadcastGradientArgs", "Const", "Rank", "Shape", "ShapeN", "Size", "VariableShape"]
)
_READS = frozenset({"ReadVariableOp", "CrossReplicaSum"})
_KNOWN = _ANY_INPUTS | _CONSTANT_INPUTS.keys() | _ALL_CONSTANT

TYPES = frozenset(
    kind.as_datatype_enum
    for kind in (dtypes.float32, dtypes.bfloat16, dtypes.int32, dtypes.int64, dtypes.bool)
)
"""The types of what these operations compute with."""

_INT64 = dtypes.int64.as_datatype_enum

PRODUCTS = frozenset(
    {"BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "MatMul", "Einsum", "XlaDotV2"}
)
"""Matrix products, which a TPU cannot make of 64-bit integers."""


def is_known(node: NodeDef) -> bool:
    """Returns whether a TPU is known to have a kernel for a node."""
    if node.op not in _KNOWN:
        return False
    types = {value.type for value in node.attr.values() if value.WhichOneof("value") == "type"}
    return types <= TYPES and not (node.op in PRODUCTS and _INT64 in types)


def compiles_surely(
    function: FunctionDef,
    nodes: Iterable[NodeDef],
    knows: Callable[[NodeDef], bool] = lambda _: False,
) -> bool:
    """Returns whether a function certainly compiles.

    Args:
        function: The function, calls written out.
        nodes: Those of its nodes that run.
        knows: Whether a node compiles that is none of these operations.
    """
    by_name = {node.name: node for node in function.node_def}
    constant: dict[str, bool] = {}

    def is_constant(name: str) -> bool:
        if name not in constant:
            node = by_name.get(name)
            constant[name] = False
            constant[name] = node is not None and (
                node.op in _SIZES
                or (
                    is_known(node)
                    and node.op not in _READS
                    and "Random" not in node.op
                    and bool(sources := data_inputs(node))
                    and all(is_constant(source.source) for source in sources)
                )
            )
        return constant[name]

    def is_sure(node: NodeDef) -> bool:
        if not is_known(node):
            return knows(node)
        sources = data_inputs(node)
        if node.op in _ALL_CONSTANT:
            return all(is_constant(source.source) for source in sources)
        return all(
            is_constant(sources[place].source) for place in _CONSTANT_INPUTS.get(node.op, ())
        )

    return all(map(is_sure, nodes))
