"""The check whether the devices of a program share its work, or each device computes all of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

_TARGETS = ("sharding", "dst_sharding", "out_sharding")
"""The options with which operations cut an array over the devices inside of a program."""

_PRODUCTS = frozenset({"dot_general", "conv_general_dilated", "ragged_dot_general"})


def is_repeated(program: Any, options: Mapping[str, Any], devices: int) -> bool:
    """Return whether each of several devices computes all products of a program.

    Nothing cuts an array then: no argument, no result, and no operation.

    Args:
        program: The jaxpr.
        options: The options with which JAX lowers it.
        devices: The number of devices.
    """
    arguments, results = options.get("arg_shardings"), options.get("result_shardings")
    if devices < 2 or not arguments or any(map(_may_cut, [*arguments, *(results or ())])):
        return False
    equations = list(_equations(program))
    multiplies = any(equation.primitive.name in _PRODUCTS for equation in equations)
    return multiplies and not any(map(_cuts, equations))


def _cuts(equation: Any) -> bool:
    """Return whether an operation may cut an array over the devices."""
    if equation.primitive.name == "shard_map":
        return True
    targets = (equation.params.get(name) for name in _TARGETS)
    return any(any(axis is not None for axis in getattr(to, "spec", None) or ()) for to in targets)


def _may_cut(sharding: Any) -> bool:
    if sharding is None or type(sharding).__name__ == "UnspecifiedValue":
        return False  # XLA chooses, by the other arrays
    return not getattr(sharding, "is_fully_replicated", False)


def _equations(program: Any) -> Iterator[Any]:
    for equation in program.eqns:
        yield equation
        for value in equation.params.values():
            several: Collection[Any] = value if isinstance(value, list | tuple) else (value,)
            for each in several:
                inner = getattr(each, "jaxpr", each)
                if hasattr(inner, "eqns"):
                    yield from _equations(inner)
