"""Settings of a compilation, as a user asks for it and as each function is compiled."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence

from tpunb._util.deadline import Deadline
from tpunb._util.options import option, parts, positive_seconds
from tpunb.errors.code_problems import Choose

_SECONDS = 300.0
"""The time limit of compiling for one type, by default."""


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Settings with which functions are compiled.

    Attributes:
        choose: Chooses the line to show, from the lines that led to an error.
        deadline: The deadline for the whole compilation.
        speed: Whether to estimate the time, which takes ten times as long.
        details: Whether to find tensors, lines and layers, beside the verdict and the peak.
        rough: Whether to read the collectives, and a time to rank programs by, from a program that
            is compiled at low effort. It takes a quarter of the time of full effort, or less.
        progress: Called with a sentence about each next step.
        choose_user: Chooses the line that uses memory and time; None for the choice of `choose`.
    """

    choose: Choose
    deadline: Deadline
    speed: bool = False
    details: bool = True
    rough: bool = False
    progress: Callable[[str], None] = lambda _: None
    choose_user: Choose | None = None


@dataclasses.dataclass(frozen=True)
class CompileOptions:
    """The options of a compilation, as a user gives them. The fields' help explains each.

    Attributes:
        progress: Called with each next step; None for a line in the notebook or the terminal.
        advice: Whether to compile variants too: what fits if the program does not, and donation.
    """

    tpus: Sequence[str] = option(
        (),
        "TPU types, such as v3-8,v5e-8; in a notebook by default the connection's",
        flag="--for",
        action="extend",
        type=parts,
        metavar="TYPE",
    )
    speed: bool = option(
        False, "also estimate the time, which takes the compiler ten times as long"
    )
    timeout: float | None = option(
        None,
        "give up after so many seconds (default: 300 for each TPU type)",
        type=positive_seconds,
        metavar="S",
    )
    recorded: str | os.PathLike[str] | None = option(  # noqa: RUF009  a field
        None,
        "a folder of recorded verdicts: it answers where the compiler is missing, and records "
        "where the compiler is",
        metavar="DIR",
    )
    progress: Callable[[str], None] | None = None
    live_arrays: bool = option(
        True,
        "judge a call of JAX alone, without the other arrays on the virtual TPU's devices",
        flag="--without-live-arrays",
        action="store_false",
    )
    advice: bool = True

    def deadline(self, types: int = 1) -> Deadline:
        """Return the deadline for compiling for some TPU types, from now on."""
        return Deadline(_SECONDS * types if self.timeout is None else self.timeout)

    def settings(self, choose: Choose, types: int, progress: Callable[[str], None]) -> Settings:
        """Return the settings with which functions are compiled for some TPU types, from now on."""
        return Settings(choose, self.deadline(types), self.speed, progress=progress)
