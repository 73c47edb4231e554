"""What replicating needs to know of the strategy."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from tpunb.tpu.types import largest_memory
from tpunb.virtual.arithmetic import Arithmetic
from tpunb.virtual.devices import place_of
from tpunb.virtual.replicate.stale_traces import Divergence
from tpunb.virtual.strict.rules import Strictness


@dataclasses.dataclass(frozen=True)
class ReplicateOptions:
    """What replicating needs to know of the strategy.

    Attributes:
        cores: The devices of each replica, its logical devices in order.
        assigned: Whether a device assignment says which cores form a replica.
        divergence: The variables whose copies may differ, and the functions that use them.
        strictness: What is refused because a TPU refuses it.
        memory: Of a replica's cores, in bytes.
        called: What these are called in a sentence.
        at_once: How many replicas of a process run at a time; None for all.
        joined: How many bytes the values of all replicas that are one tensor may take
            together; 0 to leave each replica its own.
        arithmetic: How they multiply.
    """

    cores: Sequence[Sequence[str]]
    assigned: bool = False
    divergence: Divergence = dataclasses.field(default_factory=Divergence)
    strictness: Strictness = dataclasses.field(default_factory=Strictness)
    memory: int = dataclasses.field(default_factory=largest_memory)
    called: str = "a core of the largest TPU"
    at_once: int | None = None
    joined: float = 0
    arithmetic: Arithmetic = "cpu"

    @functools.cached_property
    def places(self) -> Sequence[Sequence[str]]:
        """The devices that compute for each replica, and hold its copies of variables."""
        if len(self.cores[0]) > 1:
            return self.cores  # what is on which logical device is of interest
        return [list(map(place_of, logical)) for logical in self.cores]
