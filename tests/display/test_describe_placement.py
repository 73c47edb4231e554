"""Descriptions of the places of JAX arrays, in a process with JAX."""

from __future__ import annotations

from typing import Any

import pytest
from support.jax_process import said_with_jax

PROGRAM = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
import itertools
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec as P
from tpunb.display.describe import jax_values
from tpunb.display.describe.placement import placement_of
from tpunb.display.describe.replicas import describe_replica_values
from tpunb.display.draw.placement.html import placement_html
from tpunb.display.draw.placement.text import placement_text

devices = np.array(jax.devices())
mesh = Mesh(devices.reshape(4, 2), ("data", "model"))
turned = Mesh(devices[::-1].reshape(2, 2, 2), ("x", "y", "z"))
half = Mesh(devices[:4], ("x",))
sums = Mesh(devices, ("data",))


def put(array, *spec, mesh=mesh, **named):
    return jax.device_put(array, NamedSharding(mesh, P(*spec), **named))


def planned(shape, *spec):
    abstract = AbstractMesh((4, 2), ("data", "model"))
    return jax.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(abstract, P(*spec)))


ones = jnp.ones
deleted = put(ones((64, 8)), "data")
deleted.delete()
arrays = {
    "matrix": put(ones((64, 128)), "data", "model"),
    "copies": put(ones((64, 128)), None, "model"),
    "joined": put(ones(64), ("model", "data")),
    "turned": put(ones((8, 4, 6)), "x", "y", "z", mesh=turned),
    "half": put(ones((8, 4)), "x", mesh=half),
    "replicated": put(ones((3,), jnp.bfloat16)),
    "alone": ones((3, 4)),
    "scalar": put(jnp.float32(1)),
    "empty": put(ones((0, 8))),
    "keys": put(jax.random.split(jax.random.key(0), 8), "data"),
    "host": put(ones((8, 8)), "data", memory_kind="pinned_host"),
    "mapped": jax.pmap(lambda x: 2 * x)(ones((8, 3))),
    "deleted": deleted,
    "planned": planned((64, 128), "data"),
    "uneven": planned((10, 8), "data"),
    "sums": jax.ShapeDtypeStruct((8, 8), "float32", sharding=NamedSharding(
        jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Explicit,) * 2),
        P("data", None, unreduced={"model"}))),
    "ref": jax.new_ref(put(ones((8, 4)), "data")),
}


def said_of(array):
    found = placement_of(array)
    assert placement_text(found) and placement_html(found)
    return {
        "mesh": found.mesh, "spec": found.spec, "parts": len(found.parts),
        "copies": found.copies, "others": found.others, "memory": found.memory,
        "notes": found.notes, "devices": found.devices, "bytes": found.bytes,
        "first": [found.parts[0].ranges, found.parts[0].bytes,
                  [(h.name, h.position, h.process) for h in found.parts[0].holders]],
    }


def is_as_jax_says(array):
    found = {h.name: part.ranges for part in placement_of(array).parts for h in part.holders}
    return found == {
        f"CPU {shard.device.id}": tuple(
            index.indices(size)[:2] for index, size in zip(shard.index, array.shape)
        )
        for shard in array.addressable_shards
    }


def places(array):
    return [(p.ranges, p.bytes, [h.position for h in p.holders]) for p in placement_of(array).parts]


ways = (None, "data", "model", ("data", "model"), ("model", "data"))
specs = [pair for pair in itertools.product(ways, ways)
         if len(set(names := [n for way in pair if way for n in ((way,) if isinstance(way, str)
                else way)])) == len(names)]
tree = {
    "table": arrays["matrix"],
    "biases": [arrays["replicated"], arrays["replicated"]],
    "alone": arrays["alone"],
    "old": deleted,
    "rate": 0.1,
}
found = placement_of(tree)


def inside(x):
    # A tracer has no devices yet.
    traced.append(placement_of(x) is None)
    return x


traced = []
jax.jit(inside)(ones(3))
jax_values.MOST_COPIED = 8
description = describe_replica_values(arrays["matrix"])
said = {
    "arrays": {name: said_of(array) for name, array in arrays.items()},
    "right": {name: is_as_jax_says(array) for name, array in arrays.items()
              if name not in ("deleted", "planned", "uneven", "sums", "ref")},
    "plans": [places(put(ones((16, 32)), *spec)) == places(planned((16, 32), *spec))
              for spec in specs],
    "tree": [found.devices, found.bytes, found.on_each, found.replicated, found.idle, found.others],
    "leaves": [[leaf.path, leaf.spec, leaf.parts, leaf.copies, leaf.where, leaf.everywhere,
                leaf.note] for leaf in found.leaves],
    "traced": traced,
    "unsorted": [leaf.path for leaf in placement_of({"a": arrays["matrix"], 3: [ones(3)]}).leaves],
    "spec_without_sharding": placement_of(jax.ShapeDtypeStruct((3,), "float32")),
    "on_the_host": description.unread,
    "sections": len(description.sections),
    "text": str(placement_text(found)),
}
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Describe arrays in a process with JAX, and return the descriptions."""
    return said_with_jax(PROGRAM, tmp_path_factory.mktemp("jax"))


def test_parts_are_where_jax_says(said: dict[str, Any]) -> None:
    assert said["right"] == dict.fromkeys(said["right"], True)
    assert len(said["right"]) == 12


def test_a_matrix_is_cut_over_the_mesh(said: dict[str, Any]) -> None:
    matrix = said["arrays"]["matrix"]
    assert matrix["mesh"] == [["data", 4], ["model", 2]]
    assert matrix["spec"] == [["data"], ["model"]]
    assert (matrix["parts"], matrix["copies"], matrix["devices"]) == (8, 1, 8)
    assert matrix["first"] == [[[0, 16], [0, 64]], 4096, [["CPU 0", [0, 0], None]]]


def test_coordinates_follow_the_mesh_and_not_the_devices(said: dict[str, Any]) -> None:
    assert said["arrays"]["turned"]["first"][2] == [["CPU 7", [0, 0, 0], None]]


def test_copies_are_known(said: dict[str, Any]) -> None:
    copies = said["arrays"]["copies"]
    assert (copies["parts"], copies["copies"]) == (2, 4)
    assert [name for name, _, _ in copies["first"][2]] == ["CPU 0", "CPU 2", "CPU 4", "CPU 6"]
    assert said["arrays"]["replicated"]["copies"] == 8
    assert said["arrays"]["scalar"]["copies"] == 8


def test_devices_without_a_part_are_counted(said: dict[str, Any]) -> None:
    assert said["arrays"]["half"]["others"] == 4
    assert said["arrays"]["alone"]["others"] == 7


def test_unusual_arrays(said: dict[str, Any]) -> None:
    arrays = said["arrays"]
    assert arrays["empty"]["bytes"] == 0
    assert (arrays["keys"]["bytes"], arrays["keys"]["parts"]) == (64, 4)
    assert arrays["host"]["memory"] == "pinned_host"
    assert arrays["mapped"]["parts"] == 8
    assert arrays["deleted"]["notes"] == [
        "It was deleted, or donated to a function. This shows where it was."
    ]
    assert arrays["planned"]["notes"] == ["This is the plan for an array that does not exist yet."]
    assert arrays["planned"]["first"][2] == [["core 0", [0, 0], None], ["core 1", [0, 1], None]]
    assert arrays["uneven"]["notes"][1] == (
        "JAX will refuse it: axis 0 of 10 cannot be cut into 4 equal parts."
    )
    assert arrays["sums"]["notes"][1] == "Its parts are partial sums, still to be added over model."
    assert arrays["sums"]["copies"] == 2
    assert (arrays["ref"]["parts"], arrays["ref"]["notes"]) == (4, [])
    assert said["unsorted"] == ["['a']", "[3][0]"]
    assert said["traced"] == [True]
    assert said["spec_without_sharding"] is None


def test_a_plan_is_cut_as_the_array_will_be(said: dict[str, Any]) -> None:
    assert len(said["plans"]) > 10
    assert all(said["plans"])


def test_a_tree_counts_each_array_once(said: dict[str, Any]) -> None:
    matrix, bias, alone = 64 * 128 * 4, 6, 48
    assert said["tree"] == [8, matrix + bias + alone, matrix // 8 + bias + alone, bias, 0, 1]
    assert said["leaves"] == [
        ["['alone']", "", 1, 1, "CPU 0", False, ""],
        ["['biases'][0]", "P()", 1, 8, "", True, ""],
        ["['biases'][1]", "P()", 1, 8, "", True, "the same array as ['biases'][0]"],
        ["['old']", "P('data')", 4, 2, "", False, "deleted, or donated"],
        ["['table']", "P('data', 'model')", 8, 1, "", False, ""],
    ]


def test_values_on_the_host_are_always_read(said: dict[str, Any]) -> None:
    """The devices are CPUs: no number of bytes has to be copied."""
    assert said["on_the_host"] == ""
    assert said["sections"] == 1
