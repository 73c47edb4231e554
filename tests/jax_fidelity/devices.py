"""Collectives and shardings, on all devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jax_fidelity.numbers import ORDER_OF_SUMS, ROUNDED
from jax_fidelity.operation import SQUARE, Operation, mapped, on_all_devices

RING = [(device, (device + 1) % 8) for device in range(8)]


def _ragged(devices: list[Any]) -> Any:
    mesh = Mesh(np.array(devices), ("x",))
    sizes = jax.device_put(np.zeros(64, "int32"), NamedSharding(mesh, P("x")))
    rows = jax.device_put(SQUARE, NamedSharding(mesh, P("x")))

    def exchange(x: Any, sizes: Any) -> Any:
        return jax.lax.ragged_all_to_all(x, x * 0, *[sizes] * 4, axis_name="x")

    return mapped(exchange, mesh)(rows, sizes)


def _step(devices: list[Any]) -> Any:
    mesh = Mesh(np.array(devices).reshape(4, 2), ("data", "model"))
    x = jax.device_put(SQUARE, NamedSharding(mesh, P("data")))
    w = jax.device_put(SQUARE, NamedSharding(mesh, P(None, "model")))
    step = jax.jit(lambda w, x: w - 0.1 * jax.grad(lambda w: (jnp.abs(x @ w)).mean())(w))
    return step(w, x)


def _constrained(devices: list[Any]) -> Any:
    mesh = Mesh(np.array(devices), ("x",))
    columns = NamedSharding(mesh, P(None, "x"))
    rows = jax.device_put(SQUARE, NamedSharding(mesh, P("x")))
    return jax.jit(lambda x: jax.lax.with_sharding_constraint(x * 2, columns) + 1)(rows)


def _on_the_host(devices: list[Any]) -> Any:
    device = jax.sharding.SingleDeviceSharding(devices[0])
    host = device.with_memory_kind("pinned_host")
    offload = jax.jit(lambda x: x * 2, out_shardings=host)
    offloaded = offload(jax.device_put(SQUARE, device))
    return offloaded, jax.jit(lambda x: jax.device_put(x, device) + 1)(offloaded)


def _pmap(devices: list[Any]) -> Any:
    mapped_twice = jax.pmap(lambda x: x - jax.lax.pmean(x, "replica"), "replica", devices=devices)
    return mapped_twice(SQUARE.reshape(8, 16, 128))


OPERATIONS = {
    "psum, pmean": on_all_devices(
        lambda x: jax.lax.psum(x, "x") + jax.lax.pmean(x, "x"), ORDER_OF_SUMS
    ),
    "pmax, pmin": on_all_devices(lambda x: jax.lax.pmax(x, "x") - jax.lax.pmin(x, "x")),
    "all_gather": on_all_devices(lambda x: jax.lax.all_gather(x, "x", tiled=True)),
    "psum_scatter": on_all_devices(
        lambda x: jax.lax.psum_scatter(x, "x", tiled=True), ORDER_OF_SUMS
    ),
    "all_to_all": on_all_devices(lambda x: jax.lax.all_to_all(x, "x", 0, 1, tiled=True)),
    "ppermute": on_all_devices(lambda x: jax.lax.ppermute(x, "x", RING)),
    "axis_index": on_all_devices(lambda x: x * jax.lax.axis_index("x")),
    "ragged_all_to_all": Operation(_ragged, "it runs"),
    "a step on a mesh of 4×2": Operation(_step, ROUNDED),
    "with_sharding_constraint": Operation(_constrained),
    "pmap": Operation(_pmap, ORDER_OF_SUMS),
    "host memory (`pinned_host`)": Operation(_on_the_host),
}
