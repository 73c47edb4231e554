"""Described topologies that tests of the displays share."""

from __future__ import annotations

from dataclasses import replace

from tpunb.display.describe.topology_description import (
    UNASSIGNED,
    TopologyDescription,
    describe_accelerator,
)
from tpunb.tpu.types import accelerator


def described(name: str) -> TopologyDescription:
    """A TPU type."""
    return describe_accelerator(accelerator(name))


def assigned(name: str, parts: int, idle: int = 0) -> TopologyDescription:
    """A TPU type with replicas of so many consecutive cores each; so many last ones have none."""
    topology = described(name)
    used = range(topology.num_cores - idle)
    unassigned = (UNASSIGNED,) * idle
    return replace(
        topology,
        replicas=(*(core // parts for core in used), *unassigned),
        logical_devices=(*(core % parts for core in used), *unassigned),
    )
