"""Operations that a TPU is known to compile, so that XLA need not be asked.

A function of only these operations, without loops and branches, compiles for certain if constants
and shapes give the sizes that XLA needs as constants. Then no process with XLA has to start.
"""

from __future__ import annotations

import functools

from tpunb.tensorflow.virtual.graph.function_def import data_inputs, needed
from tpunb.tensorflow.virtual.graph.traced_function import TracedFunction
from tpunb.tensorflow.virtual.private_names import NodeDef, dtypes

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

# The inputs that must be constants; negative numbers count from the end.
_CONSTANT_INPUTS = {
    op: indices
    for indices, ops in {
        (-1,): "ConcatV2",
        (0,): (
            "AvgPoolGrad Conv2DBackpropInput DepthwiseConv2dNativeBackpropInput Fill "
            "InvertPermutation RandomStandardNormal RandomUniform Split StatelessRandomNormalV2 "
            "StatelessRandomUniformV2 StatelessTruncatedNormalV2 TruncatedNormal"
        ),
        (1,): (
            "All Any ArgMax ArgMin BroadcastTo Conv2DBackpropFilter Cumsum "
            "DepthwiseConv2dNativeBackpropFilter ExpandDims Max Mean Min OneHot Pad PadV2 Prod "
            "Reshape ReverseV2 Sum Tile TopKV2 Transpose"
        ),
        (2,): "GatherV2 UnsortedSegmentSum",
        (1, 2): "Slice SplitV",
        (0, 1, 2): "Range",
        (1, 2, 3): "StridedSlice",
        (0, 1, 2, 3): "StridedSliceGrad",
    }.items()
    for op in ops.split()
}
_ALL_CONSTANT = frozenset({"ConcatOffset"})
# These operations return a size, which is known when a TPU compiles.
_SIZES = frozenset(
    ["BroadcastGradientArgs", "Const", "Rank", "Shape", "ShapeN", "Size", "VariableShape"]
)
_READS = frozenset({"ReadVariableOp", "CrossReplicaSum"})
_KNOWN = _ANY_INPUTS | _CONSTANT_INPUTS.keys() | _ALL_CONSTANT

TYPES = frozenset(
    dtype.as_datatype_enum
    for dtype in (dtypes.float32, dtypes.bfloat16, dtypes.int32, dtypes.int64, dtypes.bool)
)
"""The types that these operations compute with."""

_INT64 = dtypes.int64.as_datatype_enum

PRODUCTS = frozenset(
    {"BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "MatMul", "Einsum", "XlaDotV2"}
)
"""Matrix products, which a TPU cannot compute on 64-bit integers."""


def is_known(node: NodeDef) -> bool:
    """Return whether a TPU is known to have a kernel for a node."""
    if node.op not in _KNOWN:
        return False
    types = {value.type for value in node.attr.values() if value.WhichOneof("value") == "type"}
    return types <= TYPES and not (node.op in PRODUCTS and _INT64 in types)


def compiles_for_certain(traced: TracedFunction) -> bool:
    """Return whether a replica function certainly compiles, so that XLA need not be asked."""
    function = traced.definition
    nodes = {node.name: node for node in function.node_def}

    @functools.cache
    def is_constant(name: str) -> bool:
        """Return whether a node's results are known when a TPU compiles."""
        node = nodes.get(name)
        if node is None or node.op in _SIZES:
            return node is not None
        if not is_known(node) or node.op in _READS or "Random" in node.op:
            return False
        sources = data_inputs(node)
        return bool(sources) and all(is_constant(source.source) for source in sources)

    def is_sure(node: NodeDef) -> bool:
        """Return whether a node certainly compiles."""
        if not is_known(node):
            return False
        sources = data_inputs(node)
        indices = _CONSTANT_INPUTS.get(node.op, ())
        constants = sources if node.op in _ALL_CONSTANT else [sources[index] for index in indices]
        return all(is_constant(source.source) for source in constants)

    # An assertion's message is not a tensor on a TPU, which has no assertions.
    run_nodes, without_assertions = needed(function), needed(function, without={"Assert"})
    return all(
        is_sure(node)
        for node in function.node_def
        if node.name in (without_assertions if node.op == "Const" else run_nodes)
    )
