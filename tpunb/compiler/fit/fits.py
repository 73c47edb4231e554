"""A change to a program that makes it fit, in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tpunb._util.units import byte_count
from tpunb.compiler.program import TpuProgram


class Fit(NamedTuple):
    """An alternative that fits, in one sentence, and its batch if that is smaller."""

    sentence: str
    batch: int | None = None


Ways = dict[str, Iterator[Fit]]
"""Ways in which a program may fit, by name, in the order to try them."""


def takes(program: TpuProgram) -> str:
    """Return a program's memory in words, or an empty string if it does not fit."""
    return f"{byte_count(program.memory.peak)} a core" if program.ok and program.memory else ""
