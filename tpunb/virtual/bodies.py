"""Functions that a replica calls for itself: its loops, its branches, its compiled calls.

They run as they were traced, except for three things. Each replica draws random
numbers of its own, as each core of a TPU does. And each node says which function
it comes from, so that an error in it leads back to a line of Python.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from tpunb.virtual._tensorflow import FunctionDef, NodeDef
from tpunb.virtual.graphs import Library, called_functions
from tpunb.virtual.nodes import make_identity
from tpunb.virtual.sharding import logical_core

_names = itertools.count()


class Bodies:
    """Makes the functions that the replicas of one function call for themselves.

    Args:
        library: Finds the functions of the traced function.
        owner: The function for all replicas, which knows the stack traces.

    Attributes:
        made: The functions made so far.
    """

    def __init__(self, library: Library, owner: str) -> None:
        self.made: list[FunctionDef] = []
        self._library = library
        self._owner = owner
        self._known: dict[tuple[str, int, int], str] = {}

    def give(self, node: NodeDef, replica: int, path: str) -> None:
        """Gives a replica's copy of a node the functions and the seed that it needs.

        Args:
            node: The copy; it is changed.
            replica: The replica that it is for.
            path: The name of the node that was traced, with those around it.
        """
        if node.op == "XlaSharding":
            make_identity(node)
        if replica and _is_seeded(node):
            seed2 = node.attr["seed2"]
            seed2.i = (seed2.i + 0x9E3779B1 * replica) % (2**31 - 1)
        for place, function in enumerate(_functions_of(node)):
            body = self._library(function.name)
            own = replica if _draws(body, self._library) else 0
            key = (path, place, own)
            if key not in self._known:
                self._known[key] = self._make(body, own, path)
            function.name = self._known[key]

    def sign(self, node: NodeDef, origin: str) -> None:
        """Says which function a node in a body comes from, and its name there."""
        node.experimental_debug_info.Clear()
        node.experimental_debug_info.original_node_names.append(origin)
        node.experimental_debug_info.original_func_names.append(self._owner)

    def _make(self, body: FunctionDef, replica: int, path: str) -> str:
        made = FunctionDef()
        made.CopyFrom(body)
        made.signature.name = f"{body.signature.name}_in_{self._owner}_{next(_names)}"
        for node in made.node_def:
            origin = f"{path}/{node.name}"
            if logical_core(node.device) is not None:
                # The body runs where the replica's first core is.
                node.device = ""
            self.sign(node, origin)
            self.give(node, replica, origin)
        self.made.append(made)
        return str(made.signature.name)


def _is_seeded(node: NodeDef) -> bool:
    """Whether a node draws from a seed; without one it draws from entropy."""
    return "seed2" in node.attr and bool(node.attr["seed"].i or node.attr["seed2"].i)


def _draws(function: FunctionDef, library: Library) -> bool:
    return any(
        _is_seeded(node) or any(_draws(library(name), library) for name in called_functions(node))
        for node in function.node_def
    )


def _functions_of(node: NodeDef) -> Iterator[Any]:
    for key in sorted(node.attr):
        value = node.attr[key]
        if value.WhichOneof("value") == "func":
            yield value.func
        yield from value.list.func
