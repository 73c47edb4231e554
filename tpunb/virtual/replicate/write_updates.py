"""Updates of variables that are the same on every core, and copies of variables."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tpunb.virtual._tensorflow import AttrValue, NodeDef
from tpunb.virtual.graph.effects import ASSIGNMENTS, READS
from tpunb.virtual.graph.function_def import Reference, data_inputs
from tpunb.virtual.graph.nodes import argument_name, instance
from tpunb.virtual.replicate.builder import Builder
from tpunb.virtual.replicate.write_copies import write_copy


def write_update(builder: Builder, node: NodeDef) -> None:
    """Writes an update that is the same on every core: computed once and broadcast."""
    update = _Update(builder, node)
    many = any(len(builder.handles.holders(handle)) > 1 for handle in update.handles)
    if many and node.op in ASSIGNMENTS:
        update.broadcast([update.assigned()])
    else:
        update.write_on_first()
        if many:
            update.broadcast(update.updated())
    update.end()


class _Update:
    """An update while it is written.

    Attributes:
        handles: Of the variables that it changes.
    """

    def __init__(self, builder: Builder, node: NodeDef) -> None:
        self._builder = builder
        self._node = node
        self._name = instance(node.name, 0)
        self._kind = node.attr["dtype"] if "dtype" in node.attr else node.attr["T"]
        self.handles = [source for source in data_inputs(node) if builder.is_resource(source)]
        # What changed the copy of a handle, by its place and by the replica.
        self._written: dict[tuple[int, int], str] = {}

    def write_on_first(self) -> None:
        """Writes the node as it was traced, for the first replica's copies."""
        copy = write_copy(self._builder, self._node, 0)
        known = set(copy.input)
        waits = itertools.chain.from_iterable(self._waits(handle, 0) for handle in self.handles)
        copy.input.extend(wait for wait in dict.fromkeys(waits) if wait not in known)
        self._written.update(((place, 0), self._name) for place in range(len(self.handles)))

    def assigned(self) -> str:
        """The new value of a variable, computed on the first core."""
        builder, node = self._builder, self._node
        handle, value = data_inputs(node)
        if node.op == "AssignVariableOp":
            return builder.tensor(value, 0)
        old = self._read("old", handle, builder.waits(node, 0))
        op, name = "AddV2" if node.op == "AssignAddVariableOp" else "Sub", f"{self._name}/new"
        builder.add(op, name, builder.cores[0][0], [old, builder.tensor(value, 0)], T=self._kind)
        return f"{name}:z:0"

    def updated(self) -> list[str]:
        """The values of the first replica's copies, once they are changed."""
        waits = [f"^{self._name}"]
        return [
            self._read(f"updated_{place}", handle, waits)
            for place, handle in enumerate(self.handles)
        ]

    def broadcast(self, values: Sequence[str]) -> None:
        """Assigns the new values to all copies that do not have them yet."""
        for place, (handle, value) in enumerate(zip(self.handles, values, strict=True)):
            for replica in self._builder.handles.holders(handle):
                if (place, replica) not in self._written:
                    self._written[place, replica] = self._assign(place, handle, value, replica)

    def end(self) -> None:
        """Has each replica wait for what changes its copies."""
        builder = self._builder
        for replica in builder.replicas:
            holders = [builder.handles.holder(handle, replica) for handle in self.handles]
            written = [self._written[place] for place in enumerate(holders)]
            builder.controls[self._node.name][replica] = list(dict.fromkeys(written))

    def _assign(self, place: int, handle: Reference, value: str, replica: int) -> str:
        builder = self._builder
        return builder.add(
            "AssignVariableOp",
            instance(self._node.name, replica) + (f"/{place}" if place else ""),
            builder.device_of(handle, replica),
            [
                builder.tensor(handle, replica),
                builder.broadcast(value, self._kind, replica),
                *self._waits(handle, replica),
            ],
            dtype=self._kind,
        )

    def _waits(self, handle: Reference, replica: int) -> list[str]:
        """What has to be done before a copy changes, by all replicas that have it."""
        sharing = self._builder.handles.sharing(handle, replica)
        return self._builder.all_waits(self._node, sharing)

    def _read(self, name: str, handle: Reference, waits: Sequence[str]) -> str:
        builder, name = self._builder, f"{self._name}/{name}"
        inputs = [builder.tensor(handle, 0), *waits]
        builder.add("ReadVariableOp", name, builder.device_of(handle, 0), inputs, dtype=self._kind)
        return f"{name}:value:0"


def write_last_values(builder: Builder, argument: str, dtype: int) -> list[str]:
    """Copies a variable's last value to the other logical devices that hold it.

    Only a TPU needs the copies: every read here is from the first device.

    Args:
        builder: Has written the function's nodes.
        argument: The variable's handle.
        dtype: The type of its value.

    Returns:
        The names of the nodes that copy.
    """
    changes = [
        node.name
        for node in builder.analysis.order
        if node.op not in READS and any(source.source == argument for source in data_inputs(node))
    ]
    if not changes:
        return []
    kind = AttrValue(type=dtype)
    added = []
    for replica in builder.replicas:
        waits = [f"^{name}" for change in changes for name in builder.ends(change, replica)]
        name, logical = f"{argument}/replica_{replica}/last", builder.cores[replica]
        inputs = [argument_name(argument, replica), *dict.fromkeys(waits)]
        builder.add("ReadVariableOp", name, logical[0], inputs, dtype=kind)
        for core in builder.further_cores():
            inputs = [argument_name(argument, replica, core), f"{name}:value:0"]
            copy = f"{argument}/replica_{replica}/copy_{core}"
            added.append(builder.add("AssignVariableOp", copy, logical[core], inputs, dtype=kind))
    return added
