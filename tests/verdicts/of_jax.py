"""Compare `tpunb.compile` with JAX itself, on functions from JAX's documentation and tests.

    cd tests && python -m verdicts.of_jax [NAMES]

Needs a Python with JAX and libtpu. `tpunb.compile` and `jax.jit(...).lower(...).compile()` compile
each function for the same topology; verdicts and peaks must be equal. A name may be the beginning
of a name.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from verdicts.libtpu_alone import ENVIRONMENT

os.environ.update(ENVIRONMENT)

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, SingleDeviceSharding

import tpunb
from verdicts.functions_of_jax import FUNCTIONS, Entry, Sharded
from verdicts.printed import say

UNKNOWN = {"transforms.pure callback"}
"""Functions that call the host: JAX compiles them but cannot export them."""

DEVICES = np.array(topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4").devices)


def main() -> int:
    """Run the command; return 1 if something differs."""
    chosen = tuple(sys.argv[1:]) or ("",)
    names = [name for name in FUNCTIONS if name.startswith(chosen)]
    differences = [text for name in names if (text := difference(name, FUNCTIONS[name]))]
    say(f"{len(names)} functions, {len(differences)} differences")
    return int(bool(differences))


def difference(name: str, entry: Entry) -> str:
    """Compare the two verdicts; print and return the difference."""
    package, jax_verdict = ours(entry), itself(entry)
    same = package == jax_verdict or (name in UNKNOWN and package.startswith("unknown"))
    text = "" if same else f"{name}: {package}, not {jax_verdict}"
    if text:
        say(text)
    return text


def ours(entry: Entry) -> str:
    """The verdict of `tpunb.compile`: the peak, or why there is none."""
    auto = (AxisType.Auto,) * len(entry.axes)
    mesh = AbstractMesh(entry.mesh, entry.axes, axis_types=auto) if entry.mesh else None
    fn, args = entry.on(mesh)
    try:
        program = tpunb.compile(fn, *_given(args, mesh), tpu="v5e-8" if entry.mesh else "v5e-1")
    except Exception as error:
        return f"error: {type(error).__name__}"
    if program.unknown:
        return f"unknown: {program.unknown}"
    return str(program.memory.peak) if program.ok else program.errors[0].code


def _given(args: Any, mesh: Any) -> Any:
    return args if mesh is None else _placed(args, mesh)


def itself(entry: Entry) -> str:
    """The verdict of JAX itself."""
    mesh = Mesh(DEVICES.reshape(entry.mesh), entry.axes) if entry.mesh else None
    fn, args = entry.on(mesh)
    jitted = fn if hasattr(fn, "lower") else jax.jit(fn)
    try:
        traced = jitted.trace(*_placed(args, mesh, any_value=jitted is not fn))
    except Exception as error:
        return f"error: {type(error).__name__}"
    try:
        executable = traced.lower().compile()
    except Exception as error:
        return "memory" if "RESOURCE_EXHAUSTED" in str(error) else "compile"
    return str(executable.memory_analysis().peak_memory_in_bytes)


def _placed(args: Any, mesh: Any, *, any_value: bool = False) -> Any:
    """The arguments on a mesh or, for JAX itself without a mesh, on a device of the topology."""

    def place(value: Any) -> Any:
        if isinstance(value, Sharded):
            sharding = NamedSharding(mesh, value.spec)
            return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)
        if any_value or isinstance(value, jax.ShapeDtypeStruct):
            aval = jax.typeof(value) if not hasattr(value, "dtype") else value
            return jax.ShapeDtypeStruct(
                aval.shape,
                aval.dtype,
                sharding=SingleDeviceSharding(DEVICES[0]),
                weak_type=getattr(aval, "weak_type", False),
            )
        return value

    return jax.tree.map(place, args, is_leaf=lambda value: isinstance(value, Sharded))


if __name__ == "__main__":
    sys.exit(main())
