"""The arithmetic of a TPU's matrix unit: products of bfloat16, sums in float32.

By default a TPU rounds the factors of float32 matrix products and convolutions to
bfloat16. The product of two bfloat16 numbers fits a float32, so that rounding the factors
and computing as before gives what the chip gives, up to the order in which it adds.

XLA calls it the default precision. TensorFlow's compiler asks for it in the operations
below, and for the highest in decompositions and solvers; the tests compare.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import tensorflow as tf

from tpunb.virtual._tensorflow import FunctionDef, NodeDef, PrecisionConfig, dtypes, op_def_registry
from tpunb.virtual.graph.function_def import OUTSIDE, Library, Reference, data_inputs
from tpunb.virtual.graph.nodes import add_node, type_of
from tpunb.virtual.graph.rewrite import inlined

FACTORS: dict[str, tuple[str, ...]] = {
    "BatchMatMul": ("x", "y"),
    "BatchMatMulV2": ("x", "y"),
    "BatchMatMulV3": ("x", "y"),
    "Conv": ("input", "filter"),
    "Conv2D": ("input", "filter"),
    "Conv2DBackpropFilter": ("input", "out_backprop"),
    "Conv2DBackpropInput": ("filter", "out_backprop"),
    "Conv3D": ("input", "filter"),
    "Conv3DBackpropFilterV2": ("input", "out_backprop"),
    "Conv3DBackpropInputV2": ("filter", "out_backprop"),
    "DepthwiseConv2dNative": ("input", "filter"),
    "DepthwiseConv2dNativeBackpropFilter": ("input", "out_backprop"),
    "DepthwiseConv2dNativeBackpropInput": ("filter", "out_backprop"),
    "Einsum": ("inputs",),
    "ExtractImagePatches": ("images",),  # a convolution with ones and zeros
    "MatMul": ("a", "b"),
    "SparseMatMul": ("a", "b"),
    "XlaConv": ("lhs", "rhs"),
    "XlaConvV2": ("lhs", "rhs"),
    "XlaDot": ("lhs", "rhs"),
    "XlaDotV2": ("lhs", "rhs"),
    "XlaEinsum": ("a", "b"),
}
"""The arguments of each operation that a matrix unit multiplies."""

_ON_HOST = "@host"

_FLOAT32, _BFLOAT16 = type_of(dtypes.float32), type_of(dtypes.bfloat16)


@dataclasses.dataclass(frozen=True)
class MatrixUnit:
    """Which products take bfloat16 numbers.

    Attributes:
        by_default: Whether those do of which the user does not give the precision.
    """

    by_default: bool

    @classmethod
    def as_set(cls) -> MatrixUnit:
        """As the user has set it for all products.

        TensorFlow documents that `tf.config.experimental.enable_tensor_float_32_execution(False)`
        has TPUs compute in float32. A TPU reads this switch when it compiles.
        """
        return cls(bool(tf.config.experimental.tensor_float_32_execution_enabled()))

    def rounded(self, function: FunctionDef) -> FunctionDef:
        """A function whose float32 matrix products and convolutions take bfloat16 numbers.

        Args:
            function: The function; it is not changed.

        Returns:
            A new one, or the same if it has none. Of the functions that it calls those that run
            on the host have other names, by which `body` knows them.
        """
        if not any(self._multiplies(node) or OUTSIDE in node.attr for node in function.node_def):
            return function
        result = FunctionDef()
        result.CopyFrom(function)
        known: dict[tuple[Reference, str], str] = {}
        for node in result.node_def[:]:
            if OUTSIDE in node.attr:
                _name_as_the_hosts(node)
            elif self._multiplies(node):
                for place, source in _factors(node):
                    key = source, node.device
                    if key not in known:
                        known[key] = _write_rounding(result, f"tpunb_rounded_{len(known)}", *key)
                    node.input[place] = known[key]
        return result

    def body(self, name: str, library: Library) -> FunctionDef:
        """A function that a rounded one calls, its calls inlined, rounded too.

        Args:
            name: Its name there.
            library: Finds functions by the names that they were traced with.
        """
        body = inlined(library(name.removesuffix(_ON_HOST)), library)
        if name.endswith(_ON_HOST):
            for node in body.node_def:
                node.attr[OUTSIDE].s = b"around"
        return self.rounded(body)

    def _multiplies(self, node: NodeDef) -> bool:
        """Whether a matrix unit computes a node, and rounds."""
        if node.op not in FACTORS or OUTSIDE in node.attr:
            return False
        if "precision_config" in node.attr:
            given = PrecisionConfig.FromString(node.attr["precision_config"].s)
            return not any(given.operand_precision)
        return self.by_default and (
            "equation" not in node.attr or _contracts(node.attr["equation"].s.decode())
        )


def _name_as_the_hosts(node: NodeDef) -> None:
    """Names the functions of a loop or a branch as those of one that runs on the host."""
    for value in node.attr.values():
        functions = [value.func] if value.WhichOneof("value") == "func" else value.list.func
        for function in functions:
            function.name += _ON_HOST


def _contracts(equation: str) -> bool:
    """Whether an einsum sums products; a TPU's compiler makes no matrix product of others."""
    given, _, result = equation.partition("->")
    factors = [set(filter(str.isalpha, labels)) for labels in given.split(",")]
    return len(factors) == 2 and bool((factors[0] & factors[1]) - set(result))


def _factors(node: NodeDef) -> Iterator[tuple[int, Reference]]:
    """The inputs of a product that are rounded: their places and sources."""
    sources = data_inputs(node)
    place = 0
    for argument in op_def_registry.get(node.op).input_arg:
        count = node.attr[argument.number_attr].i if argument.number_attr else 1
        kind = node.attr[argument.type_attr].type if argument.type_attr else argument.type
        if argument.name in FACTORS[node.op] and kind == _FLOAT32.type:
            yield from ((one, sources[one]) for one in range(place, place + count))
        place += count


def _write_rounding(function: FunctionDef, name: str, source: Reference, device: str) -> str:
    """Writes the nodes that round a tensor to the nearest bfloat16; ties go to the even one."""
    there, back = f"{name}/bfloat16", name
    text = f"{source.source}{source.suffix}"
    add_node(function, "Cast", there, device, [text], SrcT=_FLOAT32, DstT=_BFLOAT16)
    inputs = [f"{there}:y:0"]
    add_node(function, "Cast", back, device, inputs, SrcT=_BFLOAT16, DstT=_FLOAT32)
    return f"{back}:y:0"
