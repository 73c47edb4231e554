"""Verdicts on calls of JAX beside the arrays that are alive on the virtual TPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.jax_process import said_with_jax

PROGRAM = """said = {}
import functools, types
import jax, jax.numpy as jnp, tpunb

jax.config.update("jax_platforms", None)
tpunb.connect(simulate="v5e-1", framework="jax", judge="off")
used = jnp.zeros((1024, 1024, 64))
def helper(x):
    return x + used[0].sum()
def step(x):
    return helper(jnp.tanh(x @ x))
def grow(a):
    return jnp.tanh(a).T @ a
x, nest = jnp.zeros((1024, 1024)), {"w": [jnp.zeros((8, 8))]}
settings = types.ModuleType("settings")
settings.held = types.SimpleNamespace(table=jnp.zeros((1024, 768)))
own = {"step": jax.jit(step), "partial": functools.partial(lambda w, x: x @ w, x)}
own["module"] = lambda x: x @ settings.held.table
for name, fn in own.items():
    del_x = jnp.zeros((1024, 1024))
    said[name] = tpunb.compile(fn, del_x).notes
large = jax.ShapeDtypeStruct((44000, 44000), jnp.float32)
table = jnp.zeros((1024, 1024, 512))
alone = tpunb.compile(grow, large, live_arrays=False)
beside = tpunb.compile(grow, large)
elsewhere = tpunb.compile(grow, large, tpu="v6e-1")
said |= {"alone": alone.ok, "beside": beside.ok, "elsewhere": elsewhere.ok}
said["why"] = beside.headline
try:
    beside.raise_if_unfit()
except tpunb.TpunbError as error:
    said["error"] = str(error)
del table
said["deleted"] = tpunb.compile(grow, large).ok
"""


@pytest.mark.usefixtures("libtpu")
def test_a_program_must_fit_beside_the_live_arrays(tmp_path: Path) -> None:
    said = said_with_jax(PROGRAM, tmp_path)
    assert "used:" not in str(said["step"])  # part of the call itself
    assert "  x: float32[1024,1024]" in str(said["step"])
    assert "  x: " not in str(said["partial"])
    assert ": float32[1024,768]" in str(said["step"])
    assert ": float32[1024,768]" not in str(said["module"])
    assert (said["alone"], said["beside"], said["elsewhere"], said["deleted"]) == (1, 0, 1, 1)
    assert "but other arrays take" in said["why"]
    assert "table: float32[1024,1024,512], 2 GiB" in said["why"]
    assert "live_arrays=False" in said["error"]
