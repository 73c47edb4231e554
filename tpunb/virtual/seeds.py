"""Random numbers of its own for each replica, as each core of a TPU draws its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from tpunb.virtual._tensorflow import FunctionDef, NodeDef
from tpunb.virtual.graphs import Library, called_functions

_names = itertools.count()


def reseed(node: NodeDef, replica: int, library: Library) -> list[FunctionDef]:
    """Gives a replica's copy of a node, and the functions that it calls, seeds of its own.

    A node without a seed draws from entropy, and has no need of another.

    Args:
        node: The copy; it is changed.
        replica: The replica that it is for.
        library: Finds the functions that it calls.

    Returns:
        The functions that had to be made for it.
    """
    if _is_seeded(node):
        seed2 = node.attr["seed2"]
        seed2.i = (seed2.i + 0x9E3779B1 * replica) % (2**31 - 1)
    made: list[FunctionDef] = []
    for function in _functions_of(node):
        body = library(function.name)
        if not _draws(body, library):
            continue
        own = FunctionDef()
        own.CopyFrom(body)
        own.signature.name = f"{function.name}_replica_{replica}_{next(_names)}"
        for inner in own.node_def:
            made += reseed(inner, replica, library)
        made.append(own)
        function.name = own.signature.name
    return made


def _is_seeded(node: NodeDef) -> bool:
    return "seed2" in node.attr and bool(node.attr["seed"].i or node.attr["seed2"].i)


def _draws(function: FunctionDef, library: Library) -> bool:
    """Whether a function draws random numbers from a seed."""
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
