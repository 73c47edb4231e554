"""Descriptions of topologies, from the catalogue and from TensorFlow's classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from counterparts.children import output_of

from tpunb.display.describe.topology_description import (
    UNASSIGNED,
    describe_accelerator,
    describe_device_assignment,
    describe_topology,
)
from tpunb.tpu.types import accelerator, accelerator_types


@dataclass
class Topology:
    """The attributes of TensorFlow's class of this name."""

    mesh_shape: Any
    device_coordinates: Any


@dataclass
class DeviceAssignment:
    """The attributes of TensorFlow's class of this name."""

    topology: Topology
    core_assignment: Any


def topology_of(name: str) -> Topology:
    acc = accelerator(name)
    return Topology(np.array(acc.topology_mesh_shape), np.array(acc.device_coordinates()))


@pytest.mark.parametrize("name", accelerator_types())
def test_totals(name: str) -> None:
    acc = accelerator(name)
    topology = describe_accelerator(acc)
    assert topology.num_chips == acc.num_chips
    assert topology.num_cores == acc.num_devices
    assert topology.num_hosts == acc.num_hosts
    assert topology.num_replicas == topology.num_logical_devices == 0
    assert topology.ordinals[: acc.devices_per_host] == tuple(range(acc.devices_per_host))


def test_tensorflows_topology_matches_the_catalogue() -> None:
    assert describe_topology(topology_of("v4-64"), "v4-64") == describe_accelerator(
        accelerator("v4-64")
    )


@pytest.mark.parametrize("name", [None, "my-tpu", "v5e-8"])
def test_a_name_that_does_not_match_is_ignored(name: str | None) -> None:
    topology = describe_topology(topology_of("v3-8"), name)
    assert topology.hbm_bytes == 0
    assert topology.wraps == (False, False, False)
    assert topology.name == (name or "")


def test_missing_devices_are_left_out() -> None:
    coordinates = [[[0, 0, 0, 0], [-1, -1, -1, -1]]]
    topology = describe_topology(Topology([2, 1, 1, 1], coordinates))
    assert topology.coordinates == ((0, 0, 0, 0),)


def test_a_device_assignment() -> None:
    cores = [[[0, 0, 0, 0], [0, 0, 0, 1]], [[1, 0, 0, 0], [1, 0, 0, 1]]]
    topology = describe_device_assignment(
        DeviceAssignment(topology_of("v3-8"), np.array(cores)), "v3-8"
    )
    assert topology.replicas == (0, 0, 1, 1) + (UNASSIGNED,) * 4
    assert topology.logical_devices == (0, 1, 0, 1) + (UNASSIGNED,) * 4
    assert (topology.num_replicas, topology.num_logical_devices) == (2, 2)
    assert topology.hbm_bytes == 16 * 2**30


def test_descriptions_are_values() -> None:
    first, second = (describe_accelerator(accelerator("v3-8")) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)


def test_the_largest_topology() -> None:
    topology = describe_accelerator(accelerator("v5p-17920"))
    assert (topology.num_chips, topology.num_cores) == (8960, 8960)
    assert len(set(topology.coordinates)) == 8960


def test_nothing_imports_tensorflow_or_matplotlib() -> None:
    code = (
        "import sys, tpunb.display.describe, tpunb.display.draw;"
        "assert not {'tensorflow', 'matplotlib'} & set(sys.modules)"
    )
    assert output_of(code) == ""


def test_tensorflows_own_classes(tf: Any) -> None:
    acc = accelerator("v3-8")
    topology = tf.tpu.experimental.Topology(
        mesh_shape=acc.topology_mesh_shape, device_coordinates=acc.device_coordinates()
    )
    assert describe_topology(topology, "v3-8") == describe_accelerator(acc)
    assignment = tf.tpu.experimental.DeviceAssignment.build(
        topology, computation_shape=[1, 1, 1, 2], num_replicas=4
    )
    described = describe_device_assignment(assignment, "v3-8")
    assert (described.num_replicas, described.num_logical_devices) == (4, 2)
    assert sorted(described.replicas) == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("name", accelerator_types()[::5])
def test_tensorflow_accepts_the_catalogues_coordinates(tf: Any, name: str) -> None:
    acc = accelerator(name)
    topology = tf.tpu.experimental.Topology(
        mesh_shape=acc.topology_mesh_shape, device_coordinates=acc.device_coordinates()
    )
    assert topology.num_tasks == acc.num_hosts
    assert topology.num_tpus_per_task == acc.devices_per_host
