"""A JAX program beside the arrays that are alive on the virtual TPU's devices."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import sys
from collections.abc import Collection, Sequence
from typing import Any

from tpunb._util.reachable import look_into, walk
from tpunb._util.units import byte_count
from tpunb.compiler.ask.topologies import Target
from tpunb.compiler.program import TpuProgram
from tpunb.errors.code_problems import Problem
from tpunb.virtual import current_type
from tpunb.virtual.per_replica import PerReplica

_FIX = (
    "Delete the arrays that you no longer need, or donate them. For the program alone: "
    "live_arrays=False, or %%tpu_compile --without-live-arrays."
)


def beside_live_arrays(
    program: TpuProgram, kind: Target, fn: Any, args: Sequence[Any]
) -> TpuProgram:
    """Return a program that is refused if it fits alone, but not beside the live arrays.

    Arrays that the call itself uses do not count twice: its arguments, and the arrays that its
    functions reach.

    Args:
        program: The program, compiled alone.
        kind: The target that it was compiled for.
        fn: The function.
        args: Its arguments.
    """
    memory, tpu = program.memory, current_type.get()
    if tpu is None or tpu.name != kind.tpu.name or memory is None or not program.ok:
        return program
    leaves = sys.modules["jax"].tree_util.tree_leaves(list(args))
    here = current_type.memory()
    waiting = collections.deque([("", fn), ("", leaves), ("", list(args))])
    own = set()
    for path, value in walk(waiting):
        own.add(id(value.array if isinstance(value, PerReplica) else value))
        waiting.extend(look_into(path, value))
    devices = _devices_of(leaves, program.cores) or range(tpu.num_devices)
    if others := here.beside(memory.available - memory.needs, devices, own):
        needs = f"{memory.takes} of a core's {byte_count(memory.available)}"
        problem = Problem("memory", f"The program needs {needs}, but {others}", _FIX)
        return dataclasses.replace(program, errors=(problem,))
    if others := here.beside(0, devices, own):
        note = f"Beside the program, {others.replace(' of it', ' of a core', 1)}"
        return dataclasses.replace(program, notes=(*program.notes, note))
    return program


def _devices_of(arrays: Sequence[Any], cores: int) -> Collection[int]:
    """Return the numbers of the devices that have arrays, if they are as many as a program's."""
    devices: set[int] = set()
    for array in arrays:
        with contextlib.suppress(AttributeError, ValueError):  # no sharding, or of absent devices
            devices |= {device.id for device in array.sharding.device_set}
    return devices if len(devices) == cores else ()
