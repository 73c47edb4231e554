"""Per-replica copies of called functions: of loops, branches and compiled calls.

They run as they were traced, except for four things. Each replica draws random numbers of its own,
as each core of a TPU does. Operations are guarded if a replica may have no examples. Control flow
is kept from constant folding. And each node names the function that it comes from, so that an error
in it leads back to a line of Python.
"""

from __future__ import annotations

import functools
import itertools

from tpunb.tensorflow.virtual.graph.function_def import (
    CALLS,
    Library,
    add_node,
    function_attributes,
    has_node,
    make_identity,
    needed,
)
from tpunb.tensorflow.virtual.private_names import FunctionDef, NodeDef, OpSharding
from tpunb.tensorflow.virtual.replicate.replica_seeds import is_seeded, set_seed_of
from tpunb.tensorflow.virtual.replicate.workarounds import (
    guard_all,
    keep_arithmetic,
    keep_from_folding,
)

LOGICAL_CORE = "TPU_REPLICATED_CORE:"
"""The text by which `tf.tpu.core` writes a logical device into a device's name."""


def logical_core(device: str) -> int | None:
    """Return the logical device that a device's name asks for, or None."""
    if LOGICAL_CORE not in device:
        return None
    return int(device.rpartition(LOGICAL_CORE)[2])


def assigned_device(node: NodeDef) -> int | None:
    """Return the logical device to which an annotation assigns its tensor."""
    if node.op != "XlaSharding" or not node.attr["sharding"].s:
        return None
    sharding = OpSharding.FromString(node.attr["sharding"].s)
    if sharding.type != OpSharding.MAXIMAL:
        return None
    return int(sharding.tile_assignment_devices[0])


class FunctionCopies:
    """The per-replica copies of the functions that one replica function calls.

    Args:
        library: Finds the functions of the traced function, their calls inlined.
        owner: The function for all replicas, which knows the stack traces.
        prefix: The beginning of the functions' names. A counter follows, so that writing the same
            function again under the same prefix gives the same names.
        guarded: Whether a replica may have no examples.

    Attributes:
        written: The functions written so far.
    """

    def __init__(self, library: Library, owner: str, prefix: str, *, guarded: bool = False) -> None:
        self._guarded = guarded
        self.written: list[FunctionDef] = []
        self.library = library
        self._owner = owner
        self._names = (f"{prefix}_body_{number}" for number in itertools.count())
        self._known: dict[tuple[str, int, str, int], str] = {}

    def specialize(self, node: NodeDef, replica: int, path: str, *, compiled: bool = False) -> None:
        """Give a replica's copy of a node the functions and the seed that it needs.

        Args:
            node: The copy, which is changed.
            replica: The replica that it is for.
            path: The name of the traced node, prefixed with the names of the calls around it.
            compiled: Whether XLA compiles the function that it is in.
        """
        if node.op == "XlaSharding":
            make_identity(node)
        if is_seeded(node):
            set_seed_of(replica, node)
        for index, function in enumerate(function_attributes(node)):
            body = self.library(function.name)
            own = replica if has_node(body, self.library, is_seeded) else 0
            # Both branches of a common condition may have a node of this path.
            key = (path, index, function.name, own)
            if key not in self._known:
                compiled = compiled or node.op in CALLS
                self._known[key] = self._make(body, own, path, compiled=compiled)
            function.name = self._known[key]

    def sign(self, node: NodeDef, origin: str) -> None:
        """Record the function that a body's node comes from, and the node's name there."""
        node.experimental_debug_info.Clear()
        node.experimental_debug_info.original_node_names.append(origin)
        node.experimental_debug_info.original_func_names.append(self._owner)

    def new_name(self) -> str:
        """Return a name for the next function that is made for the owner."""
        return next(self._names)

    def _make(self, body: FunctionDef, replica: int, path: str, *, compiled: bool) -> str:
        copy = FunctionDef()
        copy.CopyFrom(body)
        copy.signature.name = self.new_name()
        run_nodes = set() if compiled else needed(body)
        add, nodes = functools.partial(add_node, copy), {node.name: node for node in body.node_def}
        for node in list(copy.node_def):
            origin = f"{path}/{node.name}"
            if logical_core(node.device) is not None:
                # The body runs on the device of the replica's first core.
                node.device = ""
            self.sign(node, origin)
            self.specialize(node, replica, origin, compiled=compiled)
            if node.name in run_nodes:
                keep_arithmetic(add, nodes[node.name], node, nodes)
                keep_from_folding(add, node, in_body=True)
        if self._guarded:
            guard_all(copy)
        self.written.append(copy)
        return str(copy.signature.name)
