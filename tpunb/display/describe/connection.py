"""What a connection to a TPU consists of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tpunb.display.describe.topology import TopologyDescription

__all__ = ["ConnectionDescription"]


@dataclass(frozen=True, slots=True)
class ConnectionDescription:
    """A connection, without anything that differs from run to run.

    There are no durations, ids or addresses, so that a saved notebook can be
    compared with a new run.

    Attributes:
        kind: `"virtual"` for a TPU simulated on CPU cores, or `"hardware"`.
        tpu: The name the user gave the TPU, such as `"local"`; may be empty.
        accelerator: The TPU type, such as `"v5e-8"`; empty if unknown.
        replicas: Replicas of the strategy.
        cores: TensorFlow's TPU devices.
        hosts: Tasks that drive them.
        logical_devices: Logical devices of one replica (model parallelism).
        topology: The mesh and, if there is one, the device assignment.
        arithmetic: How matrices are multiplied: `"cpu"` in float32, or as a `"tpu"` does.
        versions: Pairs of a package and its version.
        notes: Sentences that the user should read, such as why there is a
            virtual TPU.
    """

    kind: Literal["virtual", "hardware"]
    tpu: str
    accelerator: str
    replicas: int
    cores: int
    hosts: int
    logical_devices: int = 1
    topology: TopologyDescription | None = None
    arithmetic: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
