"""How one list of tensors does what a list does on each replica.

Each element of the one list is the elements of all replicas' lists: one after the other, or
along a new axis if they have none.
"""

from __future__ import annotations

from tpunb.virtual._tensorflow import dtypes
from tpunb.virtual.graph.static_tensors import Sizes
from tpunb.virtual.replicate.joined_forms import (
    INNER,
    LISTED,
    REAL,
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
    listed_shape,
)


def _element(sizes: Sizes) -> Take:
    """How an element of a list is taken and given."""
    return ROWS if sizes else STACKED


def _whole(seen: Seen, sizes: Sizes, like: Input) -> Take:
    """The shape of all replicas' elements of a shape, in place of the shape of one."""
    return constant(seen.rows(sizes) if sizes else seen.stacked(sizes), like)


def _get(seen: Seen) -> Plan | None:
    values, index, shape = seen.inputs
    if not values.varies or index.varies:
        return None
    (sizes,) = seen.outputs
    return seen.plan([LISTED, SHARED, _whole(seen, sizes, shape)], _element(sizes).form)


def _set(seen: Seen) -> Plan | None:
    _, index, item = seen.inputs
    return None if index.varies else seen.plan([LISTED, SHARED, _element(item.sizes)], Form.LISTED)


def _push(seen: Seen) -> Plan | None:
    return seen.plan([LISTED, _element(seen.inputs[1].sizes)], Form.LISTED)


def _pop(seen: Seen) -> Plan | None:
    _, sizes = seen.outputs
    if not seen.inputs[0].varies:
        return None
    takes = [LISTED, _whole(seen, sizes, seen.inputs[1])]
    return Plan(takes, [Form.LISTED, _element(sizes).form])


def _stack(seen: Seen) -> Plan | None:
    (sizes,) = seen.outputs
    return seen.plan([LISTED, _whole(seen, sizes[1:], seen.inputs[1])], Form.INNER)


def _from_tensor(seen: Seen) -> Plan | None:
    shape = _of_elements(seen, seen.inputs[1])
    return seen.plan([INNER, shape], Form.LISTED) if seen.inputs[0].varies else None


def _new(seen: Seen) -> Plan | None:
    """A list whose shape, or length, is that of one that varies."""
    if dtypes.as_dtype(seen.node.attr["element_dtype"].type) not in REAL:
        return None
    shape = LISTED if seen.inputs[0].varies else _of_elements(seen, seen.inputs[0])
    return seen.plan([shape, SHARED], Form.LISTED)


def _of_elements(seen: Seen, shape: Input) -> Take:
    """The shape that the elements of a new list have, in place of that of a replica's."""
    value = None if shape.varies else shape.value()
    return constant(listed_shape(value, seen.replicas), shape)


def _length(seen: Seen) -> Plan | None:
    return seen.plan([LISTED], Form.SHARED)


def _lists(seen: Seen) -> Plan | None:
    """What does with each element what it does with a list, or tells their shape."""
    return seen.plan([LISTED] * len(seen.inputs), Form.LISTED)


LISTS: dict[str, Holding] = {
    **holding(_get, "TensorListGetItem"),
    **holding(_set, "TensorListSetItem"),
    **holding(_push, "TensorListPushBack"),
    **holding(_pop, "TensorListPopBack"),
    **holding(_stack, "TensorListStack", "num_elements"),
    **holding(_from_tensor, "TensorListFromTensor"),
    **holding(_new, "EmptyTensorList TensorListReserve"),
    **holding(_length, "TensorListLength"),
    **holding(_lists, "AddN Identity TensorListElementShape ZerosLike"),
}
"""The rules for lists of tensors.

Of lists that vary, the shape of an element is a list's too: it goes into new lists alone.
"""
