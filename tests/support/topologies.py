"""Described topologies that tests of the displays share."""

from __future__ import annotations

from dataclasses import replace

from tpunb.display.describe.topology_description import TopologyDescription, describe_accelerator
from tpunb.tpu.types import accelerator


def described(name: str) -> TopologyDescription:
    """A TPU type."""
    return describe_accelerator(accelerator(name))


def assigned(name: str, parts: int) -> TopologyDescription:
    """A TPU type with replicas of so many consecutive cores each."""
    topology = described(name)
    cores = range(topology.num_cores)
    return replace(
        topology,
        replicas=tuple(core // parts for core in cores),
        logical_devices=tuple(core % parts for core in cores),
    )
