"""The programs that a cell compiled for a virtual TPU, shown below the cell."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from IPython.display import DisplayHandle, display

from tpunb.connection.tpu_connection import open_connections
from tpunb.errors import below_cells
from tpunb.notebook.reports import Sentence

if TYPE_CHECKING:
    from tpunb.jax.connection.connection import JaxConnection
    from tpunb.tpu.compiled_program import Program


class JudgedPrograms:
    """A display of the programs that became known since the last cell.

    Args:
        shell: The shell.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def install(self) -> None:
        """Begin with the next cell."""
        if (connection := _jax_connection()) is not None:
            judge = connection.judge
            judge.take_new()  # an installed virtual TPU has judged programs before
            judge.take_waiting()
            judge.findings.take()
        below_cells.is_shown = True
        self._shell.events.register("post_run_cell", self._show)

    def remove(self) -> None:
        """End the display."""
        below_cells.is_shown = False
        self._shell.events.unregister("post_run_cell", self._show)

    def _show(self, result: Any = None) -> None:
        if (connection := _jax_connection()) is None:
            return
        judge = connection.judge
        if new := judge.take_new():
            display(_bundle(new), raw=True)
        if waiting := judge.take_waiting():
            _Later(waiting)
        for sentence in judge.findings.take(getattr(result, "error_in_exec", None)):
            display(Sentence(sentence))
        if said := connection.overflow():
            display(Sentence(said))


def _jax_connection() -> JaxConnection | None:
    """Return the connection to JAX's virtual TPU, which may be installed and not connected to."""
    connections: list[Any] = list(open_connections())
    return next((each for each in connections if hasattr(each, "judge")), None)


class _Later:
    """Verdicts that come after the cell, in the cell's output.

    Args:
        waiting: The names of the programs, with the function that calls back with each program.
    """

    def __init__(self, waiting: Sequence[tuple[str, Callable[[Any], None]]]) -> None:
        self._names = [name for name, _ in waiting]
        self._known: list[Program] = []
        self._lock = threading.Lock()
        self._handle: DisplayHandle = display(self._waiting(), raw=True, display_id=True)
        for _, when_known in waiting:
            when_known(self._show)

    def _waiting(self) -> dict[str, str]:
        names = ", ".join(self._names[len(self._known) :])
        return {"text/plain": f"The TPU's compiler is judging {names}."}

    def _show(self, program: Program) -> None:
        with self._lock:
            self._known.append(program)
            self._handle.update(_bundle(self._known), raw=True)


def _bundle(programs: Sequence[Program]) -> dict[str, str]:
    from tpunb.display.draw.programs.judged import programs_html, programs_text

    return {"text/plain": programs_text(programs), "text/html": programs_html(programs)}
