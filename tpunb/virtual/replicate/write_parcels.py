"""The new values of variables for the other cores, in one parcel for each.

TensorFlow hands a tensor from one device to another by a rendezvous. That takes some 40
microseconds, more than a small network's layer takes to compute: so that what every core is
to get of an optimizer's step is sent as one list, whose tensors are the same memory
everywhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tpunb.virtual._tensorflow import AttrValue, NodeDef, dtypes
from tpunb.virtual.replicate.builder import Builder
from tpunb.virtual.replicate.nodes import type_of

_INT32 = type_of(dtypes.int32)
_FEWEST = 2
"""Tensors for which a list is worth its making."""


def send_in_parcels(builder: Builder) -> None:
    """Makes the copies of updates, which are written, take their values from one list.

    Only where nothing in the function waits for a copy: a list is there when the last of its
    values is.

    Args:
        builder: Has written the nodes of a function, or of a body.
    """
    parcels: dict[int, dict[int, list[NodeDef]]] = defaultdict(lambda: defaultdict(list))
    for node in _last(builder):
        parcels[node.attr["dtype"].type][builder.copied[node.name]].append(node)
    for number, copies in parcels.items():
        _send(builder, AttrValue(type=number), copies)


def _last(builder: Builder) -> list[NodeDef]:
    """The copies for which nothing waits but other such copies."""
    copies = {n.name: n for n in builder.result.node_def if n.name in builder.copied}
    awaited = [node for node in builder.result.node_def if node.name not in copies]
    while awaited:
        before = (text.lstrip("^").partition(":")[0] for text in awaited.pop().input)
        awaited += [copies.pop(name) for name in before if name in copies]
    return list(copies.values())


def _send(builder: Builder, kind: AttrValue, copies: dict[int, list[NodeDef]]) -> None:
    """Sends each replica's copies of one type."""
    lists: dict[tuple[str, ...], str] = {}
    for replica, nodes in copies.items():
        values = tuple(node.input[1] for node in nodes)
        if len(values) < _FEWEST or builder.processes[replica] != builder.processes[0]:
            continue
        if values not in lists:
            lists[values] = _pack(builder, f"tpunb_parcel_{kind.type}_{len(lists)}", kind, values)
        _unpack(builder, lists[values], kind, nodes)


def _pack(builder: Builder, name: str, kind: AttrValue, values: Sequence[str]) -> str:
    """A list of tensors; of the last first, as they are taken from its end."""
    device = builder.cores[0][0]
    shape, size = (builder.constant(f"{name}/{what}", device, -1) for what in ("shape", "size"))
    made = builder.add(
        "EmptyTensorList", name, device, [shape, size], element_dtype=kind, shape_type=_INT32
    )
    parcel = f"{made}:handle:0"
    for number, value in enumerate(reversed(values)):
        inputs = [parcel, value]
        made = builder.add(
            "TensorListPushBack", f"{name}/{number}", device, inputs, element_dtype=kind
        )
        parcel = f"{made}:output_handle:0"
    return parcel


def _unpack(builder: Builder, parcel: str, kind: AttrValue, nodes: Sequence[NodeDef]) -> None:
    """Makes the copies of one replica take their values from a list."""
    name, device = f"{nodes[0].name}/parcel", nodes[0].device
    shape = builder.constant(f"{name}/shape", device, -1)
    for number, node in enumerate(nodes):
        made = builder.add(
            "TensorListPopBack", f"{name}/{number}", device, [parcel, shape], element_dtype=kind
        )
        parcel, node.input[1] = f"{made}:output_handle:0", f"{made}:tensor:0"
