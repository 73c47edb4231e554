"""The search that all searches are: candidates of a program, judged by the TPU's compiler.

A space yields candidates and gets the compiler's verdict on each, so it can decide what to try
next. An interrupt ends the search, and its verdicts are kept.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from typing import Any

from tpunb._util.internal_errors import report_internal_error
from tpunb._util.logs import logger
from tpunb._util.units import byte_count
from tpunb.compiler.ask.compile_settings import Settings
from tpunb.compiler.program import TpuProgram
from tpunb.errors import TpunbError
from tpunb.errors.code_problems import is_of_this_package


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A variant of a program.

    Attributes:
        label: What it is, as in "v5e-8 with a batch of 64 a replica".
        compile: Compiles it with given settings.
        sentence: What to say if it fits, as in "A batch of 64 fits", or returns that;
            empty to say nothing.
        of: What its space knows of it, such as its batch.
        hopeless: Why it cannot fit, known without the compiler; empty if it may fit.
    """

    label: str
    compile: Callable[[Settings], TpuProgram]
    sentence: str | Callable[[], str] = ""
    of: Any = None
    hopeless: str = ""


Space = Generator[Candidate, TpuProgram, None]
Spaces = dict[str, Space]
"""Variants of a program by the name of the change, in the order to try them."""


@dataclasses.dataclass(frozen=True)
class Judged:
    """A candidate with its verdict.

    Attributes:
        candidate: The candidate.
        program: The program; None if there is no verdict.
        why: Why there is none: the candidate is hopeless or refused, or the time is over.
    """

    candidate: Candidate
    program: TpuProgram | None = None
    why: str = ""

    @property
    def sentence(self) -> str:
        """What fits, with its memory; empty if the candidate does not fit."""
        program = self.program
        if program is None or not program.ok or program.memory is None:
            return ""
        said = self.candidate.sentence
        said = said if isinstance(said, str) else said()
        return f"{said}: {byte_count(program.memory.peak)} a core." if said else ""


class Search:
    """A search, with the verdicts that are known.

    Args:
        settings: The settings of the compilations.

    Attributes:
        settings: The same.
        judged: The candidates with a verdict, in the order of the verdicts.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.judged: list[Judged] = []
        self._too_late: list[str] = []
        self._refused: list[str] = []

    @property
    def is_over(self) -> bool:
        """Whether no time is left."""
        return time.monotonic() >= self.settings.deadline.end

    def explore(self, name: str, space: Space) -> None:
        """Judge the candidates of a space, until the space or the time ends.

        Args:
            name: The change that the candidates have, for `not_tried`.
            space: The candidates.
        """
        before = len(self.judged)
        try:
            with contextlib.suppress(StopIteration):
                candidate = None if self.is_over else next(space)
                while candidate is not None:
                    program = self._compiled(candidate)
                    candidate = space.send(program)
                    candidate = None if self.is_over else candidate
        except TpunbError:  # the function has no batch, or no other TPU type fits it
            return
        except Exception as failure:  # the function may not accept another batch
            self._refused.append(f"{name}, which {_said(failure)}")
        if self.is_over and not any(each.sentence for each in self.judged[before:]):
            self._too_late.append(name)

    def judge(self, candidate: Candidate) -> Judged:
        """Return a candidate with its verdict, or with the reason why there is none."""
        why = candidate.hopeless
        if not why and self.is_over:
            why = f"not known: the time limit of {self.settings.deadline.seconds:g} s is over"
        if not why:
            try:
                self._compiled(candidate)
            except TpunbError as error:
                why = error.message
            except Exception as failure:  # the function may not accept the change
                why = _said(failure)
        if why:
            self.judged.append(Judged(candidate, why=why))
        return self.judged[-1]

    def not_tried(self, *, refused: bool = True) -> Iterator[str]:
        """Yield a sentence about each change that could not be tried.

        Args:
            refused: Whether to name changes that the function does not accept.
        """
        if self._refused and refused:
            yield f"Not tried: {'; '.join(self._refused)}"
        if self._too_late:
            limit = f"the time limit of {self.settings.deadline.seconds:g} s"
            yield f"Not tried, because {limit} is over: {', '.join(self._too_late)}."

    def _compiled(self, candidate: Candidate) -> TpuProgram:
        self.settings.progress(f"trying {candidate.label}")
        program = candidate.compile(self.settings)
        self.judged.append(Judged(candidate, program))
        return program


def _said(failure: Exception) -> str:
    """Return what an error of the user's function says; report an error of tpunb's own."""
    if is_of_this_package(traceback.extract_tb(failure.__traceback__)[-1].filename):
        report_internal_error(failure, logger("compiler"), "An alternative is left out.")
    said = next(iter(str(failure).splitlines()), "")
    return f"raises {type(failure).__name__}: {said}"
