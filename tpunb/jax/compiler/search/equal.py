"""Whether a JAX call has the same results with several layouts, on the virtual TPU."""

from __future__ import annotations

import functools
import math
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from tpunb._util.units import byte_count, counted
from tpunb.errors import TpunbError
from tpunb.jax.compiler.batches import any_batch, is_batch
from tpunb.jax.compiler.compare_meshes import (
    Run,
    compare_runs,
    mesh_of_devices,
    run_on,
    takes_mesh,
)
from tpunb.jax.compiler.functions import bytes_of
from tpunb.jax.compiler.judge import nothing_judged
from tpunb.jax.compiler.search.found import DIFFER
from tpunb.jax.compiler.search.layouts import Layout
from tpunb.machine import resources

_COPIES = 4
"""A run has so many copies of each argument and result, if they are whole on each device."""


def compare_layouts(fn: Any, args: Sequence[Any], layouts: Sequence[Layout | None]) -> str:
    """Return whether the results with two layouts are equal, or why they are not compared.

    Args:
        fn: The function.
        args: Its arguments. Shapes get numbers, and a batch as small as the layouts allow.
        layouts: The layouts; None for one device.
    """
    jax: Any = sys.modules["jax"]
    cores = max(math.prod(size for _, size in each.mesh) for each in layouts if each is not None)
    devices = len(jax.devices())
    if devices < cores:
        return (
            f"its results are not compared: JAX has {counted(devices, 'device')} of {cores}. "
            "Connect to a virtual TPU first"
        )
    try:
        smaller = _with_a_small_batch(fn, args, cores)
        needed = bytes_of(_arrays(smaller)) * _COPIES * cores
        free = resources.measure().available
        if free is not None and needed > free:
            return f"its results are not compared: that may take {byte_count(needed)} of memory"
        runs = [functools.partial(_run, fn, smaller, each) for each in layouts]
        with nothing_judged(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows = [row for row, _ in compare_runs(runs)]
    except TpunbError as error:
        return f"its results are not compared: {error.message}"
    except Exception as error:  # the function does not accept such numbers
        said = next(iter(str(error).splitlines()), type(error).__name__)
        return f"its results are not compared: {said}"
    if rows[-1].leaves:
        return f"{DIFFER}: {rows[-1].leaves[0]}"
    return "its results equal those of your own layout"


def _arrays(args: Sequence[Any]) -> list[Any]:
    leaves = sys.modules["jax"].tree_util.tree_leaves(list(args))
    return [leaf for leaf in leaves if hasattr(leaf, "dtype")]


def _with_a_small_batch(fn: Any, args: Sequence[Any], cores: int) -> Sequence[Any]:
    shapes = any(isinstance(leaf, sys.modules["jax"].ShapeDtypeStruct) for leaf in _arrays(args))
    if not shapes or takes_mesh(fn) or not is_batch(fn, args):
        return args
    before, resized = any_batch(fn, args)
    if before is None or before % cores:
        return args
    return resized(cores)


def _run(fn: Any, args: Sequence[Any], layout: Layout | None) -> Run:
    """Return a run of a function with a layout, with its own copies of the arrays."""
    jax: Any = sys.modules["jax"]
    sizes, names = ((1,), ("data",))
    if layout is not None:
        names, sizes = zip(*layout.mesh, strict=True)
    mesh = mesh_of_devices(sizes, names, (jax.sharding.AxisType.Auto,) * len(names))
    random = np.random.default_rng(0)
    values = jax.tree_util.tree_map(functools.partial(_numbers, random), list(args))
    if layout is not None:
        placed = layout.applied(args, mesh)
        values = jax.tree_util.tree_map(
            lambda value, shape: (
                jax.device_put(value, shape.sharding) if hasattr(shape, "sharding") else value
            ),
            values,
            placed,
        )
    return run_on(fn, values, mesh)


def _numbers(random: np.random.Generator, leaf: Any) -> Any:
    """Return an argument's array, or small positive numbers for a shape."""
    jax: Any = sys.modules["jax"]
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(0), leaf.shape) if leaf.shape else jax.random.key(0)
    if jax.numpy.issubdtype(leaf.dtype, jax.numpy.inexact):
        return (0.1 * random.random(leaf.shape)).astype(leaf.dtype)
    return random.integers(0, 2, leaf.shape).astype(leaf.dtype)
