"""The arithmetic of a TPU's matrix unit: products of bfloat16, sums in float32."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import tensorflow as tf

from tpunb.tensorflow.virtual.graph.function_def import (
    OUTSIDE,
    Library,
    Reference,
    add_node,
    data_inputs,
    function_attributes,
    type_of,
)
from tpunb.tensorflow.virtual.graph.rewrite import inlined
from tpunb.tensorflow.virtual.private_names import (
    FunctionDef,
    NodeDef,
    PrecisionConfig,
    dtypes,
    op_def_registry,
)

FACTORS: dict[str, tuple[str, ...]] = {
    op: arguments
    for arguments, ops in {
        ("x", "y"): "BatchMatMul BatchMatMulV2 BatchMatMulV3",
        ("a", "b"): "MatMul SparseMatMul XlaEinsum",
        ("lhs", "rhs"): "XlaConv XlaConvV2 XlaDot XlaDotV2",
        ("input", "filter"): "Conv Conv2D Conv3D DepthwiseConv2dNative",
        ("input", "out_backprop"): (
            "Conv2DBackpropFilter Conv3DBackpropFilterV2 DepthwiseConv2dNativeBackpropFilter"
        ),
        ("filter", "out_backprop"): (
            "Conv2DBackpropInput Conv3DBackpropInputV2 DepthwiseConv2dNativeBackpropInput"
        ),
        ("inputs",): "Einsum",
        ("images",): "ExtractImagePatches",  # a convolution with ones and zeros
    }.items()
    for op in ops.split()
}
"""The arguments of each operation that a matrix unit multiplies."""

_ON_HOST = "@host"

_FLOAT32, _BFLOAT16 = type_of(dtypes.float32), type_of(dtypes.bfloat16)


@dataclasses.dataclass(frozen=True)
class MatrixUnit:
    """The rounding of factors before they are multiplied.

    By default a TPU rounds the factors of float32 matrix products and convolutions to bfloat16. The
    product of two bfloat16 numbers fits a float32. So rounding the factors and computing as before
    gives the chip's result, up to the order in which it adds.

    XLA calls this the default precision. TensorFlow's compiler asks for it in the operations of
    `FACTORS`, and for the highest precision in decompositions and solvers; the tests compare both.

    Attributes:
        by_default: Whether products are rounded if the user does not specify their precision.
    """

    by_default: bool

    @classmethod
    def as_set(cls) -> MatrixUnit:
        """Return the matrix unit as the user has set it for all products.

        TensorFlow documents that TPUs compute in float32 after
        `tf.config.experimental.enable_tensor_float_32_execution(False)`. A TPU reads this switch
        when it compiles.
        """
        return cls(bool(tf.config.experimental.tensor_float_32_execution_enabled()))

    def rounded(self, function: FunctionDef) -> FunctionDef:
        """Return a function whose float32 matrix products and convolutions take bfloat16 numbers.

        The functions that it calls on the host get other names, which `body` recognizes.
        """
        if not any(self._multiplies(node) or OUTSIDE in node.attr for node in function.node_def):
            return function
        result = FunctionDef()
        result.CopyFrom(function)
        known: dict[tuple[Reference, str], str] = {}
        for node in result.node_def[:]:
            if OUTSIDE in node.attr:
                for called in function_attributes(node):
                    called.name += _ON_HOST
            elif self._multiplies(node):
                for index, source in _factors(node):
                    key = source, node.device
                    if key not in known:
                        known[key] = _write_rounding(result, f"tpunb_rounded_{len(known)}", *key)
                    node.input[index] = known[key]
        return result

    def body(self, name: str, library: Library) -> FunctionDef:
        """Return a function that a rounded function calls: inlined, and rounded too."""
        body = inlined(library(name.removesuffix(_ON_HOST)), library)
        if name.endswith(_ON_HOST):
            for node in body.node_def:
                node.attr[OUTSIDE].s = b"around"
        return self.rounded(body)

    def _multiplies(self, node: NodeDef) -> bool:
        """Return whether a matrix unit computes a node, and rounds."""
        if node.op not in FACTORS or OUTSIDE in node.attr:
            return False
        if "precision_config" in node.attr:
            precision = PrecisionConfig.FromString(node.attr["precision_config"].s)
            return not any(precision.operand_precision)
        return self.by_default and (
            "equation" not in node.attr or _contracts(node.attr["equation"].s.decode())
        )


def _contracts(equation: str) -> bool:
    """Return whether an einsum sums products: a TPU computes only those as matrix products."""
    operands, _, result = equation.partition("->")
    factors = [set(filter(str.isalpha, labels)) for labels in operands.split(",")]
    return len(factors) == 2 and bool((factors[0] & factors[1]) - set(result))


def _factors(node: NodeDef) -> Iterator[tuple[int, Reference]]:
    """Yield the inputs of a product that are rounded: their indices and sources."""
    sources = data_inputs(node)
    first = 0
    for argument in op_def_registry.get(node.op).input_arg:
        count = node.attr[argument.number_attr].i if argument.number_attr else 1
        dtype = node.attr[argument.type_attr].type if argument.type_attr else argument.type
        if argument.name in FACTORS[node.op] and dtype == _FLOAT32.type:
            yield from ((index, sources[index]) for index in range(first, first + count))
        first += count


def _write_rounding(function: FunctionDef, name: str, source: Reference, device: str) -> str:
    """Write the nodes that round a tensor to the nearest bfloat16; ties go to even."""
    there, back = f"{name}/bfloat16", name
    text = f"{source.source}{source.suffix}"
    add_node(function, "Cast", there, device, [text], SrcT=_FLOAT32, DstT=_BFLOAT16)
    inputs = [f"{there}:y:0"]
    add_node(function, "Cast", back, device, inputs, SrcT=_BFLOAT16, DstT=_FLOAT32)
    return f"{back}:y:0"
