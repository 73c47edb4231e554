"""Programs of JAX that the TPU's compiler refuses compile after the catalogue's advice."""

from __future__ import annotations

import re
from typing import Any

import pytest
from support.jax_process import said_with_jax

pytestmark = [pytest.mark.usefixtures("libtpu"), pytest.mark.slow]

PROGRAM = """
import jax
import jax.numpy as jnp
import tpunb
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

array = jax.ShapeDtypeStruct
said = {}
VMEM, SMEM = (pl.BlockSpec(memory_space=space) for space in (pltpu.VMEM, pltpu.SMEM))


def asked(name, function, *arguments, tpu="v5e-1"):
    program = tpunb.compile(function, *arguments, tpu=tpu)
    said[name] = [error.entry for error in program.errors], program.ok


def kernel(function, shape, dtype="float32", **options):
    def body(*references):
        *inputs, output = references
        output[...] = function(*(each[...] for each in inputs))

    def call(*arrays):
        return pl.pallas_call(body, out_shape=array(shape, dtype), **options)(*arrays)

    return call


numbers = array((32,), "int32")
asked("mask", kernel(lambda x: (x < 20)[:, None] * jnp.ones((1, 16)), (32, 16)), numbers)
asked("mask after", kernel(lambda x: (x[:, None] < 20) * jnp.ones((1, 16)), (32, 16)), numbers)


def below(_):
    return (jax.lax.broadcasted_iota(jnp.int32, (32, 16), 0) < 20) * 1.0


asked("mask after, too", kernel(below, (32, 16)), numbers)


def product(**options):
    def of(x, y):
        return jnp.dot(x, y, preferred_element_type=jnp.float32, **options)
    return of


factors = array((512, 128), "bfloat16"), array((128, 128), "bfloat16")
asked("precision", kernel(product(precision="highest"), (512, 128)), *factors)
asked("precision after", kernel(product(), (512, 128)), *factors)
asked(
    "precision after, too",
    kernel(
        lambda x, y: product(precision="highest")(x.astype("float32"), y.astype("float32")),
        (512, 128),
    ),
    *factors,
)
integers = array((8, 128), "int32"), array((128, 128), "int32")
asked("int32", kernel(lambda x, y: jnp.dot(x, y), (8, 128), "int32"), *integers)
asked(
    "int32 after", kernel(lambda x, y: x.astype("float32") @ y.astype("float32"), (8, 128)), *integers
)


def adds(table, x, output):
    output[...] = x[...] + table[0].astype("float32")


def prefetched(spec, shape):
    call = pl.pallas_call(adds, out_shape=array((8, 128), "float32"), in_specs=[spec, VMEM])
    return call, array(shape, "int32"), array((8, 128), "float32")


asked("scalar memory", *prefetched(SMEM, (294912,)))
asked("scalar memory after", *prefetched(SMEM, (1024,)))
mesh = AbstractMesh((8,), ("data",), axis_types=(AxisType.Auto,))
rows = array((64, 128), "float32", sharding=NamedSharding(mesh, P("data")))
asked("partitioned", kernel(jnp.sin, (64, 128)), rows, tpu="v5e-8")
mapped = jax.shard_map(
    kernel(jnp.sin, (8, 128)),
    mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=False,
)
asked("partitioned after", mapped, rows, tpu="v5e-8")
tile = array((8, 128), "float32")
asked("cumsum", kernel(lambda x: jnp.cumsum(x, axis=0), (8, 128)), tile)


def summed(x):
    row, column = (jax.lax.broadcasted_iota(jnp.int32, (8, 8), axis) for axis in (0, 1))
    return jnp.where(row >= column, 1.0, 0.0) @ x


asked("cumsum after", kernel(summed, (8, 128)), tile)


def one(x, output):
    output[0, 0] = 1.0


def row(x, output):
    output[0:1, :] = jnp.ones((1, 128))


asked("scalar", lambda x: pl.pallas_call(one, out_shape=array((8, 128), "float32"))(x), tile)
asked("scalar after", lambda x: pl.pallas_call(row, out_shape=array((8, 128), "float32"))(x), tile)
small = array((32, 128), "int8")
asked("int8", kernel(lambda x: x * x, (32, 128), "int8"), small)
asked(
    "int8 after",
    kernel(lambda x: (x.astype("int32") * x.astype("int32")).astype("int8"), (32, 128), "int8"),
    small,
)
asked("float16", kernel(lambda x: x + 1, (8, 128), "float16"), array((8, 128), "float16"))
asked("float16 after", kernel(lambda x: x + 1, (8, 128), "bfloat16"), array((8, 128), "bfloat16"))


def copied(rows, columns):
    def body(x, output, scratch, semaphore):
        copy = pltpu.make_async_copy(x.at[pl.ds(0, rows), pl.ds(0, columns)], scratch, semaphore)
        copy.start()
        copy.wait()
        output[...] = scratch[...]
    return lambda x: pl.pallas_call(
        body,
        out_shape=array((rows, columns), "float32"),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        scratch_shapes=[pltpu.VMEM((rows, columns), jnp.float32), pltpu.SemaphoreType.DMA],
    )(x)


table = array((64, 512), "float32")
asked("copy", copied(3, 100), table)
asked("copy after", copied(8, 128), table)
asked("eigenvalues", jnp.linalg.eigvals, array((8, 8), "float32"))
asked("eigenvalues after", jnp.linalg.eigh, array((8, 8), "float32"))
with jax.enable_x64(True):
    asked("float64", jnp.fft.fft, array((4,), "float64"))
    asked("float64 after", lambda x: jnp.fft.fft(x.astype("float32")), array((4,), "float64"))

program = tpunb.compile(jnp.linalg.inv, array((1 << 22, 3, 3), "float32"), tpu="v5e-1")
said["padding"] = [[error.reason, error.fix] for error in program.errors]
"""

ENTRIES = {
    "mask": "121",
    "precision": "122",
    "int32": "122",
    "scalar memory": "114",
    "partitioned": "115",
    "cumsum": "120",
    "scalar": "116",
    "int8": "123",
    "float16": "123",
    "copy": "124",
    "eigenvalues": "112",
    "float64": "111",
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the program in a process with JAX, and return its results."""
    return said_with_jax(PROGRAM, tmp_path_factory.mktemp("jax"))


@pytest.mark.parametrize("name", ENTRIES)
def test_a_refused_program_compiles_after_the_advice(name: str, said: dict[str, Any]) -> None:
    entries, compiles = said[name]
    assert (entries, compiles) == ([ENTRIES[name]], False)
    after = [said[key] for key in said if key.startswith(f"{name} after")]
    assert after == [[[], True]] * len(after)
    assert after


def test_padding_is_named(said: dict[str, Any]) -> None:
    ((reason, fix),) = said["padding"]
    assert re.search(r"[\d.]+ GiB of it are padding \(57 times\)\.$", reason), reason
    assert "trap P3" in fix
