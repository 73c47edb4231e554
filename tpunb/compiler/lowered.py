"""A function that is ready for libtpu, of TensorFlow or of JAX; without either of them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Protocol

from tpunb.errors.code_problems import Problem, SourceLine

Parameters = Sequence[tuple[str, bool]]
"""Of each argument of the program its name, and whether it is a variable."""

MARK = re.compile(r"~~(\d+)")
"""By which an operation of JAX is known behind its name, as names alone are shared."""


def unmarked(text: str) -> str:
    """A text of libtpu's without our marks."""
    return MARK.sub("", text)


class Origins(Protocol):
    """The places that the instructions of a program come from, by the names of their nodes."""

    def places(self, node: str) -> tuple[SourceLine, ...]:
        """The lines of the user's code that led to a node, innermost first."""

    def line(self, node: str) -> SourceLine | None:
        """The line that is shown for it."""

    def layer(self, node: str) -> str:
        """Its layer; empty where there is none."""

    def operation(self, node: str) -> str:
        """The framework's operation; empty where it is not known."""


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A replica function that libtpu can be asked about, or cannot.

    Attributes:
        origins: Where its operations came from.
        errors: What a TPU refuses before its compiler is asked.
        unknown: Why the compiler cannot be asked; empty where it can.
        module: A serialized `HloModuleProto`, of JAX a module of StableHLO; empty where there
            is none.
        jax: Whether it is JAX's.
        parameters: The module's arguments.
        notes: What a reader has to know of the figures.
    """

    origins: Origins
    errors: tuple[Problem, ...] = ()
    unknown: str = ""
    module: bytes = b""
    jax: bool = False
    parameters: Parameters = ()
    notes: tuple[str, ...] = ()
