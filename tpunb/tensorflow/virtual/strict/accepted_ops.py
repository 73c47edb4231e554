"""Operations, loops and lists that a TPU is known to compile, so that XLA need not be asked.

Compiling a function as far as XLA's intermediate form takes a fifth of its first step. A function
of only these operations, without branches, compiles for certain if constants and shapes give the
sizes that XLA needs as constants. A loop compiles for certain if it returns values like its inputs.
So does a list of a known length with elements of one shape. A recurrent network and its gradient
are made of such loops and lists.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from tpunb.tensorflow.virtual.graph.function_def import (
    FRESH,
    LOOPS,
    READS,
    KnownSizes,
    Library,
    Reference,
    Sizes,
    StaticTensors,
    data_inputs,
    has_collectives,
    has_effects,
    needed,
    new_constant,
    returned,
)
from tpunb.tensorflow.virtual.graph.rewrite import Rewrite, inlined
from tpunb.tensorflow.virtual.graph.tensorflow_graphs import body_sizes, known_sizes
from tpunb.tensorflow.virtual.graph.traced_function import ANY_SIZE, TracedFunction
from tpunb.tensorflow.virtual.private_names import (
    FunctionDef,
    NodeDef,
    dtypes,
    function_def_to_graph_def,
    op_def_registry,
    tensor_util,
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


_ALIKE = frozenset({"AddN", "Identity", "ZerosLike"})
_CHANGING = frozenset({"TensorListPopBack", "TensorListPushBack", "TensorListSetItem"})
_GIVE_LISTS = FRESH | _ALIKE | _CHANGING | {"TensorListFromTensor"}
_RESIZES = "resize_if_index_out_of_bounds"
_HANDLES = frozenset({dtypes.resource.as_datatype_enum, dtypes.variant.as_datatype_enum})
# The input that is the shape of a list's elements.
_ELEMENT_SHAPES = {
    "EmptyTensorList": 0,
    "TensorListFromTensor": 1,
    "TensorListGetItem": 2,
    "TensorListPopBack": 1,
    "TensorListReserve": 0,
    "TensorListStack": 1,
}
_TELL_SIZES = frozenset({"Max", "Shape", "Slice", "TensorListElementShape", "TensorListLength"})


@dataclasses.dataclass(frozen=True)
class _List:
    """A list of tensors.

    Attributes:
        sizes: The shape of each tensor.
        dtype: The tensors' type.
        length: The number of tensors; None for a list that grows and shrinks up to a known length.
        written: False if an element's size is not known, and no element was written yet. Then
            `sizes` has assumed sizes, and XLA takes the shape from the first element.
    """

    sizes: Sizes
    dtype: dtypes.DType
    length: int | None
    written: bool = True


def compiles_for_certain(traced: TracedFunction) -> bool:
    """Return whether a replica function certainly compiles, so that XLA need not be asked."""
    library = functools.cache(lambda name: inlined(traced.library(name), traced.library))
    inputs = zip(traced.definition.signature.input_arg, traced.graph.inputs, strict=True)
    arguments = {
        (argument.name, 0): tuple(ANY_SIZE if size is None else size for size in tensor.shape)
        for argument, tensor in inputs
        if tensor.shape.rank is not None
    }
    sizes: KnownSizes = known_sizes(traced.graph, traced.definition)
    if any(node.op in LOOPS for node in traced.definition.node_def):
        sizes = as_tried(traced.definition, sizes, arguments)
    inside = body_sizes(traced.graph, library)
    return KnownLoops(traced.definition, library, sizes, inside).compiles()


class KnownLoops:
    """The loops and lists of a function.

    Args:
        function: The function, calls written out.
        library: Finds the functions of control flow.
        sizes: The shapes that are known.
        body_sizes: Finds the known shapes of a function of control flow.
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
        self._nodes = {node.name: node for node in function.node_def}
        self._statics = StaticTensors(function, self._nodes, sizes)
        self._constant: dict[str, bool] = {}
        self._lists: dict[str, _List | None] = dict(lists or {})
        self._loops: dict[str, bool] = {}
        self._carried: dict[tuple[str, int], _List] = {}

    def compiles(self) -> bool:
        """Return whether the function certainly compiles."""
        # An assertion's message is not a tensor on a TPU, which has no assertions.
        run_nodes, run_without_assertions = (
            needed(self._function),
            needed(self._function, without={"Assert"}),
        )
        return all(
            self._is_sure(node)
            for node in self._function.node_def
            if node.name in (run_without_assertions if node.op == "Const" else run_nodes)
        )

    def _is_sure(self, node: NodeDef) -> bool:
        """Return whether a node certainly compiles."""
        if not is_known(node):
            return self._knows(node)
        sources = data_inputs(node)
        indices = _CONSTANT_INPUTS.get(node.op, ())
        constants = sources if node.op in _ALL_CONSTANT else [sources[index] for index in indices]
        return all(self._is_constant(source.source) for source in constants)

    def _is_constant(self, name: str) -> bool:
        """Return whether a node's results are known when a TPU compiles."""
        if name not in self._constant:
            node = self._nodes.get(name)
            self._constant[name] = False
            self._constant[name] = node is not None and (
                node.op in _SIZES
                or (
                    is_known(node)
                    and node.op not in _READS
                    and "Random" not in node.op
                    and bool(sources := data_inputs(node))
                    and all(self._is_constant(source.source) for source in sources)
                )
            )
        return self._constant[name]

    def _knows(self, node: NodeDef) -> bool:
        """Return whether a loop, or an operation on a list, certainly compiles."""
        if node.op in LOOPS:
            if node.name not in self._loops:
                self._loops[node.name] = self._loop_compiles(node)
            return self._loops[node.name]
        if node.op in {"TensorListElementShape", "TensorListLength"}:
            values = self.list_of(data_inputs(node)[0])
            return values is not None and values.written
        if node.op not in {"TensorListGetItem", "TensorListStack"}:
            return node.op in _GIVE_LISTS and self._list_from(node) is not None
        source, *_, shape = data_inputs(node)
        values = self.list_of(source)
        if values is None or values.length is None or not values.written:
            return False
        if self._value(shape) is None:
            return False
        ahead = (values.length,) if node.op == "TensorListStack" else ()
        return self._statics.output_sizes(node.name, 0) == (*ahead, *values.sizes)

    def list_of(self, source: Reference) -> _List | None:
        """Return a description of a list; None if too little is known of it."""
        node = self._statics.node(source)
        if node is None:
            return self._lists.get(source.source)
        if node.op in LOOPS:
            return self._carried.get((node.name, source.index)) if self._knows(node) else None
        return self._list_from(node)

    def _list_from(self, node: NodeDef) -> _List | None:
        """Return the list that a node gives."""
        if node.name not in self._lists:
            self._lists[node.name] = None
            self._lists[node.name] = self._new_list(node) or self._changed_list(node)
        return self._lists[node.name]

    def _new_list(self, node: NodeDef) -> _List | None:
        """Return a list that a node makes."""
        if node.op not in FRESH | {"TensorListFromTensor"}:
            return None
        dtype = dtypes.as_dtype(node.attr["element_dtype"].type)
        if dtype.as_datatype_enum not in TYPES:
            return None
        first, second = data_inputs(node)
        if node.op == "TensorListFromTensor":
            sizes = self._statics.sizes(first)
            known = self._statics.value(second) is not None
            return _List(sizes[1:], dtype, sizes[0]) if sizes and known else None
        shape, length = self._value(first), self._value(second)
        if shape is None or shape.ndim != 1 or length is None or length < 1:
            return None
        return _List(
            tuple(ANY_SIZE if size < 0 else int(size) for size in shape),
            dtype,
            int(length) if "Reserve" in node.op else None,
            written=not np.any(shape < 0),
        )

    def _changed_list(self, node: NodeDef) -> _List | None:
        """Return a list that a node makes of other lists."""
        sources = data_inputs(node)
        if node.op in _ALIKE:
            lists_read = {self.list_of(source) for source in sources}
            common = lists_read.pop() if len(lists_read) == 1 else None
            return common if common and (common.written or node.op == "Identity") else None
        if node.op not in _CHANGING:
            return None
        values = self.list_of(sources[0])
        if values is None or (values.length is None) is (node.op == "TensorListSetItem"):
            return None
        if node.op == "TensorListPopBack":
            known = values.written and self._statics.value(sources[1]) is not None
            same = known and self._statics.output_sizes(node.name, 1) == values.sizes
        else:
            item = sources[-1]
            dtype = self._statics.dtype(item)
            same = self._statics.sizes(item) == values.sizes and dtype == values.dtype
        if not same or (_RESIZES in node.attr and node.attr[_RESIZES].b):
            return None
        return dataclasses.replace(values, written=True)

    def _value(self, source: Reference) -> np.ndarray | None:
        """Return the value of a tensor that is a size; None if it is not known."""
        node = self._statics.node(source)
        if node is None or node.op not in _TELL_SIZES:
            return self._statics.value(source)
        first, *others = data_inputs(node)
        if node.op == "Shape":
            sizes = self._statics.sizes(first)
            return None if sizes is None else np.array(sizes, np.int32)
        if node.op in {"TensorListElementShape", "TensorListLength"}:
            values = self.list_of(first)
            if values is None or values.length is None or not values.written:
                return None
            return np.array(values.length if node.op == "TensorListLength" else values.sizes)
        value = self._value(first)
        if node.op == "Max":  # Keras asks for the maximum of some lengths
            return None if value is None or not value.size else np.max(value)
        begin, size = map(self._value, others)
        if value is None or begin is None or size is None or value.ndim != 1:
            return None
        end = len(value) if size[0] < 0 else begin[0] + size[0]
        return value[begin[0] : end]

    def _loop_compiles(self, node: NodeDef) -> bool:
        """Return whether a loop compiles, and returns values like its inputs."""
        condition, body = (self._library(node.attr[key].func.name) for key in ("cond", "body"))
        library, sources = self._library, data_inputs(node)
        if any(
            has_effects(function, library) or has_collectives(function, library)
            for function in (condition, body)
        ):
            return False
        names = [argument.name for argument in body.signature.input_arg]
        lists, argument_sizes = {}, {}
        for name, argument, source in zip(
            names, condition.signature.input_arg, sources, strict=True
        ):
            values, sizes = self.list_of(source), self._statics.sizes(source)
            for parameter in (name, argument.name):
                if values is not None:
                    lists[parameter] = values
                if sizes is not None:
                    argument_sizes[parameter, 0] = sizes
        known = as_tried(body, self._body_sizes(body.signature.name), argument_sizes)
        inside = KnownLoops(body, library, known, self._body_sizes, lists)
        for index, (name, result) in enumerate(zip(names, returned(body), strict=True)):
            if dtypes.as_dtype(result.type) == dtypes.variant:
                before, after = lists.get(name), inside.list_of(result.source)
                same = False
                if before is not None and after is not None:
                    same = after == dataclasses.replace(before, written=after.written)
                    self._carried[node.name, index] = after
            elif dtypes.as_dtype(result.type) == dtypes.resource:
                same = result.source == Reference(name, "")
            else:
                sizes = inside._statics.sizes(result.source)
                same = sizes is not None and sizes == known.get((name, 0)) == argument_sizes.get(
                    (name, 0)
                )
            if not same:
                return False
        sizes_before = as_tried(
            condition, self._body_sizes(condition.signature.name), argument_sizes
        )
        test = KnownLoops(condition, library, sizes_before, self._body_sizes, lists)
        return inside.compiles() and test.compiles()


def as_tried(function: FunctionDef, known: KnownSizes, arguments: KnownSizes) -> KnownSizes:
    """Return the shapes in a function whose arguments have the sizes that XLA would be asked with.

    Args:
        function: The function, calls written out.
        known: The shapes that are known regardless of the arguments.
        arguments: The shapes of the arguments.
    """
    signature = function.signature.input_arg
    if all((argument.name, 0) in known for argument in signature if argument.type not in _HANDLES):
        return known
    rewrite = Rewrite(function)
    rewrite.result.arg_attr.clear()  # these attributes have shapes, too
    nodes = {node.name: node for node in function.node_def}
    for original in function.node_def:
        node = rewrite.keep(original)
        # These attributes are shapes and colocations.
        for name in [name for name in node.attr if name.startswith("_")]:
            del node.attr[name]
        if node.op in LOOPS:  # a loop's results have the shapes of its inputs
            node.op = "IdentityN"
            for name in [name for name in node.attr if name != "T"]:
                del node.attr[name]
        elif node.op in READS and (node.name, 0) in known:
            output = op_def_registry.get(node.op).output_arg[0].name
            _make_placeholder(node, known[node.name, 0])
            rewrite.replace({f"{node.name}:{output}:0": f"{node.name}:output:0"})
        elif (shape_index := _ELEMENT_SHAPES.get(node.op)) is not None:
            source = nodes.get(node.input[shape_index].partition(":")[0])
            if source is not None and source.op == "Const":
                shape = tensor_util.MakeNdarray(source.attr["value"].tensor)
                sizes = np.where(shape < 0, ANY_SIZE, shape) if shape.ndim else shape
                tried = new_constant(f"{node.name}/tried", sizes)
                node.input[shape_index] = f"{rewrite.keep(tried).name}:output:0"
    shapes = [arguments.get((argument.name, 0)) for argument in signature]
    sizes_tried = dict(known)
    with tf.Graph().as_default() as graph:
        try:
            graph_def, _ = function_def_to_graph_def(
                rewrite.finish(),
                input_shapes=[None if shape is None else tf.TensorShape(shape) for shape in shapes],
            )
            tf.graph_util.import_graph_def(graph_def, name="")
        except ValueError:  # these sizes do not match: the compiler is asked
            return known
        for operation in graph.get_operations():
            for index, tensor in enumerate(operation.outputs):
                if tensor.shape.is_fully_defined():
                    sizes_tried[operation.name, index] = tuple(tensor.shape.as_list())
    return sizes_tried


def _make_placeholder(node: NodeDef, sizes: Sizes) -> None:
    dtype = node.attr["dtype"].type if "dtype" in node.attr else node.attr["out_type"].type
    node.op = "Placeholder"
    del node.input[:]
    node.attr.clear()
    node.attr["dtype"].type = dtype
    node.attr["shape"].shape.CopyFrom(tf.TensorShape(sizes).as_proto())
