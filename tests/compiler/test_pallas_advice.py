"""Kernels that the TPU's compiler refuses compile after the catalogue's advice."""

from __future__ import annotations

from typing import Any

import pytest
from support.jax_process import said_with_jax

pytestmark = pytest.mark.usefixtures("libtpu")

PROGRAM = """
import jax
import jax.numpy as jnp
import tpunb
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

array = jax.ShapeDtypeStruct
said = {}


def asked(name, function, *arguments, tpu="v5e-1"):
    program = tpunb.compile(function, *arguments, tpu=tpu)
    said[name] = [[error.entry, error.fix] for error in program.errors], program.ok


def reading(start):
    def kernel(start_ref, x_ref, out_ref):
        out_ref[...] = x_ref[pl.ds(start(start_ref[0]), 8), :]

    spaces = [pl.BlockSpec(memory_space=space) for space in (pltpu.SMEM, pltpu.VMEM)]
    return pl.pallas_call(kernel, out_shape=array((8, 128), "bfloat16"), in_specs=spaces)


table = array((1,), "int32"), array((64, 128), "bfloat16")
asked("index", reading(lambda start: start), *table)
asked("index after", reading(lambda start: pl.multiple_of(start, 8)), *table)


def double(x_ref, out_ref):
    out_ref[...] = x_ref[...] * 2


def blocks(rows, **options):
    block = pl.BlockSpec((rows, 1024), lambda i: (i, 0))
    return lambda x: pl.pallas_call(
        double, x, grid=(x.shape[0] // rows,), in_specs=[block], out_specs=block, **options
    )(x)


large = array((8192, 1024), "float32")
asked("memory", blocks(4096), large)
allowed = pltpu.CompilerParams(vmem_limit_bytes=100 * 2**20)
asked("memory after", blocks(4096, compiler_params=allowed), large)
asked("blocks", blocks(4), large)
asked("blocks after", blocks(8), large)


def product(cast, result="float32"):
    def kernel(x_ref, y_ref, out_ref):
        out_ref[...] = jnp.dot(
            cast(x_ref[...]), cast(y_ref[...]), preferred_element_type=result
        )

    return pl.pallas_call(kernel, out_shape=array((256, 256), result))


small = [array((256, 256), "int8")] * 2
asked("types", product(lambda x: x, "int32"), *small, tpu="v3-8")
asked("types after", product(lambda x: x.astype(jnp.float32)), *small, tpu="v3-8")
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return said_with_jax(PROGRAM, tmp_path_factory.mktemp("jax"))


@pytest.mark.parametrize(
    ("name", "entry", "advice"),
    [
        ("index", "60", "pl.multiple_of"),
        ("memory", "59", "vmem_limit_bytes"),
        ("blocks", "61", "a multiple of 8"),
        ("types", "62", "astype(jnp.float32)"),
    ],
)
def test_the_advice_works(said: dict[str, Any], name: str, entry: str, advice: str) -> None:
    (((found, fix),), compiles) = said[name]
    assert (found, compiles) == (entry, False)
    assert advice in fix
    assert said[f"{name} after"] == [[], True]
