"""Programs for several TPU types, side by side."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from typing import Any, overload

from tpunb.compiler.program import TpuProgram
from tpunb.tpu.compiled_program import TpuRow


class TpuPrograms(Sequence[TpuProgram]):
    """A function compiled for several TPU types.

    Args:
        programs: One for each type, in the order in which they were asked for.
    """

    def __init__(self, programs: Sequence[TpuProgram]) -> None:
        self._programs = tuple(programs)

    @overload
    def __getitem__(self, index: int | str) -> TpuProgram: ...
    @overload
    def __getitem__(self, index: slice) -> TpuPrograms: ...
    def __getitem__(self, index: int | str | slice) -> TpuProgram | TpuPrograms:
        """A program by its place or by its TPU type."""
        if isinstance(index, slice):
            return TpuPrograms(self._programs[index])
        if isinstance(index, str):
            return self._named(index)
        return self._programs[index]

    def _named(self, tpu: str) -> TpuProgram:
        for program in self:
            if program.tpu == tpu:
                return program
        raise KeyError(f"{tpu}: it was compiled for {', '.join(one.tpu for one in self)}")

    def __len__(self) -> int:
        return len(self._programs)

    @property
    def ok(self) -> bool:
        """Whether it compiles and fits on all of them."""
        return all(program.ok for program in self)

    def rows(self) -> tuple[TpuRow, ...]:
        """The table "which TPU do I need"."""
        return tuple(program.row for program in self)

    def raise_if_refused(self) -> None:
        """Fails where one of them does not compile.

        Raises:
            CompileError: For the first that does not.
        """
        for program in self:
            program.raise_if_refused()

    def as_dict(self) -> dict[str, Any]:
        """The programs' dicts by TPU type."""
        return {program.tpu: program.as_dict() for program in self}

    def to_pandas(self) -> Any:
        """The table as a `pandas.DataFrame`, indexed by TPU type."""
        pd = importlib.import_module("pandas")
        frame = pd.DataFrame([dataclasses.asdict(row) for row in self.rows()])
        return frame.set_index("tpu")

    def __str__(self) -> str:
        return str(self._repr_mimebundle_()["text/plain"])

    def __repr__(self) -> str:
        return f"TpuPrograms({', '.join(program.tpu for program in self)})"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from tpunb.display.draw.programs_html import programs_bundle

        del include, exclude
        return programs_bundle(self)

    def _repr_html_(self) -> str:
        return str(self._repr_mimebundle_()["text/html"])
