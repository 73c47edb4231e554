"""The links between cores, and rings of cores that use only links."""

from __future__ import annotations

import itertools

import pytest

from tpunb.errors import TpunbError
from tpunb.tpu.links import neighbours, ring_order, route
from tpunb.tpu.types import accelerator, accelerator_types

RINGS = [
    name
    for name in accelerator_types()
    if 2 <= accelerator(name).num_devices <= 256 and accelerator(name).num_chips > 1
]


def are_beside(name: str, one: int, other: int) -> bool:
    """Return whether two cores are in a chip, or in chips that differ by one step on one axis."""
    acc = accelerator(name)
    places = [place for host in acc.device_coordinates() for place in host]
    steps = []
    for axis in range(3):
        away = abs(places[one][axis] - places[other][axis])
        steps.append(min(away, acc.mesh[axis] - away) if acc.wraps[axis] else away)
    return sum(steps) <= 1


@pytest.mark.parametrize("name", RINGS)
def test_each_core_of_a_ring_is_beside_the_next(name: str) -> None:
    order = ring_order(accelerator(name))
    assert sorted(order) == list(range(accelerator(name).num_devices))
    following = [*order[1:], order[0]]
    assert all(are_beside(name, *pair) for pair in zip(order, following, strict=True))


def test_a_ring_leaves_a_chip_of_two_cores_on_the_side_of_the_next() -> None:
    assert ring_order(accelerator("v3-8")) == [0, 1, 2, 3, 7, 6, 5, 4]
    assert ring_order(accelerator("v5e-8")) == [0, 1, 3, 5, 7, 6, 4, 2]


@pytest.mark.parametrize("cores", [3, 9])
def test_an_odd_mesh_has_no_ring(cores: int) -> None:
    with pytest.raises(TpunbError, match="form no ring"):
        ring_order(accelerator(cores))


@pytest.mark.parametrize("name", ["v3-8", "v5e-16", "v4-32", "tpu7x-8"])
def test_the_neighbours_are_the_cores_beside(name: str) -> None:
    cores = range(accelerator(name).num_devices)
    expected = [
        tuple(other for other in cores if other != core and are_beside(name, core, other))
        for core in cores
    ]
    assert neighbours(accelerator(name)) == expected


def test_a_route_passes_neighbours() -> None:
    way = route(accelerator("v5e-8"), 7, 0)
    assert (way[0], way[-1], len(way)) == (7, 0, 5)
    links = neighbours(accelerator("v5e-8"))
    assert all(end in links[begin] for begin, end in itertools.pairwise(way))
    assert route(accelerator("v5e-8"), 2, 2) == [2]
