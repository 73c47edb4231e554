"""Operations and loops of which it is known that a TPU compiles them, so that none need be asked.

Compiling a function as far as XLA's intermediate form takes a fifth of its first
step. What is made of these operations alone, without branches, with the sizes that XLA
wants as constants given by constants and shapes, compiles for sure. So do loops that carry on
what they were given, and lists of a known length with elements of one shape.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from tpunb.virtual._tensorflow import FunctionDef, NodeDef, dtypes
from tpunb.virtual.graph.function_def import (
    LOOPS,
    KnownSizes,
    Library,
    Reference,
    Sizes,
    StaticTensors,
    data_inputs,
    has_collectives,
    has_effects,
    needed,
    returned,
)

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
    Squeeze Unpack VariableShape XlaSharding
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
# They say how large something is, which is known when a TPU compiles.
_SIZES = frozenset(
    ["BroadcastGradientArgs", "Const", "Rank", "Shape", "ShapeN", "Size", "VariableShape"]
)
_READS = frozenset({"ReadVariableOp", "CrossReplicaSum"})

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
    """Whether a TPU has a kernel for a node, as far as this is common knowledge."""
    if node.op not in _ANY_INPUTS and node.op not in _CONSTANT_INPUTS:
        return False
    types = {value.type for value in node.attr.values() if value.WhichOneof("value") == "type"}
    return types <= TYPES and not (node.op in PRODUCTS and _INT64 in types)


def compiles_surely(
    function: FunctionDef,
    nodes: Iterable[NodeDef],
    knows: Callable[[NodeDef], bool] = lambda _: False,
) -> bool:
    """Whether a function compiles without any doubt.

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
        return all(
            is_constant(sources[place].source) for place in _CONSTANT_INPUTS.get(node.op, ())
        )

    return all(map(is_sure, nodes))


_FRESH = frozenset({"EmptyTensorList", "TensorListReserve"})
_ALIKE = frozenset({"AddN", "Identity", "ZerosLike"})
_CHANGING = frozenset({"TensorListPopBack", "TensorListPushBack", "TensorListSetItem"})
_GIVE_LISTS = _FRESH | _ALIKE | _CHANGING | {"TensorListFromTensor"}
_RESIZES = "resize_if_index_out_of_bounds"


@dataclasses.dataclass(frozen=True)
class _List:
    """A list of tensors.

    Attributes:
        sizes: The shape of each.
        dtype: Their type.
        length: How many there are; None for a list that grows and shrinks up to a known length.
    """

    sizes: Sizes
    dtype: dtypes.DType
    length: int | None


class KnownLoops:
    """The loops and lists of a function.

    Args:
        function: The function, calls written out.
        library: Finds the functions of control flow.
        sizes: The shapes that are known.
        body_sizes: Finds those of a function of control flow.
        lists: The arguments that are lists.
    """

    def __init__(
        self,
        function: FunctionDef,
        library: Library,
        sizes: KnownSizes,
        body_sizes: Callable[[str], KnownSizes],
        lists: Mapping[str, _List] | None = None,
    ) -> None:
        self._function = function
        self._library = library
        self._body_sizes = body_sizes
        self._statics = StaticTensors(function, {one.name: one for one in function.node_def}, sizes)
        self._lists: dict[str, _List | None] = dict(lists or {})
        self._loops: dict[str, bool] = {}

    def compiles(self) -> bool:
        """Whether the function compiles without any doubt."""
        # What an assertion says is no tensor on a TPU, which has no assertions.
        kept, said = needed(self._function), needed(self._function, without={"Assert"})
        nodes = [
            node
            for node in self._function.node_def
            if node.name in (said if node.op == "Const" else kept)
        ]
        return compiles_surely(self._function, nodes, self._knows)

    def _knows(self, node: NodeDef) -> bool:
        """Whether a loop, or an operation on a list, compiles without any doubt."""
        if node.op in LOOPS:
            if node.name not in self._loops:
                self._loops[node.name] = self._turns(node)
            return self._loops[node.name]
        if node.op not in {"TensorListGetItem", "TensorListStack"}:
            return node.op in _GIVE_LISTS and self._made(node) is not None
        source, *_, shape = data_inputs(node)
        values = self.list_of(source)
        if values is None or values.length is None or self._statics.value(shape) is None:
            return False
        ahead = (values.length,) if node.op == "TensorListStack" else ()
        return self._statics.output_sizes(node.name, 0) == (*ahead, *values.sizes)

    def list_of(self, source: Reference) -> _List | None:
        """What is known of a list; None if that is too little."""
        node = self._statics.node(source)
        if node is None:
            return self._lists.get(source.source)
        if node.op in LOOPS:
            return self.list_of(data_inputs(node)[source.index]) if self._knows(node) else None
        return self._made(node)

    def _made(self, node: NodeDef) -> _List | None:
        """The list that a node gives."""
        if node.name not in self._lists:
            self._lists[node.name] = None
            self._lists[node.name] = self._new(node) or self._changed(node)
        return self._lists[node.name]

    def _new(self, node: NodeDef) -> _List | None:
        """A list that a node makes."""
        if node.op not in _FRESH | {"TensorListFromTensor"}:
            return None
        kind = dtypes.as_dtype(node.attr["element_dtype"].type)
        if kind.as_datatype_enum not in TYPES:
            return None
        first, second = data_inputs(node)
        if node.op == "TensorListFromTensor":
            sizes = self._statics.sizes(first)
            known = self._statics.value(second) is not None
            return _List(sizes[1:], kind, sizes[0]) if sizes and known else None
        shape, length = self._statics.value(first), self._number(second)
        if shape is None or shape.ndim != 1 or np.any(shape < 0) or length is None or length < 1:
            return None
        return _List(tuple(map(int, shape)), kind, length if "Reserve" in node.op else None)

    def _changed(self, node: NodeDef) -> _List | None:
        """A list that a node makes of others."""
        sources = data_inputs(node)
        if node.op in _ALIKE:
            found = {self.list_of(source) for source in sources}
            return found.pop() if len(found) == 1 else None
        if node.op not in _CHANGING:
            return None
        values = self.list_of(sources[0])
        if values is None or (values.length is None) is (node.op == "TensorListSetItem"):
            return None
        if node.op == "TensorListPopBack":
            known = self._statics.value(sources[1]) is not None
            same = known and self._statics.output_sizes(node.name, 1) == values.sizes
        else:
            item = sources[-1]
            kind = self._statics.dtype(item)
            same = self._statics.sizes(item) == values.sizes and kind == values.dtype
        return values if same and not (_RESIZES in node.attr and node.attr[_RESIZES].b) else None

    def _number(self, source: Reference) -> int | None:
        """A number that is known: a constant, or the largest of some, as Keras asks for."""
        node = self._statics.node(source)
        if node is not None and node.op == "Max":
            source = data_inputs(node)[0]
        value = self._statics.value(source)
        return None if value is None or not value.size else int(np.max(value))

    def _turns(self, node: NodeDef) -> bool:
        """Whether a loop compiles, and carries on what it is given."""
        condition, body = (self._library(node.attr[key].func.name) for key in ("cond", "body"))
        library, sources = self._library, data_inputs(node)
        if any(
            has_effects(one, library) or has_collectives(one, library) for one in (condition, body)
        ):
            return False
        names = [one.name for one in body.signature.input_arg]
        lists, around = {}, {}
        for name, other, source in zip(names, condition.signature.input_arg, sources, strict=True):
            values, sizes = self.list_of(source), self._statics.sizes(source)
            for place in (name, other.name):
                if values is not None:
                    lists[place] = values
                if sizes is not None:
                    around[place, 0] = sizes
        known = self._body_sizes(body.signature.name)
        inside = KnownLoops(body, library, known, self._body_sizes, lists)
        for name, result in zip(names, returned(body), strict=True):
            if dtypes.as_dtype(result.type) == dtypes.variant:
                same = name in lists and inside.list_of(result.source) == lists[name]
            elif dtypes.as_dtype(result.type) == dtypes.resource:
                same = result.source == Reference(name, "")
            else:
                sizes = inside._statics.sizes(result.source)
                same = sizes is not None and sizes == known.get((name, 0)) == around.get((name, 0))
            if not same:
                return False
        sizes_before = {**around, **self._body_sizes(condition.signature.name)}
        before = KnownLoops(condition, library, sizes_before, self._body_sizes, lists)
        return inside.compiles() and before.compiles()
