"""Which names a cell reads from the notebook, and which it leaves behind."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from ..errors import nearest
from .bindings import unbound_in
from .definite_assignment import walk

__all__ = ["Names", "analyse", "meant"]


@dataclass(frozen=True)
class Names:
    """What a cell does with names.

    Attributes:
        reads: Names that may be read before the cell assigns them, with the
            line of the first such read.
        certain: The reads that happen in every run, of names that are surely
            not assigned at that point.
        assigned: Names that may be bound when the cell ends, in the order of
            their first binding.
        definite: Names that are bound when the cell ends, in every run.
        passing: Names bound only as targets of `for`, `with` and the like.
        bindings: In how many places each name is bound.
        unbound: Names that some `del` or `except` clause unbinds.
    """

    reads: Mapping[str, int]
    certain: frozenset[str]
    assigned: tuple[str, ...]
    definite: frozenset[str]
    passing: frozenset[str]
    bindings: Mapping[str, int]
    unbound: frozenset[str]


def analyse(body: list[ast.stmt]) -> Names:
    """Analyses the statements of a cell.

    The bodies of functions and lambdas are not looked into: they run later,
    when everything is assigned that ever will be. What is asynchronous has
    been refused before.
    """
    walker = walk(body)
    end = walker.flow
    left = tuple(name for name in walker.bound if name in end.may)
    definite = frozenset() if end.dead else end.must & frozenset(left)
    return Names(
        reads=walker.reads,
        certain=frozenset(walker.certain_reads),
        assigned=left,
        definite=definite,
        passing=frozenset(walker.passing) - frozenset(walker.plain),
        bindings=walker.bound,
        unbound=frozenset(unbound_in(body)),
    )


def meant(name: str, known: Iterable[str], bound: Container[str]) -> str:
    """What to write for a name that does not exist; empty where nothing is like it.

    Args:
        name: The name.
        known: Names that do exist.
        bound: Names that a step has of its own: its batch.
    """
    near = nearest(name, known)
    fix = f"Did you mean {' or '.join(f'`{word}`' for word in near)}?" if near else ""
    if "batch" not in bound:
        return fix
    return f"A step's batch is `batch`; `--as {name},...` names its parts. {fix}".rstrip()
