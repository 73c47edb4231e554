"""The calls that took an array which is used again: functions that donate such arrays."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpunb.errors.code_problems import Problem, innermost

if TYPE_CHECKING:
    from tpunb.jax.virtual.jit_calls import JitCall
    from tpunb.jax.virtual.lowering import LoweredProgram

# JAX 0.7 to 0.12 names the type where the array is read, and not where a compiled program gets it.
_DELETED = re.compile(r"Array has been deleted with shape=(\S+)\.|[Bb]uffer has been deleted")
_MOST = 3


class Donors:
    """The functions that donate arguments."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int], tuple[frozenset[str], JitCall | None]] = {}

    def add(self, program: LoweredProgram, call: JitCall | None) -> None:
        """Note a program that is compiled now."""
        if program.donated:
            key = program.name, program.file, program.line
            self._known[key] = program.donated, call

    def about(self, error: BaseException | None) -> Iterator[Problem]:
        """Yield the functions that may have taken the array that an error is about."""
        deleted = _DELETED.search(str(error)) if error is not None else None
        if deleted is None:
            return
        kind = deleted[1]
        takers = [
            (name, call)
            for (name, _, _), (donated, call) in self._known.items()
            if kind is None or kind in donated
        ]
        for name, call in takers[-_MOST:]:
            places = [call.place] if call is not None and call.place is not None else []
            yield (
                Problem(
                    "donated-array",
                    f"Each call of {name} deletes {f'{kind} ' if kind else ''}arrays that it gets, "
                    "because it donates them (`donate_argnums`).",
                    f"Assign its result to the same name: `x = {name}(x, ...)`.",
                )
                .at(places)
                .shown(innermost)
            )
