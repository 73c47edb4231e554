"""The leaves of nested tuples, lists and mappings, with what each replica holds of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tpunb.display.describe import _tensors
from tpunb.display.describe.values import guarded, short_repr

__all__ = ["MAX_SECTIONS", "MAX_VALUES", "Leaf", "leaves_of"]

MAX_SECTIONS = 64
"""Leaves of a nested structure that are described."""

MAX_VALUES = 8192
"""Values of all leaves and replicas together that are described, in whole leaves."""

_MAX_DEPTH = 16


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf of a structure as it was found, before it is described.

    Attributes:
        path: Where it is.
        type_name: The class that holds the replicas' values.
        parts: What each replica holds.
        distributed: Whether there is a part per replica.
    """

    path: str
    type_name: str
    parts: tuple[Any, ...]
    distributed: bool


def leaves_of(value: Any) -> tuple[list[Leaf], int]:
    """The leaves that are described, and how many more there are, at least."""
    found: list[tuple[str, Any]] = []
    more = _flatten("", value, found, depth=0)
    leaves: list[Leaf] = []
    for path, item in found:
        if not _capacity(leaves, 1):
            more += 1
            continue
        parts, left_out = _leaves(path, item)
        capacity = _capacity(leaves, len(parts[0].parts))
        more += left_out + max(0, len(parts) - capacity)
        leaves += parts[:capacity]
    return leaves, more


def _capacity(leaves: Sequence[Leaf], replicas: int) -> int:
    """How many more leaves of so many replicas may be described; at least one in all."""
    values = sum(len(leaf.parts) for leaf in leaves)
    capacity = min(MAX_SECTIONS - len(leaves), (MAX_VALUES - values) // max(1, replicas))
    return max(capacity, 0 if leaves else 1)


def _leaves(path: str, item: Any) -> tuple[list[Leaf], int]:
    """The leaves of an item, which may hold a structure on each replica, and how many more."""
    name = type(item).__name__
    components = guarded(lambda: _tensors.distributed_components(item), None)
    if not components:
        return [Leaf(path, name, (item,), distributed=False)], 0
    structures: list[list[tuple[str, Any]]] = []
    more = 0
    for component in components:
        inner: list[tuple[str, Any]] = []
        more += _flatten(path, component, inner, depth=0, counting=not structures)
        structures.append(inner)
    paths = [[where for where, _ in inner] for inner in structures]
    if not paths or any(other != paths[0] for other in paths):
        return [Leaf(path, name, components, distributed=True)], 0
    return [
        Leaf(where, name, tuple(inner[number][1] for inner in structures), distributed=True)
        for number, where in enumerate(paths[0])
    ], more


def _flatten(
    path: str, value: Any, leaves: list[tuple[str, Any]], depth: int, *, counting: bool = True
) -> int:
    """Appends the leaves of nested tuples, lists and mappings; counts how many more there are."""
    items = guarded(lambda: _items(value), None) if depth < _MAX_DEPTH else None
    if items is None:
        leaves.append((path, value))
        return 0
    more = 0
    for key, item in items:
        if len(leaves) < MAX_SECTIONS:
            more += _flatten(path + key(), item, leaves, depth + 1, counting=counting)
        elif counting:
            more += _count(item)
        else:
            break
    return more


def _count(item: Any) -> int:
    """How many leaves an item has, at least."""
    is_nest = isinstance(item, tuple | list | Mapping) and len(item) > 0
    return len(item) if is_nest and not _is_plain(list(itertools.islice(item, 1))) else 1


def _items(value: Any) -> Iterable[tuple[Callable[[], str], Any]] | None:
    """Path steps, computed on demand, and items of a structure; `None` for a leaf."""
    if isinstance(value, Mapping) and value:
        return ((partial(_step, key), item) for key, item in value.items())
    # Composite tensors of TensorFlow's are named tuples: SparseTensorValue and the like.
    if not isinstance(value, tuple | list) or not value or _is_plain(value):
        return None
    names = getattr(value, "_fields", None)
    if names:
        return [(f".{name}".__str__, item) for name, item in zip(names, value, strict=True)]
    return ((partial("[{}]".format, number), item) for number, item in enumerate(value))


def _step(key: Any) -> str:
    return f"[{short_repr(key)}]"


def _is_plain(value: Sequence[Any]) -> bool:
    """Whether a sequence holds only Python's numbers and strings: one leaf."""
    return all(isinstance(item, int | float | complex | str | bytes) for item in value)
