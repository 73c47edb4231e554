"""How one node moves, cuts or repeats elements as it does on each replica."""

from __future__ import annotations

import numpy as np

from tpunb.virtual._tensorflow import AttrValue, dtypes
from tpunb.virtual.graph.nodes import integer, type_of
from tpunb.virtual.replicate.joined_forms import (
    ROWS,
    SHARED,
    STACKED,
    Form,
    Holding,
    Input,
    Plan,
    Seen,
    Take,
    constant,
    holding,
)

_MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


def _reshape(seen: Seen) -> Plan | None:
    """A change of shape, of which only the result matters."""
    before, (after,) = seen.inputs[0].sizes, seen.outputs
    if not seen.inputs[0].varies or any(one.varies for one in seen.inputs[1:]):
        return None
    attributes = {"T": seen.node.attr["T"], "Tshape": type_of(dtypes.int32)}
    op = "Reshape"
    if before and after and before[0] == after[0]:
        return seen.plan([ROWS, constant(seen.rows(after))], Form.ROWS, op, attributes)
    return seen.plan([STACKED, constant(seen.stacked(after))], Form.STACKED, op, attributes)


def _transpose(seen: Seen) -> Plan | None:
    order = _known(seen.inputs[1])
    if order is None:
        return None
    if order and order[0] == 0:
        return seen.plan([ROWS, SHARED], Form.ROWS)
    moved = constant([0, *(axis + 1 for axis in order)], seen.inputs[1])
    return seen.plan([STACKED, moved], Form.STACKED)


def _concatenation(seen: Seen) -> Plan | None:
    *values, along = seen.inputs
    axis = along.integers()
    if axis is None:
        return None
    at = _from_front(axis[0], len(seen.outputs[0]))
    if at:
        return seen.plan([ROWS] * len(values) + [constant(at, along)], Form.ROWS)
    return seen.plan([STACKED] * len(values) + [constant(1, along)], Form.STACKED)


def _pack(seen: Seen) -> Plan | None:
    return _along_attribute(seen, len(seen.outputs[0]))


def _unpack(seen: Seen) -> Plan | None:
    return _along_attribute(seen, len(seen.inputs[0].sizes))


def _along_attribute(seen: Seen, rank: int) -> Plan | None:
    attributes = {"axis": integer(1 + _from_front(seen.node.attr["axis"].i, rank))}
    return seen.plan([STACKED] * len(seen.inputs), Form.STACKED, attributes=attributes)


def _from_front(axis: int, rank: int) -> int:
    """An axis that may be counted from the end, counted from the front."""
    return axis + rank if axis < 0 else axis


def _split(seen: Seen) -> Plan | None:
    """Parts along an axis, which is the first input, or after the sizes the third."""
    by_sizes = seen.node.op == "SplitV"
    value, along = (seen.inputs[0], seen.inputs[2]) if by_sizes else seen.inputs[::-1]
    axis = along.integers()
    if axis is None or not value.varies or (by_sizes and seen.inputs[1].varies):
        return None
    at = _from_front(axis[0], len(value.sizes))
    take, place = (ROWS, constant(at, along)) if at else (STACKED, constant(1, along))
    takes = [take, SHARED, place] if by_sizes else [place, take]
    return seen.plan(takes, take.form)


def _strided_slice(seen: Seen) -> Plan | None:
    bounds = [_known(one) for one in seen.inputs[1:]]
    if any(one is None for one in bounds) or not seen.inputs[0].varies:
        return None
    begin, end, strides = (one for one in bounds if one is not None)
    moved = ([0, *begin], [0, *end], [1, *strides])
    takes = [STACKED, *map(constant, moved, seen.inputs[1:])]
    return seen.plan(takes, Form.STACKED, attributes=_moved_masks(seen))


def _strided_slice_gradient(seen: Seen) -> Plan | None:
    bounds = [_known(one) for one in seen.inputs[1:4]]
    if any(one is None for one in bounds) or not seen.inputs[4].varies:
        return None
    begin, end, strides = (one for one in bounds if one is not None)
    whole = seen.stacked(seen.outputs[0])
    integers = (whole, [0, *begin], [0, *end], [1, *strides])
    takes = [*map(constant, integers, seen.inputs), STACKED]
    return seen.plan(takes, Form.STACKED, attributes=_moved_masks(seen))


def _moved_masks(seen: Seen) -> dict[str, AttrValue]:
    """The masks of a slice with an axis more in front, of which all is taken."""
    return {
        key: integer(2 * seen.node.attr[key].i + (key in {"begin_mask", "end_mask"}))
        for key in _MASKS
    }


def _known(one: Input) -> list[int] | None:
    return None if one.varies else one.integers()


def _slice(seen: Seen) -> Plan | None:
    begin = _known(seen.inputs[1])
    if begin is None or seen.inputs[2].varies:
        return None
    integers = ([0, *begin], seen.stacked(seen.outputs[0]))
    return seen.plan([STACKED, *map(constant, integers, seen.inputs[1:])], Form.STACKED)


def _pad(seen: Seen) -> Plan | None:
    margins = None if seen.inputs[1].varies else seen.inputs[1].value()
    if margins is None or any(one.varies for one in seen.inputs[2:]):
        return None
    moved = constant(np.concatenate([np.zeros([1, 2], np.int64), margins]), seen.inputs[1])
    return seen.plan([STACKED, moved, *[SHARED] * len(seen.inputs[2:])], Form.STACKED)


def _tile(seen: Seen) -> Plan | None:
    times = _known(seen.inputs[1])
    if times is None:
        return None
    return seen.plan([STACKED, constant([1, *times], seen.inputs[1])], Form.STACKED)


def _broadcast(seen: Seen) -> Plan | None:
    value, (after,) = seen.inputs[0], seen.outputs
    if not value.varies or seen.inputs[1].varies:
        return None
    sizes = (1,) * (len(after) - len(value.sizes)) + value.sizes
    whole = constant(seen.stacked(after), seen.inputs[1])
    return seen.plan([Take(Form.STACKED, sizes), whole], Form.STACKED)


SHAPES: dict[str, Holding] = {
    **holding(_broadcast, "BroadcastTo"),
    **holding(_concatenation, "ConcatV2"),
    **holding(_pack, "Pack", "axis"),
    **holding(_pad, "MirrorPad Pad PadV2", "mode"),
    **holding(_reshape, "ExpandDims Reshape Squeeze", "squeeze_dims"),
    **holding(_slice, "Slice"),
    **holding(_split, "Split SplitV"),
    **holding(_strided_slice, "StridedSlice", " ".join(_MASKS)),
    **holding(_strided_slice_gradient, "StridedSliceGrad", " ".join(_MASKS)),
    **holding(_tile, "Tile"),
    **holding(_transpose, "Transpose"),
    **holding(_unpack, "Unpack", "axis"),
}
"""The rules for what moves elements."""
