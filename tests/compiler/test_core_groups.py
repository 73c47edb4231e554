"""The groups of cores in a program's text, and the axes of the mesh that they lie along."""

from __future__ import annotations

import itertools
import math

import pytest

from tpunb.compiler.read.core_groups import Groups, axes_of, groups_along, groups_in

MESH = (("data", 4), ("model", 2))
ALONG_MODEL = ((0, 1), (2, 3), (4, 5), (6, 7))
ALONG_DATA = ((0, 2, 4, 6), (1, 3, 5, 7))


# The texts of libtpu 0.0.52 for a v5e-8, except for the parts of an axis and the last one.
@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("channel_id=6, replica_groups={{0,1},{2,3},{4,5},{6,7}}, to_apply=%add", ALONG_MODEL),
        ("replica_groups=[2,4]<=[4,2]T(1,0), dimensions={1}", ALONG_DATA),
        ("replica_groups=[4,2]<=[8], dimensions={1}", ALONG_MODEL),
        ("replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_1'}, dimensions={1}", ALONG_MODEL),
        ("replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_0'}", ALONG_DATA),
        ("replica_groups=mesh['a'=8] {'a':(1)2}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("replica_groups=mesh['a'=8] {'a':(2)4}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("replica_groups=mesh['a'=8] {'a':(2)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("channel_id=1, replica_groups={}, to_apply=%add", ()),
        ("dimensions={0}", ()),
        ("source_target_pairs={{0,1},{1,0},{2,3},{3,2},{4,5}}", ALONG_MODEL[:3]),
        ("source_target_pairs={{0,2},{2,4},{4,6},{6,0}}", ALONG_DATA[:1]),
        ("source_target_pairs={{0,0}}", ()),
        ("replica_groups=something new", None),
    ],
)  # fmt: skip
def test_groups_are_read(text: str, groups: Groups | None) -> None:
    assert groups_in(text) == groups


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        (ALONG_MODEL, ("model",)),
        (ALONG_DATA, ("data",)),
        ((tuple(range(8)),), ("data", "model")),
        ((), ("data", "model")),
        (ALONG_MODEL[:2], ("model",)),
        (((0, 2), (1, 3), (4, 6), (5, 7)), None),  # a half of an axis
        (((0, 3), (1, 2)), None),
        (((0, 8),), None),
    ],
)
def test_axes_are_found(groups: Groups, axes: tuple[str, ...] | None) -> None:
    assert axes_of(groups, MESH) == axes
    assert axes_of(groups, ()) is None


def test_a_permutation_may_join_only_some_cores_of_an_axis() -> None:
    assert axes_of(((0, 2),), MESH) is None
    assert axes_of(((0, 2),), MESH, partly=True) == ("data",)
    assert axes_of(((0, 3),), MESH, partly=True) == ("data", "model")


@pytest.mark.parametrize("sizes", [(8,), (2, 4), (2, 2, 2), (4, 1, 2), (3, 2, 2)])
def test_every_choice_of_axes_is_found_again(sizes: tuple[int, ...]) -> None:
    mesh = [(f"axis {number}", size) for number, size in enumerate(sizes)]
    for count in range(1, len(mesh) + 1):
        for chosen in itertools.combinations(mesh, count):
            names = [name for name, _ in chosen]
            wide = tuple(name for name, size in chosen if size > 1)
            groups = groups_along(mesh, names)
            assert sum(map(len, groups)) == math.prod(sizes)
            if wide:
                assert axes_of(groups, mesh) == wide
