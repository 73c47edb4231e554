"""The properties of a strategy that replicating depends on."""

from __future__ import annotations

import dataclasses
import functools
import math
import reprlib
from collections.abc import Mapping, Sequence

from tpunb._util.integers import is_whole
from tpunb.errors import TpunbError
from tpunb.machine.resources import measure
from tpunb.tensorflow.virtual.replicate.divergence import Divergence
from tpunb.tensorflow.virtual.replicate.trial import Trial
from tpunb.tpu.types import largest_memory
from tpunb.virtual.arithmetic import Arithmetic
from tpunb.virtual.strictness import Strictness

_USUAL_MEMORY = 2**33  # assumed if a machine does not report its memory
_JOINED_PART = 8


class AtOnceError(TpunbError, ValueError):
    """`at_once` is not a positive whole number."""


def checked(at_once: int | None) -> int | None:
    """Return the number of replicas that run at a time, after checking it.

    Raises:
        AtOnceError: It is neither a positive whole number nor None.
    """
    if at_once is None or (is_whole(at_once) and at_once >= 1):
        return at_once
    raise AtOnceError(
        f"{reprlib.repr(at_once)} replicas cannot run at a time.",
        fix="Give a whole number from 1, or nothing for as many as there are processors.",
    )


def most_joined(joined: bool | None, at_once: int | None) -> float:
    """Return the bytes that the joined values of a step may take in total.

    Fewer bytes are live at once: each value ends with the last node that reads it.

    Args:
        joined: Whether values are joined; None to join them if they take a small part of the
            machine's memory.
        at_once: The number of replicas to run at a time, as the user passed it. A number rules out
            operations for all replicas.
    """
    if joined is not None:
        return math.inf if joined else 0
    if at_once is not None:
        return 0
    return (measure().total or _USUAL_MEMORY) / _JOINED_PART


@dataclasses.dataclass(frozen=True)
class CallOptions:
    """The properties of a strategy that replicating depends on.

    Attributes:
        cores: The devices of each replica, its logical devices in order.
        assigned: Whether a device assignment says which cores form a replica.
        divergence: The variables whose copies may differ, and the functions that use them.
        strictness: The rules of a TPU that are enforced.
        memory: The memory of a replica's cores, in bytes.
        called: The name of these cores in a sentence.
        at_once: The number of replicas that run at a time; None for all.
        joined: The total bytes that values of all replicas in single tensors may take; 0 keeps the
            replicas' values separate.
        arithmetic: The arithmetic in which the replicas multiply.
        pads: Whether arguments of open sizes are padded to a bound, which is the default of
            `tf.distribute.RunOptions`.
        trial: The trial that is traced; None outside a trial.
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
    pads: bool = True
    trial: Trial | None = None

    @functools.cached_property
    def devices(self) -> Sequence[Sequence[str]]:
        """The devices that compute for each replica, and hold its copies of variables."""
        return [list(map(self.device_for, logical)) for logical in self.cores]

    @functools.cached_property
    def device_of_core(self) -> Mapping[str, str]:
        """The devices where a core's variables are kept, by the core's device."""
        pairs = zip(self.cores, self.devices, strict=True)
        return {core: device for pair in pairs for core, device in zip(*pair, strict=True)}

    @functools.cached_property
    def on_one_device(self) -> bool:
        """True if one device computes for all replicas, and holds all copies of variables."""
        return len({device for logical in self.devices for device in logical}) == 1

    def device_for(self, device: str) -> str:
        """Return the device that computes and keeps a device's values: the first device.

        TensorFlow runs each device's part of a function with an executor of its own, and passes
        tensors between executors through a rendezvous. For small layers that takes longer than
        their computation. Datasets are on the first device too, and so are operations that ask for
        no device.
        """
        if len(self.cores[0]) > 1:
            return device  # the user wants to see which logical device has what
        return f"{device.partition('/device:')[0]}/device:CPU:0"
