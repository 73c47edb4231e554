"""The advice on a program that does not fit follows what fills its memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.jax_process import said_with_jax

from tpunb.compiler.ask.libtpu import Prepared
from tpunb.compiler.ask.topologies import target
from tpunb.compiler.fit.memory_advice import advice
from tpunb.tpu.compiled_program import Buffer, ProgramMemory

GIB = 2**30
SHAPE = (16384, 8192)
WHOLE: Any = {"jax": True, "shapes": {SHAPE}, "mesh": (("data", 8),)}


def told(kind: str, dtype: str = "f32", *, cores: int = 8, wasted: int = 0, **own: Any) -> str:
    """Return the advice for a program that has 36 tensors of one kind."""
    size = 4 if dtype == "f32" else 2
    number = SHAPE[0] * SHAPE[1] * size
    buffer = Buffer(SHAPE, dtype, number + wasted, number, "", node="w", kind=kind)
    part = {"variable": "arguments", "argument": "arguments", "output": "outputs"}
    sizes = {part.get(kind, "temporaries"): 18 * GIB}
    if kind == "variable":
        sizes["variables"] = 18 * GIB
    memory = ProgramMemory(18 * GIB, 16 * GIB, 16 * GIB, largest=(buffer,) * 36, **sizes)
    origins: Any = None
    return advice(memory, Prepared(origins, **own), target("v5e-8", 1, cores))


def test_copies_of_arrays_are_sharded() -> None:
    parameters = told("argument", **WHOLE)
    assert 'jax.device_put(array, NamedSharding(mesh, P("data")))' in parameters
    assert "each core, of however many, has a copy of w" in parameters
    assert "18 GiB" in parameters
    results = told("output", **WHOLE)
    assert 'jax.jit(fn, out_shardings=NamedSharding(mesh, P("data")))' in results
    assert "batch" not in parameters + results


def test_arrays_that_are_sharded_need_more_cores() -> None:
    said = told("argument", jax=True, shapes={(8 * SHAPE[0], SHAPE[1])})
    assert "smaller, or shard them over more cores" in said
    assert "device_put" not in said
    assert "device_put" not in told("argument", cores=1, **WHOLE)


def test_copies_of_variables_do_not_shrink_with_more_cores() -> None:
    said = told("variable")
    assert "an optimizer with less state" in said
    assert "more cores" not in said
    assert "batch" not in said


@pytest.mark.parametrize("own", [{}, WHOLE], ids=["TensorFlow", "JAX"])
def test_activations_shrink_with_the_batch(own: dict[str, Any]) -> None:
    assert told("temporary", **own).startswith("Make the batch smaller, use more cores")
    assert told("temporary", wasted=2 * GIB, **own).startswith("Make the tensor's last size")


@pytest.mark.parametrize("kind", ["argument", "output", "variable", "temporary"])
def test_a_smaller_type_is_named_if_there_is_one(kind: str) -> None:
    assert "bfloat16" in told(kind, "f32", **WHOLE)
    assert "bfloat16" not in told(kind, "bf16", **WHOLE)


def test_a_program_whose_results_are_whole(tmp_path: Path) -> None:
    said = said_with_jax(
        """import jax, jax.numpy as jnp, tpunb
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P
mesh = AbstractMesh((8,), ("data",), axis_types=(AxisType.Auto,))
def fixes(specs):
    initial = lambda: [jnp.zeros((16384, 8192)) for i in range(36)]
    program = tpunb.compile(jax.jit(initial, out_shardings=NamedSharding(mesh, specs)), tpu="v5e-8")
    return [each.fix for each in program.errors]
said = {"whole": fixes(P()), "sharded": fixes(P("data"))}
""",
        tmp_path,
    )
    (fix,) = said["whole"]
    assert "out_shardings" in fix
    assert "f32[16384,8192]" in fix
    assert "batch" not in fix
    assert said["sharded"] == []
