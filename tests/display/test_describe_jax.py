"""Descriptions of JAX's arrays: what each device holds, in a process with JAX."""

from __future__ import annotations

from typing import Any

import pytest
from support.jax_process import said_with_jax

PROGRAM = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
import dataclasses, sys
import tpunb
from tpunb.display.describe.replicas import describe_chosen_replicas, describe_replica_values
assert "jax" not in sys.modules
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    step: object
    params: object


def described(value):
    found = describe_replica_values(value)
    return [found.type_name, found.num_replicas, [
        [one.path, one.distributed, one.all_equal, one.values[0].dtype, one.values[0].shape]
        for one in found.sections
    ]]


mesh = Mesh(np.array(jax.devices()[::-1]).reshape(4, 2), ("data", "model"))
numbers = jnp.arange(64.0).reshape(8, 8)
cut = jax.device_put(numbers, NamedSharding(mesh, P("data", "model")))
copied = jax.device_put(jnp.ones(3, jnp.bfloat16), NamedSharding(mesh, P()))
deleted = jnp.ones(3)
deleted.delete()
(section,) = describe_replica_values(cut).sections
said = {
    "cut": described(cut),
    "least": [one.statistics.minimum for one in section.values],
    "chosen": describe_chosen_replicas(cut, [slice(7, 8)]).sections[0].values[0].statistics.minimum,
    "copied": described(copied),
    "tree": described(State(jnp.int32(3), {"w": cut, "keys": [jax.random.key(0), None]})),
    "deleted": [described(deleted), describe_replica_values(deleted).sections[0].values[0].texts],
    "text": str(tpunb.show(cut)),
    "html": tpunb.show(cut).static_bundle()["text/html"],
    "spec": described(jax.ShapeDtypeStruct((3,), "float32")),
}
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Describe arrays in a process with JAX, and return the descriptions."""
    return said_with_jax(PROGRAM, tmp_path_factory.mktemp("jax"))


def test_a_sharded_array_is_shown_by_device(said: dict[str, Any]) -> None:
    name, devices, sections = said["cut"]
    assert name == "jax.Array [8, 8] cut by ('data', 'model')"
    assert devices == 8
    assert sections == [["", True, False, "float32", [2, 4]]]
    # In the order of the devices' numbers; the mesh has the opposite order.
    assert said["least"] == [52, 48, 36, 32, 20, 16, 4, 0]
    assert said["chosen"] == 0
    assert "cut by" in said["text"]
    assert "cut by" in said["html"]


def test_copies_are_equal(said: dict[str, Any]) -> None:
    assert said["copied"] == ["jax.Array", 8, [["", True, True, "bfloat16", [3]]]]


def test_trees_are_flattened(said: dict[str, Any]) -> None:
    name, devices, sections = said["tree"]
    assert (name, devices) == ("State", 8)
    assert [section[0] for section in sections] == [
        ".step",
        ".params['w']",
        ".params['keys'][0]",
        ".params['keys'][1]",
    ]
    assert [section[1] for section in sections] == [False, True, False, False]


def test_arrays_without_values(said: dict[str, Any]) -> None:
    ((name, _, sections), texts) = said["deleted"]
    assert name == "jax.Array"
    assert sections[0][3:] == ["float32", [3]]
    assert texts == ["cannot be read: it was deleted, or donated to a function"]
    assert said["spec"][0] == "ShapeDtypeStruct"
