"""The result of comparing a JAX function's results on several meshes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from tpunb._util.plain_text import aligned, listed, plain, shortened
from tpunb._util.tables import LINED, escaped, scrolled, table
from tpunb._util.units import byte_count, duration
from tpunb.compiler.program import TpuProgram
from tpunb.errors import TpunbError
from tpunb.tpu.compiled_program import time_of_tpu

_HEAD = ("mesh", "result", "memory of a core", "collectives", "time of a call")
_LONGEST = 60


class MeshesDifferError(TpunbError, ValueError):
    """A function whose result depends on the mesh that it runs on."""


@dataclasses.dataclass(frozen=True)
class LeafDifference:
    """An array of the result that differs from the same array on the first mesh.

    Attributes:
        path: Its place in the result, such as `"['w']"`; empty for the whole.
        difference: The largest absolute difference, as a share of the largest value; infinity if
            there is no such share.
        factor: The array as a multiple of the array on the first mesh; None if it is none.
        reason: Why there is no share, such as other shapes; empty if there is one.
    """

    path: str
    difference: float
    factor: float | None = None
    reason: str = ""

    def __str__(self) -> str:
        name = f"result{self.path}"
        if self.reason:
            return f"{name} {self.reason}"
        if self.factor is not None:
            return f"{name} is {self.factor:.4g} times as large"
        return f"{name} differs by {self.difference:.2g} of its largest value"


@dataclasses.dataclass(frozen=True)
class OnMesh:
    """A function on one mesh.

    Attributes:
        axes: The names and sizes of the mesh's axes.
        difference: The largest relative difference from the first mesh; 0.0 for the first mesh.
        leaves: The arrays that differ by more than rounding does.
        program: What the TPU's compiler says; None if it was not asked.
    """

    axes: tuple[tuple[str, int], ...]
    difference: float
    leaves: tuple[LeafDifference, ...] = ()
    program: TpuProgram | None = None

    @property
    def shape(self) -> str:
        """The sizes of the axes: `"4 × 2"`."""
        return " × ".join(str(size) for _, size in self.axes)


@dataclasses.dataclass(frozen=True)
class MeshComparison:
    """A function's results on several meshes.

    Attributes:
        rows: The function on each mesh. Results are compared with those on the first mesh.
        note: Why there are no figures of the TPU's compiler; empty if there are.
    """

    rows: tuple[OnMesh, ...]
    note: str = ""

    @property
    def is_equal(self) -> bool:
        """True if the results on all meshes are equal, apart from rounding."""
        return not any(row.leaves for row in self.rows)

    @property
    def headline(self) -> str:
        """The verdict in a sentence."""
        first = self.rows[0].shape
        wrong = [row for row in self.rows if row.leaves]
        if not wrong:
            return f"The results on all {len(self.rows)} meshes are equal, apart from rounding."
        meshes = listed([row.shape for row in wrong])
        return f"On {meshes}, the results differ from those on {first}: {wrong[0].leaves[0]}."

    def raise_if_different(self) -> None:
        """Raise an error if the results depend on the mesh; for tests.

        Raises:
            MeshesDifferError: They do.
        """
        if not self.is_equal:
            raise MeshesDifferError(
                self.headline,
                fix="Look for a missing jax.lax.psum or pmean, a mean over a part of the batch, or "
                "a spec that names another axis.",
            )

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for number, row in enumerate(self.rows):
            equal = f"equal ({row.difference:.1g})" if row.difference else "equal"
            result = "; ".join(str(leaf) for leaf in row.leaves[:3]) or equal
            memory = collectives = time = ""
            if (program := row.program) is not None:
                collectives = ", ".join(map(str, program.collectives)) or "none"
                if program.memory is not None:
                    memory = byte_count(program.memory.peak)
                if program.time is not None:
                    time = time_of_tpu(program.time)
            yield row.shape, result if number else "compared with", memory, collectives, time

    @property
    def _notes(self) -> list[str]:
        """The note, and how long the host takes to start a call if that is longer than the call."""
        times = [row.program.time for row in self.rows if row.program and row.program.time]
        starts = [time.start for time in times if time.host_decides]
        notes = [self.note] if self.note else []
        if starts:
            notes.append(f"The host takes up to {duration(max(starts))} more to start a call.")
        return notes

    def __str__(self) -> str:
        rows = [tuple(shortened(cell, _LONGEST) for cell in row) for row in self._rows()]
        return plain("\n".join([self.headline, *aligned([_HEAD, *rows], "  "), *self._notes]))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("MeshComparison(...)" if cycle else str(self))

    def _repr_html_(self) -> str:
        shown = table(list(self._rows()), head=_HEAD, named=True, style=LINED)
        notes = "".join(f"<p>{escaped(note)}</p>" for note in self._notes)
        return f"<p><b>{escaped(self.headline)}</b></p>{scrolled(shown)}{notes}"
