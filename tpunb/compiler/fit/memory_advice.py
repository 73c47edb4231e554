"""The advice on a program that does not fit, which follows what fills the memory."""

from __future__ import annotations

from tpunb._util.units import byte_count
from tpunb.compiler.ask.libtpu import Prepared
from tpunb.compiler.ask.topologies import Target
from tpunb.errors.compiler_refusals import LESS_PADDING, SMALLER, SMALLER_OR_MORE
from tpunb.tpu.compiled_program import Buffer, ProgramMemory

_MUCH = 10
"""Tensors matter if they take more than this fraction of the memory, 1/10."""
_MOSTLY_PADDING = 2.0
_NARROWER = " Or use a smaller type, such as bfloat16."


def advice(memory: ProgramMemory, prepared: Prepared, wanted: Target) -> str:
    """Return what makes a program smaller.

    Args:
        memory: Its memory.
        prepared: The program.
        wanted: The target that it does not fit on.
    """
    if not memory.largest:
        return SMALLER
    largest = memory.largest[0]
    if largest.factor > _MOSTLY_PADDING:
        return f"{LESS_PADDING} {SMALLER}"
    sizes = {
        "temporaries": memory.temporaries,
        "arguments": memory.arguments - memory.variables,
        "variables": memory.variables,
        "results": memory.outputs,
    }
    most = max(sizes, key=sizes.__getitem__)
    if most == "temporaries" or (most == "arguments" and not prepared.jax):
        return SMALLER if _has_32_bits(memory) else SMALLER_OR_MORE
    taken = f"the {most}, which take {byte_count(sizes[most])} of each core"
    if _is_whole(largest, prepared, wanted):
        fix = _sharded(largest, taken, prepared.mesh[0][0] if prepared.mesh else "data")
    elif prepared.jax:
        fix = f"Make {taken}, smaller, or shard them over more cores."
    elif most == "results":
        fix = f"Return fewer of {taken}. {SMALLER_OR_MORE}"
    else:  # every core has all variables
        fix = f"Make {taken}, smaller: use a smaller model, or an optimizer with less state."
    return fix + _NARROWER * _has_32_bits(memory)


def _is_whole(buffer: Buffer, prepared: Prepared, wanted: Target) -> bool:
    """Return whether each core holds a copy of an argument or a result."""
    is_kept = buffer.kind != "temporary" and buffer.shape in prepared.shapes
    return is_kept and wanted.partitions > 1


def _sharded(buffer: Buffer, taken: str, axis: str) -> str:
    sharding = f'NamedSharding(mesh, P("{axis}"))'
    name, how = buffer.node or buffer.text, f"jax.device_put(array, {sharding})"
    if buffer.kind == "output":
        name, how = buffer.text, f"jax.jit(fn, out_shardings={sharding})"
    return f"Shard {taken}: each core, of however many, has a copy of {name}. Use {how}."


def _has_32_bits(memory: ProgramMemory) -> bool:
    """Return whether much of the memory has a type that could be smaller."""
    wide = (one for one in memory.largest if one.dtype.lstrip("fsu") in {"32", "64"})
    return sum(one.padded_bytes for one in wide) * _MUCH > memory.peak
