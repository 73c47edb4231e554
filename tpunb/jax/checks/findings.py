"""What the checks find in the programs of one connection, until it is shown."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tpunb.errors import TpuWarning, below_cells
from tpunb.errors.code_problems import Problem
from tpunb.jax.checks.call import Call
from tpunb.jax.checks.donated import Donors
from tpunb.jax.checks.recompiled import Recompiled
from tpunb.jax.checks.table import findings, is_shown_elsewhere, sentence
from tpunb.jax.virtual.dry_record import present_line
from tpunb.jax.virtual.jit_calls import present_jit_call
from tpunb.jax.virtual.memory import LiveArray, names_of
from tpunb.machine.keras_internals import layout_map, model_call

if TYPE_CHECKING:
    from tpunb.jax.virtual.lowering import LoweredProgram


class Findings:
    """The findings of one connection: sentences below a cell, or warnings in scripts and tests.

    Args:
        namespace: The notebook's names, for sentences about arrays.
    """

    def __init__(self, namespace: Mapping[str, Any]) -> None:
        self._namespace = namespace
        self._recompiled, self._donors = Recompiled(), Donors()
        self._said: set[str] = set()
        self._new: list[str] = []

    def look_at(self, program: LoweredProgram, devices: int, moved: Sequence[LiveArray]) -> None:
        """Look at a program that is compiled for the first time.

        Raises:
            TpuWarning: It has a finding, nothing shows it, and the user made warnings errors.
        """
        if program.traced is None or program.is_of_jax:
            return
        jit_call = present_jit_call()
        self._recompiled.add(program, jit_call)
        if not is_shown_elsewhere(program.file):  # a cell of `%%tpu_run` donates its own copies
            self._donors.add(program, jit_call)
        call = Call(
            program.name,
            program.traced,
            devices,
            *program.shardings,
            moved,
            functools.partial(_name_of, self._namespace),
            None if layout_map() is None else _fitted_model(),
        )
        found = findings(call)
        if below_cells.is_shown:
            self._add(found)
        else:
            self._warn_once([*found, *self._recompiled.take_one(program)], program)

    def take(self, error: BaseException | None = None) -> list[str]:
        """Return the sentences since the last call of this method, which were never said before.

        Args:
            error: The error that ended the cell; None if there was none.
        """
        self._add(self._recompiled.take())
        new, self._new = self._new, []
        return [*new, *map(sentence, self._donors.about(error))]

    def _add(self, found: Iterable[Problem]) -> None:
        for text in map(sentence, found):
            if text not in self._said:
                self._said.add(text)
                self._new.append(text)

    def _warn_once(self, found: Iterable[Problem], program: LoweredProgram) -> None:
        """Warn of what is found in a function, once for each function."""
        for problem in found:
            told = f"{program.file}:{program.line} {sentence(problem)}"
            if told not in self._said:
                self._said.add(told)
                _warn(problem)


def _warn(problem: Problem) -> None:
    """Warn at the user's line, which Python shows."""
    known = problem.file and problem.line is not None
    file, line = (problem.file, problem.line or 0) if known else present_line()
    warnings.warn_explicit(f"{problem.reason} {problem.fix}", TpuWarning, file, line)


def _fitted_model() -> Any:
    call = model_call(sys._getframe())
    return None if call is None else call.model


def _name_of(namespace: Mapping[str, Any], array: Any) -> str:
    return names_of([array], namespace).get(id(array), "")
