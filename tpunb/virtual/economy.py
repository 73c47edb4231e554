"""How much of this machine the replicas take at a time: its processors and its memory."""

from __future__ import annotations

import math
import reprlib

from tpunb._util.integers import is_whole
from tpunb.errors import TpunbError
from tpunb.machine.resources import measure, processors
from tpunb.virtual.devices import VirtualDevices, process_of

__all__ = ["AtOnceError", "checked", "most_joined", "processors_for_each"]

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
