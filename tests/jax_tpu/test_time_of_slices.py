"""The estimated time of programs that read and update parts of arrays, by the TPU's compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import tpunb

pytestmark = pytest.mark.usefixtures("libtpu")

WIDTH = 2048
SECONDS_A_BYTE = 1 / 1640e9
"""At the peak of v6e's HBM."""


def low(fn: Callable[..., Any], *args: Any) -> float:
    """Return the lower estimate, which has no time of the host."""
    time = tpunb.compile(fn, *args, tpu="v6e-1", speed=True).time
    assert time is not None
    return time.low


def absent(*sizes: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def scanned(x: Any, stack: Any) -> Any:
    return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, stack)[0]


def counted(x: Any, stack: Any) -> Any:
    return lax.fori_loop(0, len(stack), lambda layer, x: jnp.tanh(x @ stack[layer]), x)


def unrolled(x: Any, stack: Any) -> Any:
    for w in stack:
        x = jnp.tanh(x @ w)
    return x


def trained(x: Any, stack: Any) -> Any:
    return jax.grad(lambda stack: scanned(x, stack).astype(jnp.float32).sum())(stack)


@pytest.mark.parametrize(
    ("layers", "passes"),
    # The gradients are zeros first; then each layer's weights are read twice, and one is written.
    [(scanned, 1), (counted, 1), (unrolled, 1), (trained, 4)],
)
def test_a_layer_of_a_stack_moves_its_own_weights(layers: Callable[..., Any], passes: int) -> None:
    seconds = low(layers, absent(256, WIDTH), absent(16, WIDTH, WIDTH))
    weights = 16 * 2 * WIDTH**2 * SECONDS_A_BYTE
    assert 0.9 * passes * weights < seconds < 1.6 * passes * weights


def test_the_last_token_costs_its_row() -> None:
    weights = 2 * 4096**2 * SECONDS_A_BYTE
    seconds = low(lambda h, w: h[:, -1] @ w, absent(8, 2048, 4096), absent(4096, 4096))
    assert 0.9 * weights < seconds < 1.6 * weights


def in_a_slice(cache: Any, token: Any, place: Any) -> Any:
    return lax.dynamic_update_slice(cache, token[:, None], (0, place, 0, 0))


def by_an_index(cache: Any, token: Any, place: Any) -> Any:
    return cache.at[:, place].set(jnp.sin(token))


def by_positions(cache: Any, token: Any, place: Any) -> Any:
    return cache.at[jnp.arange(8), place + jnp.arange(8)].set(token)


@pytest.mark.parametrize("update", [in_a_slice, by_an_index, by_positions])
def test_an_update_of_a_donated_cache_costs_its_slice(update: Callable[..., Any]) -> None:
    arguments = absent(8, 8192, 8, 128), absent(8, 8, 128), absent(dtype=jnp.int32)
    assert low(jax.jit(update, donate_argnums=0), *arguments) < 2e-6
    copied = 2 * 2 * 8 * 8192 * 8 * 128 * SECONDS_A_BYTE
    assert low(update, *arguments) == pytest.approx(copied, rel=0.25), "the copy is not free"


def test_rows_of_a_table_are_updated_alone() -> None:
    rows, table = absent(256, WIDTH), absent(50_000, WIDTH)

    def add(table: Any, places: Any, rows: Any) -> Any:
        return table.at[places].add(rows)

    seconds = low(jax.jit(add, donate_argnums=0), table, absent(256, dtype=jnp.int32), rows)
    assert seconds < 30e-6
