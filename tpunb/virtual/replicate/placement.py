"""Where the components of a variable are: on which replica, on which logical device."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tpunb.virtual._tensorflow import TPUReplicatedVariable, device_util
from tpunb.virtual.variable_copies import handle_of

Cores = Sequence[Sequence[str]]


@dataclasses.dataclass(frozen=True)
class Components:
    """A variable's components on the replicas.

    Attributes:
        handles: The handle on each replica.
        copies: Where every logical device holds the variable: the handles on
            those after the first, replica by replica. Else empty.
        home: The logical device that holds the variable.
        dtype: The type of its value, as protocol buffers number it.
    """

    handles: list[Any]
    copies: list[Any]
    home: int
    dtype: int


def components(variables: Sequence[Any], cores: Cores, *, assigned: bool) -> Components:
    """Finds a variable's components.

    Args:
        variables: The variable's parts, one for each replica, or their handles.
        cores: The devices of each replica, its logical devices in order.
        assigned: Whether a device assignment says which cores form a replica;
            then each replica takes the part that is on one of its cores.

    Raises:
        ValueError: A replica has no part of the variable.
    """
    home = _home(variables, cores)
    if home is None and assigned:
        variables = _on_cores(variables, cores)
        home = _home(variables, cores)
    handles = [_handle(variable) for variable in variables]
    copies = [
        handle_of(part)
        for variable in variables
        if isinstance(variable, TPUReplicatedVariable)
        for part in variable.variables[1:]
    ]
    # Only copies are written by the engine itself, which has to know the type.
    dtype = variables[0].dtype.as_datatype_enum if copies else 0
    return Components(handles, copies, home or 0, dtype)


def _handle(variable: Any) -> Any:
    if isinstance(variable, TPUReplicatedVariable):
        # Its own `handle` asks for an operation that only TPUs have.
        variable = variable.variables[0]
    return variable if isinstance(variable, tf.Tensor) else handle_of(variable)


def _home(variables: Sequence[Any], cores: Cores) -> int | None:
    """The logical device that holds a part on every replica; None if there is none."""
    if len(variables) != len(cores):
        return None
    devices = [variable.device for variable in variables]
    if devices[0] not in cores[0]:
        devices = [device_util.canonicalize(device) for device in devices]
    for core in range(len(cores[0])):
        if all(logical[core] == device for logical, device in zip(cores, devices, strict=True)):
            return core
    return None


def _on_cores(variables: Sequence[Any], cores: Cores) -> list[Any]:
    """For each replica the part that is on one of its cores."""
    by_device = {device_util.canonicalize(variable.device): variable for variable in variables}
    found = []
    for replica, logical in enumerate(cores):
        here = [by_device[device] for device in logical if device in by_device]
        if not here:
            raise ValueError(
                f"Failed to find a variable on any device in replica {replica} for "
                "current device assignment"
            )
        found.append(here[0])
    return found
