"""Values that cores send to each other, on the links that a TPU has."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tpunb.errors import TpunbError
from tpunb.tpu.links import ring_order, route
from tpunb.tpu.types import Accelerator

_MOST_CORES = 64


@dataclass(frozen=True, slots=True)
class Sends:
    """Sends between cores.

    Attributes:
        acc: The TPU type.
        pairs: Each core that sends, with the core that receives.
        routes: For each pair, the cores on a shortest way along links, with both ends.
        is_ring: Whether the pairs are a ring of all cores.
    """

    acc: Accelerator
    pairs: tuple[tuple[int, int], ...]
    routes: tuple[tuple[int, ...], ...]
    is_ring: bool

    @property
    def detours(self) -> tuple[tuple[int, ...], ...]:
        """The routes that pass other cores, because there is no link between the two."""
        return tuple(way for way in self.routes if len(way) > 2)


def sends_on(acc: Accelerator, pairs: Iterable[Any] | None = None) -> Sends:
    """Describe sends on a TPU type.

    Args:
        acc: The TPU type.
        pairs: Pairs of a core that sends and a core that receives; by default a ring of all cores
            along the links.

    Raises:
        TpunbError: The TPU is too large for a picture, has no ring, or lacks a core.
    """
    if acc.mesh[2] > 1 or acc.num_devices > _MOST_CORES:
        raise TpunbError(
            f"The picture shows flat meshes of at most {_MOST_CORES} cores, and {acc.name} has "
            f"{acc.num_devices} on a mesh of {'×'.join(map(str, acc.mesh))}.",
            fix="Choose a type such as v5e-16.",
        )
    if pairs is None:
        order = ring_order(acc)
        pairs = zip(order, [*order[1:], order[0]], strict=True)
    known = tuple(_pair(acc, pair) for pair in pairs)
    routes = tuple(tuple(route(acc, *pair)) for pair in known)
    return Sends(acc, known, routes, _is_ring(known, acc.num_devices))


def _pair(acc: Accelerator, pair: Any) -> tuple[int, int]:
    try:
        source, target = map(operator.index, pair)
    except (TypeError, ValueError):
        raise TpunbError(
            f"{pair!r} is not a core that sends and a core that receives.",
            fix="Such as pairs=[(0, 1), (1, 0)].",
        ) from None
    for core in (source, target):
        if not 0 <= core < acc.num_devices:
            raise TpunbError(
                f"{acc.name} has no core {core}.", fix=f"Choose 0 to {acc.num_devices - 1}."
            )
    return source, target


def _is_ring(pairs: tuple[tuple[int, int], ...], cores: int) -> bool:
    following = dict(pairs)
    core, seen = 0, set[int]()
    while core in following and core not in seen:
        seen.add(core)
        core = following[core]
    return core == 0 and len(seen) == cores == len(pairs)
