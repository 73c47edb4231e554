"""The check whether the devices of a program share its work, or each device computes all of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tpunb.errors.code_problems import Problem
from tpunb.jax.checks.call import Call

TARGETS = ("sharding", "dst_sharding", "out_sharding")
"""The options with which operations cut an array over the devices inside of a program."""


def repeated_work(call: Call) -> Iterator[Problem]:
    """Yield that each of several devices computes all products of a program.

    Nothing cuts an array then: no argument, no result, and no operation.
    """
    shardings = [*call.shardings, *call.result_shardings]
    if call.devices < 2 or not call.shardings or any(map(may_cut, shardings)):
        return
    equations = [each.equation for each in call.equations]
    if call.multiplies and not any(map(_cuts, equations)):
        yield Problem(
            "repeated-work",
            f"Each of the {call.devices} cores computes all of {call.name}, because none of its "
            "arguments is sharded.",
            "If one of them is a batch, shard it: "
            'jax.device_put(batch, NamedSharding(mesh, P("data"))).',
        )


def _cuts(equation: Any) -> bool:
    """Return whether an operation may cut an array over the devices."""
    if equation.primitive.name == "shard_map":
        return True
    targets = (equation.params.get(name) for name in TARGETS)
    return any(any(axis is not None for axis in getattr(to, "spec", None) or ()) for to in targets)


def may_cut(sharding: Any) -> bool:
    """Return whether a sharding of an argument or a result may cut it."""
    if sharding is None or type(sharding).__name__ == "UnspecifiedValue":
        return False  # XLA chooses, by the other arrays
    return not getattr(sharding, "is_fully_replicated", False)
