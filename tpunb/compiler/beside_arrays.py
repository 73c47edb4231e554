"""A JAX program beside the arrays that are alive on the virtual TPU's devices."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Collection, Iterator, Sequence
from types import FunctionType
from typing import Any

from tpunb._util.functions import closed_over, nested_codes, wrapped
from tpunb._util.units import byte_count
from tpunb.compiler.program import TpuProgram
from tpunb.compiler.topologies import Target
from tpunb.errors.code_problems import Problem
from tpunb.virtual.jax import current_type

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
    own = here.ids_in({"leaves": leaves, "args": args, **dict(_reached(fn))})
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


def _reached(fn: Any) -> Iterator[tuple[str, Any]]:
    """Yield everything that a function and the functions that it uses can reach."""
    pending, seen = [fn], set()
    for value in pending:  # it grows
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield f"value {len(seen)}", value
        inner = getattr(value, "__wrapped__", None)  # of jax.jit
        pending += [*wrapped(value), *([] if inner is None else [inner])]
        if isinstance(value, FunctionType):
            names = {name for code in nested_codes(value.__code__) for name in code.co_names}
            used = (value.__globals__[name] for name in names if name in value.__globals__)
            pending += [*closed_over(value).values(), *used]
