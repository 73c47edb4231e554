"""How one matrix product or convolution does what it does on each replica."""

from __future__ import annotations

import string

from tpunb.virtual._tensorflow import AttrValue
from tpunb.virtual.replicate.joined_forms import (
    ROWS,
    SHARED,
    STACKED,
    Form,
    Holding,
    Plan,
    Seen,
    Take,
    constant,
    holding,
)

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
