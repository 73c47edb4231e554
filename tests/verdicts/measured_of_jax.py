"""Compare the time estimate with published times of JAX operations that were measured on TPUs.

    cd tests && python -m verdicts.measured_of_jax [NAMES]

Prints a row of the table in `docs/compiler-accuracy.md` for each operation. Needs a Python with
JAX.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import tpunb
from verdicts.printed import say_row

SIDE = 1 << 15
MESH = AbstractMesh((8,), ("x",), axis_types=(AxisType.Auto,))
Built = tuple[Callable[..., Any], tuple[jax.ShapeDtypeStruct, ...]]
Row = tuple[str, Built, float]
"""A TPU type, what ran there, and the measured seconds."""


def on_all(shape: tuple[int, ...], dtype: Any, *axes: str | None, mesh: Any = MESH) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*axes)))


def product(dtype: Any, first: tuple[str | None, ...], second: tuple[str | None, ...]) -> Built:
    """A product of sharded 32,768² matrices."""
    square = (SIDE, SIDE)
    return jnp.matmul, (on_all(square, dtype, *first), on_all(square, dtype, *second))


def collective(dtype: Any, fn: Callable[[Any], Any]) -> Built:
    """A collective on a 32,768² matrix that is sharded by rows."""
    mapped = jax.shard_map(fn, mesh=MESH, in_specs=P("x"), out_specs=P(), check_vma=False)
    return mapped, (on_all((SIDE, SIDE), dtype, "x"),)


def feed_forward(dtype: Any) -> Built:
    """Three sharded feed-forward blocks of Llama, for eight tokens."""

    def step(x: Any, w1: Any, w2: Any, w3: Any) -> Any:
        for _ in range(3):
            gate = jax.nn.silu((x @ w1).astype(jnp.bfloat16))
            x = lax.psum((gate * (x @ w3)) @ w2, "x")
        return x

    specs = (P(), P(None, "x"), P("x"), P(None, "x"))
    mapped = jax.shard_map(step, mesh=MESH, in_specs=specs, out_specs=P(), check_vma=False)
    shapes = ((8, 4096), (4096, 11008), (11008, 4096), (4096, 11008))
    return mapped, tuple(
        on_all(shape, dtype, *spec) for shape, spec in zip(shapes, specs, strict=True)
    )


def permutation(devices: int, kib: int) -> Built:
    """Each device sends `kib` KiB to the next."""
    mesh = AbstractMesh((devices,), ("x",), axis_types=(AxisType.Auto,))
    pairs = [(device, (device + 1) % devices) for device in range(devices)]
    mapped = jax.shard_map(
        lambda x: lax.ppermute(x, "x", pairs), mesh=mesh, in_specs=P("x"), out_specs=P("x")
    )
    return mapped, (on_all((devices * kib, 256), jnp.float32, "x", mesh=mesh),)


def alone(dtype: Any, rows: int, inner: int, columns: int) -> Built:
    """A product on one core; 8-bit integers give 32-bit results."""
    results = jnp.int32 if dtype == jnp.int8 else dtype
    shapes = ((rows, inner), (inner, columns))
    return functools.partial(jnp.matmul, preferred_element_type=results), tuple(
        jax.ShapeDtypeStruct(shape, dtype) for shape in shapes
    )


def kernel(side: int, *block: int) -> Built:
    """The product of the Pallas documentation, in blocks of rows, inner elements and columns."""
    rows, inner, columns = block
    steps = side // inner

    def multiply(x: Any, y: Any, z: Any, total: Any) -> None:
        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            total[...] = jnp.zeros_like(total)

        total[...] += jnp.dot(x[...], y[...], preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(2) == steps - 1)
        def _() -> None:
            z[...] = total[...].astype(z.dtype)

    matrix = jax.ShapeDtypeStruct((side, side), jnp.bfloat16)
    call = pl.pallas_call(
        multiply,
        grid=(side // rows, side // columns, steps),
        in_specs=[
            pl.BlockSpec((rows, inner), lambda i, j, k: (i, k)),
            pl.BlockSpec((inner, columns), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((rows, columns), lambda i, j, k: (i, j)),
        scratch_shapes=[pltpu.VMEM((rows, columns), jnp.float32)],
        out_shape=matrix,
    )
    return call, (matrix, matrix)


def attention(length: int) -> Built:
    """JAX's flash attention for 4 sequences and 32 heads of size 128, in blocks of 128."""
    heads = jax.ShapeDtypeStruct((4, 32, length, 128), jnp.bfloat16)
    return flash_attention, (heads, heads, heads)


BF16, INT8 = jnp.bfloat16, jnp.int8
ROWS: dict[str, Row] = {
    "permutation v5p 1 MiB": ("v5p-8", permutation(4, 1024), 16.94e-6),
    "permutation v5p 64 MiB": ("v5p-8", permutation(4, 65536), 782e-6),
    "permutation v6e 1 MiB": ("v6e-8", permutation(8, 1024), 17.45e-6),
    "permutation v6e 64 MiB": ("v6e-8", permutation(8, 65536), 776.3e-6),
    "product bfloat16": ("v5e-8", product(BF16, (), ()), 0.43817),
    "product bfloat16 by columns and rows": (
        "v5e-8",
        product(BF16, (None, "x"), ("x",)),
        0.108891,
    ),
    "product bfloat16 by rows": ("v5e-8", product(BF16, ("x",), ("x",)), 0.0766386),
    "product int8": ("v5e-8", product(INT8, (), ()), 0.186436),
    "product int8 by columns and rows": ("v5e-8", product(INT8, (None, "x"), ("x",)), 0.0549044),
    "product int8 by rows": ("v5e-8", product(INT8, ("x",), ("x",)), 0.0386539),
    "all-gather": ("v5e-8", collective(BF16, lambda x: lax.all_gather(x, "x")), 0.0683381),
    "all-reduce": ("v5e-8", collective(BF16, lambda x: lax.psum(x, "x")), 8.25386e-3),
    "feed-forward bfloat16": ("v5e-8", feed_forward(BF16), 611.6e-6),
    "8192³, on the chip": ("v6e-1", alone(BF16, 8192, 8192, 8192), 1510.9e-6),
    "4096 × 8192²": ("v6e-1", alone(BF16, 4096, 8192, 8192), 798.0e-6),
    "128 × 4096²": ("v6e-1", alone(BF16, 128, 4096, 4096), 150.2e-6),
    "8192³ in float32": ("v6e-1", alone(jnp.float32, 8192, 8192, 8192), 3043.9e-6),
    "8192³ in int8": ("v6e-1", alone(INT8, 8192, 8192, 8192), 973.9e-6),
    "8192³ on tpu7x": ("tpu7x-4", alone(BF16, 8192, 8192, 8192), 1016.8e-6),
    "16,384³ on tpu7x": ("tpu7x-4", alone(BF16, 16384, 16384, 16384), 7971.3e-6),
    "kernel 1024³, 128": ("v5e-1", kernel(1024, 128, 128, 128), 297.7e-6),
    "kernel 4096³, 128": ("v5e-1", kernel(4096, 128, 128, 128), 11.772e-3),
    "kernel 8192³, 128": ("v5e-1", kernel(8192, 128, 128, 128), 91.836e-3),
    "kernel 1024³, 512": ("v5e-1", kernel(1024, 512, 1024, 1024), 127.1e-6),
    "kernel 4096³, 512": ("v5e-1", kernel(4096, 512, 1024, 1024), 889.1e-6),
    "kernel 8192³, 512": ("v5e-1", kernel(8192, 512, 1024, 1024), 6.0994e-3),
    "attention 512": ("v5e-1", attention(512), 2.36e-3),
    "attention 4096": ("v5e-1", attention(4096), 144.97e-3),
}


def main() -> None:
    """Print the rows."""
    for name in sys.argv[1:] or ROWS:
        tpu, (fn, args), seconds = ROWS[name]
        program = tpunb.compile(fn, *args, tpu=tpu, speed=True, timeout=3600)
        say_row(name, tpu, program, seconds)


if __name__ == "__main__":
    main()
