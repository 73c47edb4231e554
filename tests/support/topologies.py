"""Topology descriptions that the tests of displays share."""

from __future__ import annotations

from dataclasses import replace

from tpunb.display.describe.topology_description import (
    UNASSIGNED,
    TopologyDescription,
    describe_accelerator,
)
from tpunb.tpu.types import accelerator


def described(name: str) -> TopologyDescription:
    """Describe a TPU type."""
    return describe_accelerator(accelerator(name))


def assigned(name: str, parts: int, idle: int = 0) -> TopologyDescription:
    """Describe a TPU type with `parts` cores for each replica; the last `idle` cores have none."""
    topology = described(name)
    used = range(topology.num_cores - idle)
    unassigned = (UNASSIGNED,) * idle
    return replace(
        topology,
        replicas=(*(core // parts for core in used), *unassigned),
        logical_devices=(*(core % parts for core in used), *unassigned),
    )
