"""A kind of operation, and the ways to run it on devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

SAME = "the same"

SQUARE = np.random.default_rng(0).normal(size=(128, 128)).astype("float32")


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """A kind of operation.

    Attributes:
        run: Runs it on a list of devices, and returns its results.
        on_a_tpu: What its results on a TPU are, beside those of CPU devices.
    """

    run: Callable[[list[Any]], Any]
    on_a_tpu: str = SAME


def on_one_device(
    function: Callable[..., Any], *values: Any, on_a_tpu: str = SAME, **options: Any
) -> Operation:
    """Return the operation that calls a compiled function on the first device.

    Args:
        function: The function.
        values: Its arguments; by default a square array.
        on_a_tpu: What differs on a TPU.
        options: Options of `jax.jit`.
    """

    def run(devices: list[Any]) -> Any:
        return jax.jit(function, **options)(*jax.device_put(values or (SQUARE,), devices[0]))

    return Operation(run, on_a_tpu)


def on_all_devices(function: Callable[..., Any], on_a_tpu: str = SAME) -> Operation:
    """Return the operation that maps a function over all devices, along the axis `x`."""

    def run(devices: list[Any]) -> Any:
        mesh = Mesh(np.array(devices), ("x",))
        return mapped(function, mesh)(jax.device_put(SQUARE, NamedSharding(mesh, P("x"))))

    return Operation(run, on_a_tpu)


def mapped(function: Callable[..., Any], mesh: Mesh) -> Callable[..., Any]:
    """Return a compiled function of the rows on each device of a mesh."""
    options = {"in_specs": P("x"), "out_specs": P("x"), "check_vma": False}
    compiled: Callable[..., Any] = jax.jit(jax.shard_map(function, mesh=mesh, **options))
    return compiled
