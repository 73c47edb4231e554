"""Checks of collectives in a `jax.shard_map`: one too many, one too few, a sum of means."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from tpunb.errors.code_problems import Problem
from tpunb.jax.checks.call import Call
from tpunb.jax.checks.equations import places_of
from tpunb.jax.checks.flow import SUMS, Event, Flow, Value

_SCALED = frozenset({"add", "add_any", "div", "mul", "neg", "reduce_sum", "sub"})


def repeated_sums(call: Call) -> Iterator[Problem]:
    """Yield the sums over devices of what another sum has made equal on them.

    JAX adds up a gradient with respect to a whole array by itself. A second sum then gives a
    multiple of it.
    """
    for flow in call.flows:
        for event in flow.events:
            for value in event.inputs if event.name in SUMS else ():
                axes = (value.summed & summed_axes(event)) - value.differs - value.sent
                if axes:
                    yield _repeated_sum(call, flow, event, axes)


def _repeated_sum(call: Call, flow: Flow, event: Event, axes: Iterable[str]) -> Problem:
    count, axis = _count(flow, axes), _quoted(axes)
    return Problem(
        "repeated-sum",
        f"This adds up values that are already the same on all {count} devices, because they were "
        f"added up before: the sum is {count} times as large, and a mean changes nothing. JAX "
        "itself adds up the gradient for an array that every device has whole.",
        "For the mean of the devices' gradients, take the gradient of the mean: "
        f"`{call.mean('loss', axis)}` in the function that is differentiated, and no "
        "collective after it.",
    ).at(places_of(event.source))


def summed_axes(event: Event) -> frozenset[Any]:
    """Return the mesh axes along which a sum adds up."""
    named = event.equation.params["axes"]
    return (
        frozenset(named) if event.equation.params.get("axis_index_groups") is None else frozenset()
    )


def sums_of_means(call: Call) -> Iterator[Problem]:
    """Yield the sums of the devices' means that nothing divides by the number of devices."""
    for flow in call.flows:
        used = [(event, value) for event in flow.events for value in event.inputs]
        ends = [value for event, value in used if not _only_scales(event, value)]
        sums = {
            id(value.mean.sum): value.mean.sum
            for value in (*ends, *flow.results)
            if value.mean is not None and value.mean.is_too_large
        }
        for event in flow.events:
            if id(event.equation) in sums:
                yield _sum_of_means(call, flow, event)


def _only_scales(event: Event, value: Value) -> bool:
    """Return whether an operation leaves open by what a sum of means is divided."""
    return event.name in _SCALED or any(result.mean is not None for result in event.outputs)


def _sum_of_means(call: Call, flow: Flow, event: Event) -> Problem:
    axes = summed_axes(event) & flow.sizes.keys()
    count = _count(flow, axes)
    return Problem(
        "sum-of-means",
        f"This adds up the means of {count} devices, each over its own part of the data: the "
        f"result is {count} times the mean of all.",
        f"Take the mean, `{call.mean('x', _quoted(axes))}`, or add up sums and divide once "
        "by the number of all examples.",
    ).at(places_of(event.source))


def differing_results(call: Call) -> Iterator[Problem]:
    """Yield the results that a spec promises to be the same on devices, and that differ.

    JAX finds them itself, unless `check_vma=False` tells it not to look.
    """
    for flow in call.flows:
        if flow.equation.params["check_vma"]:
            continue
        for number, value, axes in flow.results_with_axes():
            wrong = value.differs - axes - value.sent
            if wrong:
                yield _differing_result(call, flow, number, wrong)


def _differing_result(call: Call, flow: Flow, number: int, axes: Iterable[str]) -> Problem:
    params = flow.equation.params
    inner = getattr(params["jaxpr"], "jaxpr", params["jaxpr"])
    made = inner.outvars[number]
    source = next((each.source for each in flow.events if made in each.equation.outvars), None)
    spec = f"P({', '.join(map(repr, params['out_specs'][number]))})"
    axis = _quoted(axes)
    which = f"Result {number + 1} of the shard_map" if len(inner.outvars) > 1 else "The result"
    return Problem(
        "differing-result",
        f"{which} has the spec {spec}, which promises the same value on all "
        f"{_count(flow, axes)} devices along {axis}. Nothing combines the devices' parts, so each "
        "keeps another value, and JAX shows the first one's. `check_vma=False` hides this.",
        f"Combine gradients or losses first: `{call.mean('x', axis)}`. Or keep all parts, "
        f"with {axis} in out_specs. Leave out `check_vma=False`.",
    ).at(places_of(source or flow.equation))


def _count(flow: Flow, axes: Iterable[str]) -> int:
    return math.prod(flow.sizes[axis] for axis in axes)


def _quoted(axes: Iterable[str]) -> str:
    names = sorted(axes)
    return f'"{names[0]}"' if len(names) == 1 else str(tuple(names)).replace("'", '"')
