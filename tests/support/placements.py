"""Places of arrays for the tests of their displays, made without JAX."""

from __future__ import annotations

import itertools
import math

from tpunb.display.describe.placement import (
    ArrayPlacement,
    Holder,
    LeafPlacement,
    Part,
    TreePlacement,
)
from tpunb.display.describe.replicas import ReplicaValuesDescription

Spec = tuple[tuple[str, ...], ...]


def placed(
    shape: tuple[int, ...],
    mesh: dict[str, int],
    spec: Spec,
    *,
    others: int = 0,
    memory: str = "",
    notes: tuple[str, ...] = (),
    processes: int = 1,
) -> ArrayPlacement:
    """Return a float32 array on TPU devices in the order of a mesh, process 0's and others'."""
    found: dict[tuple[tuple[int, int], ...], list[Holder]] = {}
    positions = list(itertools.product(*map(range, mesh.values())))
    for number, position in enumerate(positions):
        at = dict(zip(mesh, position, strict=True))
        ranges = []
        for size, axes in zip(shape, spec, strict=True):
            place = 0
            for axis in axes:
                place = place * mesh[axis] + at[axis]
            length = size // math.prod(mesh[axis] for axis in axes)
            ranges.append((place * length, place * length + length))
        process = number * processes // len(positions)
        holder = Holder(f"TPU {number}", position, process or None)
        found.setdefault(tuple(ranges), []).append(holder)
    parts = tuple(
        Part(ranges, 4 * math.prod(end - begin for begin, end in ranges), tuple(holders))
        for ranges, holders in sorted(found.items())
    )
    size = 4 * math.prod(shape)
    axes = tuple(mesh.items())
    return ArrayPlacement(shape, "float32", size, parts, axes, spec, others, memory, notes)


MESH = {"data": 4, "model": 2}
ARRAYS = {
    "matrix": placed((4096, 8192), MESH, (("data",), ("model",))),
    "copies": placed((4096, 8192), MESH, (("data",), ())),
    "vector": placed((65536,), MESH, (("data", "model"),)),
    "replicated": placed((1024, 1024), MESH, ((), ())),
    "planes": placed((8, 64, 128), {"x": 2, "y": 2, "z": 2}, (("x",), ("y",), ("z",))),
    "scalar": placed((), MESH, ()),
    "slice": placed((65536, 65536), {"fsdp": 64, "tensor": 4}, (("fsdp",), ("tensor",))),
    "batch": placed((65536, 32), {"batch": 256}, (("batch",), ())),
    "hosts": placed((16, 8), MESH, (("data",), ("model",)), processes=2),
    "one": placed((64, 8), {"x": 1}, ((), ()), others=7),
    "strange": placed((8, 8), MESH, (("data",), ()), memory="pinned_host", notes=("<b>a</b>",)),
}


def tree(count: int = 3) -> TreePlacement:
    """Return the parameters of a model: replicated kernels, and an embedding that is cut."""
    kernel = 4 * 4096 * 4096
    leaves = [
        LeafPlacement(
            f"['layers'][{number}]['kernel']", (4096, 4096), "float32", kernel, kernel, 1, 8,
            "P()", everywhere=True,
        )
        for number in range(count)
    ]  # fmt: skip
    table = LeafPlacement(
        "['embedding']", (32768, 1024), "bfloat16", 2**26, 2**24, 4, 2, "P('data', None)"
    )
    step = LeafPlacement("['step']", (), "int32", 4, 4, 1, 1, where="TPU 0")
    gone = LeafPlacement(
        "['old']", (4096,), "float32", 2**14, 2**14, 1, 8, "P()", note="deleted, or donated"
    )
    return TreePlacement(
        (table, *leaves, step, gone),
        devices=8,
        bytes=count * kernel + 2**26 + 4,
        on_each=count * kernel + 2**24 + 4,
        replicated=count * kernel,
        others=1,
    )


def described(placement: ArrayPlacement | TreePlacement) -> ReplicaValuesDescription:
    """Return a description whose values are not read."""
    unread = "The values are not read, because that would copy 1 GiB from the devices."
    return ReplicaValuesDescription("jax.Array", 0, (), placement=placement, unread=unread)
