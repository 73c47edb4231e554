"""Checks of a step's numbers: one random key for all devices, and float64."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tpunb.errors.code_problems import Problem
from tpunb.jax.checks.call import Call
from tpunb.jax.checks.collectives import summed_axes
from tpunb.jax.checks.equations import places_of
from tpunb.jax.checks.flow import SUMS, Axes, Event, Flow, Value

_DOUBLE = frozenset({"float64", "complex128"})
_BYTES = 8
_PRODUCTS = frozenset({"dot_general", "conv_general_dilated", "ragged_dot_general"})

_MANY = 1024
"""The elements of a float32 register of a TPU core (8 by 128): fewer cost next to nothing."""


def one_key(call: Call) -> Iterator[Problem]:
    """Yield the random numbers that are the same on all devices where the devices' data differ."""
    for flow in call.flows:
        for value, axes in _same_draws(flow):
            axis = ", ".join(f'"{each}"' for each in sorted(axes))
            source = next(each.source for each in flow.events if each.equation is value.draw)
            yield Problem(
                "one-key",
                "All devices draw the same random numbers here, because their key is the same. "
                f"They are used for data that differ along {axis}.",
                f"Give each device its own key: `key = jax.random.fold_in(key, "
                f"jax.lax.axis_index({axis}))` before this line.",
            ).at(places_of(source))


def _same_draws(flow: Flow) -> Iterator[tuple[Value, Axes]]:
    """Yield values of random numbers, with the axes along which they should differ and do not."""
    for event in flow.events:
        for value in event.inputs:
            if value.draw is not None and (axes := _misused(event, value)):
                yield value, axes
    is_pmap = any(
        frame.file_name.endswith("pmap.py") and "jax" in frame.file_name
        for frame in getattr(flow.equation.source_info.traceback, "frames", ())
    )
    for _, value, axes in flow.results_with_axes() if not is_pmap else ():
        same = (axes & {axis for axis, size in flow.sizes.items() if size > 1}) - value.differs
        if value.draw is not None and (same - value.sent):
            yield value, same


def _misused(event: Event, value: Value) -> Axes:
    if event.name in SUMS:
        return summed_axes(event) - value.differs - value.sent
    if len(event.inputs) == 1 or len(event.outputs) != 1:
        return frozenset()
    (result,) = event.outputs
    of_parts = frozenset().union(*(result.cut[dim] for dim in result.random))
    return of_parts - value.differs - value.sent


def float64(call: Call) -> Iterator[Problem]:
    """Yield the first operation on many float64 numbers, which no TPU has hardware for."""
    for equation, source, _ in call.equations:
        for variable in equation.outvars:
            dtype = getattr(variable.aval, "dtype", None)
            if getattr(dtype, "itemsize", 0) < _BYTES:
                continue  # a dtype's name is slow to make
            kind = str(dtype)
            is_much = (
                equation.primitive.name in _PRODUCTS or math.prod(variable.aval.shape) >= _MANY
            )
            if kind in _DOUBLE and is_much:
                yield Problem("float64", _SLOW.format(kind), _USE_FLOAT32).at(places_of(source))
                return


_SLOW = (
    "This computes in {0}, for which a TPU has no hardware. Its compiler makes many operations of "
    "each, and each number takes twice the memory."
)
_USE_FLOAT32 = "Use float32: `x.astype(jnp.float32)`, or leave out jax_enable_x64."
