"""The advice on a program that does not fit, which follows what fills the memory."""

from __future__ import annotations

from tpunb._util.units import byte_count
from tpunb.compiler.libtpu import Prepared
from tpunb.compiler.topologies import Target
from tpunb.errors.compiler_refusals import LESS_PADDING, SMALLER, SMALLER_OR_MORE
from tpunb.tpu.compiled_program import Buffer, ProgramMemory

_LARGE = 10
"""A tensor is large if it takes more than this fraction of the memory, 1/10."""
_MOSTLY_PADDING = 2.0


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
    narrower = " Or use a smaller type, such as bfloat16." if _has_32_bits(memory) else ""
    sizes = {
        "variables": memory.variables,
        "arguments": memory.arguments - memory.variables,
        "results": memory.outputs,
        "temporaries": memory.temporaries,
    }
    most = max(sizes, key=sizes.__getitem__)
    kept = f"Its {most} take {byte_count(sizes[most])} of each core"
    if most == "temporaries" or (most == "arguments" and not prepared.jax):
        return SMALLER if narrower else SMALLER_OR_MORE
    if not prepared.jax:
        return f"{kept}. Use a smaller model, or an optimizer with less state.{narrower}"
    if _is_whole(largest, prepared, wanted):
        return _sharded(largest, prepared, kept) + narrower
    fewer = "Return fewer, or shard" if most == "results" else "Pass fewer, or shard"
    return f"{kept}. {fewer} them over more cores.{narrower}"


def _is_whole(buffer: Buffer, prepared: Prepared, wanted: Target) -> bool:
    """Return whether each core holds a copy of an argument or a result."""
    several = wanted.cores > 1 and not prepared.replicated
    return several and buffer.kind != "temporary" and buffer.shape in prepared.shapes


def _sharded(largest: Buffer, prepared: Prepared, kept: str) -> str:
    axis = prepared.mesh[0][0] if prepared.mesh else "data"
    sharding = f'NamedSharding(mesh, P("{axis}"))'
    name, how = largest.node or largest.text, f"jax.device_put(array, {sharding})"
    if largest.kind == "output":
        name, how = largest.text, f"jax.jit(fn, out_shardings={sharding})"
    return f"{kept}: each core, and each further core, holds a copy of {name}. Shard it: {how}."


def _has_32_bits(memory: ProgramMemory) -> bool:
    """Return whether a large tensor has a type that could be smaller."""
    large = (one for one in memory.largest if one.padded_bytes * _LARGE > memory.peak)
    return any(one.dtype.lstrip("fsu") in {"32", "64"} for one in large)
