"""Where the package tells the compiler how compiled programs are shown.

The compiler calls what is registered here and imports no display. `tpunb/__init__.py`
registers `tpunb/display/compiled_programs.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    # Every `import tpunb` imports this module.
    from tpunb.tpu.compiled_program import Program


class Progress(Protocol):
    """The display of a compilation while it runs."""

    def known(self, programs: Sequence[Program], types_left: Sequence[str]) -> None:
        """Show the programs that are known, and the TPU types that are left."""


class ProgramDisplay(Protocol):
    """The interface of a display that the compiler uses."""

    def forms(self, programs: Sequence[Program]) -> dict[str, Any]:
        """Return the static forms of programs, by MIME type."""

    def compiling(self, phase: Callable[[], str]) -> AbstractContextManager[Progress]:
        """Show what `phase` returns, until the compilation ends."""

    def publish(self, programs: Sequence[Program]) -> None:
        """Show programs in the notebook's cell, if there is one."""


_registered: Callable[[], ProgramDisplay] | None = None


def register_program_display(display: Callable[[], ProgramDisplay]) -> None:
    """Set how compiled programs are shown.

    Args:
        display: Returns the display; called at each use, so that its import can wait.
    """
    global _registered
    _registered = display


def program_display() -> ProgramDisplay:
    """Return the display of compiled programs."""
    assert _registered is not None, "tpunb/__init__.py registers one"
    return _registered()
