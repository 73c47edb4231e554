"""How one matrix product or convolution does what it does on each replica."""

from __future__ import annotations

import string

from tpunb.virtual._tensorflow import AttrValue
from tpunb.virtual.replicate.joined_forms import (
    ROWS,
    SHARED,
    STACKED,
    Form,
    Plan,
    Rule,
    Seen,
    Take,
    constant,
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
    whole = result if seen.summed else replica + result
    attributes = {"equation": AttrValue(s=f"{','.join(labels)}->{whole}".encode())}
    takes = [STACKED if one.varies else SHARED for one in seen.inputs]
    gives = Form.SUMMED if seen.summed else Form.STACKED
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


PRODUCTS: dict[str, Rule] = {
    "AvgPool3DGrad": _mean_pooling_gradient,
    "AvgPoolGrad": _mean_pooling_gradient,
    "BatchMatMul": _batched_matrices,
    "BatchMatMulV2": _batched_matrices,
    "Conv2D": _convolution,
    "Conv2DBackpropFilter": _weights_gradient,
    "Conv2DBackpropInput": _image_gradient,
    "Conv3D": _convolution,
    "Conv3DBackpropFilterV2": _weights_gradient,
    "Conv3DBackpropInputV2": _image_gradient,
    "DepthwiseConv2dNative": _convolution,
    "DepthwiseConv2dNativeBackpropFilter": _weights_gradient,
    "DepthwiseConv2dNativeBackpropInput": _image_gradient,
    "Einsum": _einsum,
    "MatMul": _matrices,
}
"""The rules for what multiplies, and for the gradients of pooling, which are alike."""
