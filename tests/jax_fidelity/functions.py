"""Loops, branches, gradients, and calls of the host."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.experimental import io_callback

from jax_fidelity.numbers import ANOTHER_KERNEL
from jax_fidelity.operation import SQUARE, Operation, on_one_device

OF_ITS_BODY = "as the operations in it"
THE_HOST = "the same; the host runs the Python function"


@jax.custom_vjp
def clipped(x: Any) -> Any:
    """Return the sines, with a gradient that is clipped."""
    return jnp.sin(x)


clipped.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (jnp.clip(g * x, -0.1, 0.1),))


def calling(function: Callable[..., Any]) -> Operation:
    """Return an operation that calls the host, with what it prints."""

    def run(devices: list[Any]) -> Any:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            result = jax.jit(function)(jax.device_put(SQUARE[0, :4], devices[0]))
            jax.block_until_ready(result)
            jax.effects_barrier()
        return result, np.frombuffer(printed.getvalue().encode(), "uint8")

    return Operation(run, THE_HOST)


def _printing(x: Any) -> Any:
    jax.debug.print("largest {value}", value=x.max())
    jax.debug.callback(lambda value: sys.stdout.write(f"least {value}\n"), x.min(), ordered=True)
    return x


def _exported(devices: list[Any]) -> Any:
    value = jax.device_put(SQUARE, devices[0])
    exported = export.export(jax.jit(lambda x: jnp.sin(x) * 2), platforms=["cpu", "tpu"])(value)
    return jax.jit(lambda x: exported.call(x))(value)


OPERATIONS = {
    "scan": on_one_device(
        lambda x: jax.lax.scan(lambda c, row: (c + row, c * row), x[0], x), on_a_tpu=OF_ITS_BODY
    ),
    "while_loop, fori_loop": on_one_device(
        lambda x: jax.lax.while_loop(
            lambda c: jnp.abs(c).max() < 1e6,
            lambda c: jax.lax.fori_loop(0, 3, lambda i, d: d * 1.5, c),
            x,
        ),
        on_a_tpu=OF_ITS_BODY,
    ),
    "cond, switch": on_one_device(
        lambda x: (
            jax.lax.cond(x[0, 0] > 0, jnp.abs, jnp.negative, x),
            jax.lax.switch(jnp.int32(x[0, 0]), [jnp.abs, jnp.negative, jnp.square], x),
        ),
        on_a_tpu=OF_ITS_BODY,
    ),
    "map, associative_scan, vmap": on_one_device(
        lambda x: (
            jax.lax.map(jnp.square, x),
            jax.lax.associative_scan(jnp.maximum, x),
            jax.vmap(jnp.sort)(x),
        ),
        on_a_tpu=OF_ITS_BODY,
    ),
    "grad, custom_vjp": on_one_device(
        jax.grad(lambda x: (clipped(x) ** 2).sum()), on_a_tpu=OF_ITS_BODY
    ),
    "checkpoint": on_one_device(
        jax.grad(lambda x: jax.checkpoint(lambda y: jnp.abs(y @ y))(x).sum()),
        on_a_tpu="as the operations in it; the verdict counts the memory that it saves",
    ),
    "donation": on_one_device(
        lambda x: x * 2, on_a_tpu="the same: the array is deleted", donate_argnums=0
    ),
    "pure_callback": calling(lambda x: jax.pure_callback(lambda a: np.asarray(a) * 2, x, x)),
    "io_callback": calling(
        lambda x: io_callback(lambda a: np.asarray(a).cumsum(), x, x, ordered=True)
    ),
    "debug.print, debug.callback": calling(_printing),
    "export for a CPU and a TPU": Operation(_exported, ANOTHER_KERNEL),
}
