"""Compiled programs as `tpunb.compile` returns them, alone or side by side, and its errors."""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Sequence
from typing import Any, overload

from tpunb._util.plain_text import plain
from tpunb.errors import TpunbError
from tpunb.tpu.compiled_program import Program, Share, StepTime, TpuRow
from tpunb.tpu.program_display import program_display


class CompileError(TpunbError, ValueError):
    """A program that the TPU's compiler refuses, or that it cannot be given."""


class CompilerUnavailableError(TpunbError, RuntimeError):
    """The TPU's compiler is not installed, or has no wheels for this machine."""


class _Shown:
    """Text and HTML of one program or several."""

    def __str__(self) -> str:
        return str(self._repr_mimebundle_()["text/plain"])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        del include, exclude
        programs: Any = [self] if isinstance(self, TpuProgram) else self
        return program_display().forms(programs)

    def _repr_html_(self) -> str:
        return str(self._repr_mimebundle_()["text/html"])


class TpuProgram(_Shown, Program):
    """A function as the TPU's own compiler compiled it, or why it did not.

    It shows itself as text and HTML. Its attributes are those of `Program` in
    `tpunb/tpu/compiled_program.py`: `tpu`, `replicas`, `memory`, `time`, `errors` and more.
    """

    def as_text(self) -> str:
        """The program as the compiler scheduled it: optimised HLO.

        Raises:
            CompileError: There is none, as the function does not compile or the
                compiler does not give it for this TPU.
        """
        if not self.text:
            reason = self.unknown or self.unsized or "the compiler did not return it."
            if self.errors:
                reason = "it does not compile."
            raise CompileError(f"There is no program for {self.tpu}: {reason}")
        return self.text

    def raise_if_refused(self) -> None:
        """For scripts and tests: fails where it does not compile, or nothing is known.

        Raises:
            CompileError: It does not.
        """
        if self.unknown:
            raise CompileError(
                self.headline,
                fix="Compile again, with a longer timeout or on a machine with more memory.",
            )
        if self.errors:
            raise CompileError(self.headline, fix=self.errors[0].fix)
        if self.unsized:
            raise CompileError(self.headline)

    def as_dict(self) -> dict[str, Any]:
        """Everything but the HLO, as dicts, lists, numbers and strings."""
        # By way of JSON, so that tuples are lists.
        found = json.loads(json.dumps(dataclasses.asdict(dataclasses.replace(self, text=""))))
        del found["text"]
        return {
            **found,
            "ok": self.ok,
            "examples_per_second_per_core": self.examples_per_second_per_core,
        }

    def __repr__(self) -> str:
        return f"<TpuProgram {plain(self.headline)}>"


def merged(programs: Sequence[TpuProgram]) -> TpuProgram:
    """The programs of one call: memory of the largest, the sum of their times."""
    if len(programs) == 1:
        return programs[0]
    largest = max(programs, key=lambda one: one.memory.peak if one.memory else 0)
    times = [one.time for one in programs if one.time is not None]
    note = f"It calls strategy.run {len(programs)} times; the memory is the largest program's."
    return dataclasses.replace(
        largest,
        errors=tuple(dict.fromkeys(error for one in programs for error in one.errors)),
        unknown=next((one.unknown for one in programs if one.unknown), ""),
        crashed=any(one.crashed for one in programs),
        unsized=next((one.unsized for one in programs if one.unsized), ""),
        time=_sum(times) if len(times) == len(programs) else None,
        lines=tuple(dict.fromkeys(line for one in programs for line in one.lines)),
        text="\n\n".join(one.text for one in programs if one.text),
        compile_seconds=sum(one.compile_seconds for one in programs),
        notes=tuple(dict.fromkeys([note, *(text for one in programs for text in one.notes)])),
    )


def _sum(times: Sequence[StepTime]) -> StepTime:
    total = sum(one.estimate for one in times) or 1.0
    weights = [one.estimate / total for one in times]

    def mean(name: str) -> float:
        return float(sum(w * getattr(one, name) for w, one in zip(weights, times, strict=True)))

    def shares(name: str) -> tuple[Share, ...]:
        found: dict[tuple[object, str], Share] = {}
        for share in (share for one in times for share in getattr(one, name)):
            former = found.get((share.line, share.name))
            seconds = (share.seconds or 0.0) + ((former.seconds or 0.0) if former else 0.0)
            found[share.line, share.name] = dataclasses.replace(
                former or share, seconds=seconds, fraction=seconds / total
            )
        return tuple(sorted(found.values(), key=lambda one: one.seconds or 0.0, reverse=True))

    return StepTime(
        sum(one.low for one in times),
        sum(one.high for one in times),
        mean("matmul"),
        mean("memory_bound"),
        mean("collectives_fraction"),
        shares("by_line"),
        shares("by_layer"),
        shares("by_operation"),
        shares("collectives"),
        tuple(dict.fromkeys(text for one in times for text in one.not_counted)),
        sum(one.start for one in times),
    )


class TpuPrograms(_Shown, Sequence[TpuProgram]):
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
        if not isinstance(index, str):
            return self._programs[index]
        for program in self:
            if program.tpu == index:
                return program
        raise KeyError(f"{index}: it was compiled for {', '.join(one.tpu for one in self)}")

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

    def __repr__(self) -> str:
        return f"TpuPrograms({', '.join(program.tpu for program in self)})"


_latest: TpuProgram | TpuPrograms | None = None


def remember_program(program: TpuProgram | TpuPrograms) -> None:
    """Sets the program that was compiled last."""
    global _latest
    _latest = program


def latest_program() -> TpuProgram | TpuPrograms | None:
    """The program that was compiled last in this process; None before the first."""
    return _latest
