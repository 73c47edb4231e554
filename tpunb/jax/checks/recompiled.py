"""The check of functions that a cell compiles many times."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from tpunb._util.plain_text import shortened
from tpunb.errors.code_problems import Problem, innermost

if TYPE_CHECKING:
    from tpunb.jax.virtual.jit_calls import JitCall
    from tpunb.jax.virtual.lowering import LoweredProgram

_MANY = 4
"""A function that a cell compiles so many times probably compiles again in each step."""

_MANY_IN_A_RUN = 8
"""The same for a script or a run of tests, which calls some functions with several shapes."""

_MOST_KEPT = 64
"""The number of a function's compilations that are kept for a script or a run of tests."""

_LONGEST_VALUE = 30


_PASS = (
    "Pass `{}` as an ordinary argument. Only what decides a shape or a branch in Python has to be "
    "static."
)
_KEEP_ONE = "Keep one object for `{}`, and pass what changes in it as an ordinary argument."


_Key = tuple[str, str, int]
"""The name, file and line of a function."""


class _Compiled(NamedTuple):
    arguments: tuple[str, ...]
    shardings: str
    call: JitCall | None


class Recompiled:
    """The functions that were compiled since the last `take`."""

    def __init__(self) -> None:
        self._compiled: dict[_Key, list[_Compiled]] = {}
        self._told: set[_Key] = set()

    def add(self, program: LoweredProgram, call: JitCall | None) -> None:
        """Note that a program is compiled now."""
        shardings = str(program.shardings[0])
        compiled = _Compiled(program.arguments, shardings, call)
        self._compiled.setdefault(_key(program), []).append(compiled)

    def take(self) -> Iterator[Problem]:
        """Yield the functions that were compiled many times, and forget all."""
        known, self._compiled = self._compiled, {}
        for (name, _, _), compiled in known.items():
            yield from _problems(name, compiled, _MANY)

    def take_one(self, program: LoweredProgram) -> Iterator[Problem]:
        """Yield a program's function once, if a script or tests compiled it many times."""
        key = _key(program)
        compiled = self._compiled[key]
        if key not in self._told:
            for problem in _problems(program.name, compiled, _MANY_IN_A_RUN):
                self._told.add(key)
                yield problem
        del compiled[:-_MOST_KEPT]


def _key(program: LoweredProgram) -> _Key:
    return program.name, program.file, program.line


def _problems(name: str, compiled: list[_Compiled], many: int) -> Iterator[Problem]:
    problem = _other_shapes(name, compiled, many) or _same_shapes(name, compiled, many)
    if problem is not None:
        yield problem.shown(innermost)


def _other_shapes(name: str, compiled: list[_Compiled], many: int) -> Problem | None:
    shapes = list(dict.fromkeys(each.arguments for each in compiled))
    if len(shapes) < many:
        return None
    examples = " and ".join(f"({', '.join(each[-3:])})" for each in shapes[:2])
    return Problem(
        "recompiled",
        f"{name} was compiled {len(shapes)} times, for arguments of other shapes each time: "
        f"{examples}, ….",
        "Pad them to one shape.",
    )


def _same_shapes(name: str, compiled: list[_Compiled], many: int) -> Problem | None:
    """Return that a function was compiled many times for arguments of the same types, or None."""
    same: dict[tuple[tuple[str, ...], str], list[JitCall]] = collections.defaultdict(list)
    for each in compiled:
        if each.call is not None:
            same[each.arguments, each.shardings].append(each.call)
    calls = max(same.values(), key=len, default=[])
    if len(calls) < many:
        return None
    places = [calls[-1].place] if calls[-1].place is not None else []
    changing = {
        key: values
        for key in calls[0].static
        if len(values := list(dict.fromkeys(each.static.get(key, "") for each in calls))) >= many
    }
    if changing:
        key, values = next(iter(changing.items()))
        shown = ", ".join(shortened(value, _LONGEST_VALUE) for value in values[:3])
        return Problem(
            "recompiled",
            f"{name} was compiled {len(values)} times, because its static argument `{key}` has "
            f"another value each time: {shown}, ….",
            _KEEP_ONE.format(key) if " at 0x" in values[0] else _PASS.format(key),
        ).at(places)
    # Functions that live on, such as those in a list, are compiled once each.
    if sum(each.function() is None for each in calls) < many - 1:
        return None
    return Problem(
        "recompiled",
        f"{name} was compiled {len(calls)} times for arguments of the same shapes, because jax.jit "
        "gets a new function each time.",
        "Call jax.jit once, before the loop: `step = jax.jit(f)`. In the loop, call `step`, and "
        "pass it what changes as arguments.",
    ).at(places)
