"""The estimate of the time against operations of JAX that were measured on TPUs and published.

    cd tests && python -m verdicts.measured_of_jax [NAMES]

Prints a row of the table in `docs/compiler.md` for each; it needs a Python with JAX.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

import tpunb
from verdicts.printed import say_row

SIDE = 1 << 15
MESH = AbstractMesh((8,), ("x",))
Built = tuple[Callable[..., Any], tuple[jax.ShapeDtypeStruct, ...]]
Row = tuple[str, Built, float]
"""A TPU type, what was run there, and the seconds that it took."""


def on_all(shape: tuple[int, ...], dtype: Any, *axes: str | None, mesh: Any = MESH) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*axes)))


def product(dtype: Any, first: tuple[str | None, ...], second: tuple[str | None, ...]) -> Built:
    """A product of sharded matrices of 32,768²."""
    square = (SIDE, SIDE)
    return jnp.matmul, (on_all(square, dtype, *first), on_all(square, dtype, *second))


def collective(dtype: Any, fn: Callable[[Any], Any]) -> Built:
    """A collective of a matrix of 32,768² that is sharded by rows."""
    mapped = jax.shard_map(fn, mesh=MESH, in_specs=P("x"), out_specs=P(), check_vma=False)
    return mapped, (on_all((SIDE, SIDE), dtype, "x"),)


def feed_forward(dtype: Any) -> Built:
    """Three feed-forward blocks of Llama, sharded, for eight tokens."""

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
    """Each device sends so many KiB to the next one."""
    mesh = AbstractMesh((devices,), ("x",))
    pairs = [(device, (device + 1) % devices) for device in range(devices)]
    mapped = jax.shard_map(
        lambda x: lax.ppermute(x, "x", pairs), mesh=mesh, in_specs=P("x"), out_specs=P("x")
    )
    return mapped, (on_all((devices * kib, 256), jnp.float32, "x", mesh=mesh),)


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
}


def main() -> None:
    """Prints the rows."""
    for name in sys.argv[1:] or ROWS:
        tpu, (fn, args), seconds = ROWS[name]
        program = tpunb.compile(fn, *args, tpu=tpu, speed=True, timeout=3600)
        say_row(name, tpu, program, seconds)


if __name__ == "__main__":
    main()
