"""The options of replicating, and how much of this machine it may take at a time."""

from __future__ import annotations

import dataclasses
import functools
import math
import reprlib
from collections.abc import Mapping, Sequence

from tpunb._util.integers import is_whole
from tpunb.errors import TpunbError
from tpunb.machine.resources import measure, processors
from tpunb.tpu.types import largest_memory
from tpunb.virtual.arithmetic import Arithmetic
from tpunb.virtual.devices import VirtualDevices, process_of
from tpunb.virtual.replicate.stale_traces import Divergence
from tpunb.virtual.strictness import Strictness

_USUAL_MEMORY = 2**33  # of a machine that does not say what it has
_JOINED_PART = 8


class AtOnceError(TpunbError, ValueError):
    """What says how many replicas run at a time is no positive whole number."""


def checked(at_once: int | None) -> int | None:
    """How many replicas run at a time, as it was given.

    Raises:
        AtOnceError: It is no positive whole number, nor None.
    """
    if at_once is None or (is_whole(at_once) and at_once >= 1):
        return at_once
    raise AtOnceError(
        f"{reprlib.repr(at_once)} replicas cannot run at a time.",
        fix="Give a whole number from 1, or nothing for as many as there are processors.",
    )


def processors_for_each(devices: VirtualDevices) -> int:
    """How many of this machine's processors there are for each of the hosts' processes."""
    processes = {process_of(host) for host in devices.hosts}
    return max(1, processors() // len(processes))


def most_joined(joined: bool | None, at_once: int | None) -> float:
    """How many bytes the joined values of a step may take together.

    Fewer live at once: each ends with the last that reads it.

    Args:
        joined: Whether values are joined; None for where they take a small part of the
            machine's memory.
        at_once: How many replicas run at a time, as it was given: whoever gives a number
            wants no operation of all.
    """
    if joined is not None:
        return math.inf if joined else 0
    if at_once is not None:
        return 0
    return (measure().total or _USUAL_MEMORY) / _JOINED_PART


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
        return [list(map(self.place_of, logical)) for logical in self.cores]

    @functools.cached_property
    def places_of_cores(self) -> Mapping[str, str]:
        """Where variables are kept that are on a core, by the core's device."""
        pairs = zip(self.cores, self.places, strict=True)
        return {core: place for pair in pairs for core, place in zip(*pair, strict=True)}

    def place_of(self, device: str) -> str:
        """Where what is on a core or a host is computed and kept: on its process's first device.

        TensorFlow runs each device's part of a function by an executor of its own and hands
        tensors from one to the next by a rendezvous, which for small layers takes longer than
        what they compute. On the first are datasets too, and all that asks for no device.
        """
        if len(self.cores[0]) > 1:
            return device  # what is on which logical device is of interest
        return f"{process_of(device)}/device:CPU:0"
