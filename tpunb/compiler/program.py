"""Compiled programs as `tpunb.compile` returns them, single or side by side, and in files."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from tpunb._util.plain_text import plain
from tpunb._util.plain_values import record_from
from tpunb.compiler.fit.memory_limits import limit_in_bytes, limit_phrase
from tpunb.compiler.program_files import read_program, write_program
from tpunb.errors import CompileError as CompileError
from tpunb.errors import CompilerUnavailableError as CompilerUnavailableError
from tpunb.errors import DoesNotFitError as DoesNotFitError
from tpunb.errors import NotKnownError as NotKnownError
from tpunb.errors import NotRecordedError as NotRecordedError
from tpunb.framework import program_display
from tpunb.tpu.compiled_program import Program, Provenance, Share, StepTime, TpuRow
from tpunb.tpu.families import HARDWARE
from tpunb.tpu.types import accelerator


class _Shown:
    """The text, the HTML and the file of one program or several."""

    def __str__(self) -> str:
        return str(self._repr_mimebundle_()["text/plain"])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        del include, exclude
        programs: Any = [self] if isinstance(self, TpuProgram) else self
        return program_display().forms(programs)

    def _repr_html_(self) -> str:
        return str(self._repr_mimebundle_()["text/html"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the program or programs to a file, which `tpunb.load_program` reads on any machine.

        Args:
            path: The file, such as `"resnet.tpuprogram"`.

        Raises:
            ProgramFileError: The file cannot be written.
        """
        several = not isinstance(self, TpuProgram)
        programs: Any = self if several else [self]
        plain_values = [dataclasses.asdict(program) for program in programs]
        write_program({"several": several, "programs": plain_values}, path)


class TpuProgram(_Shown, Program):
    """A function compiled by the TPU's own compiler, or the reason why it does not compile.

    It displays itself as text and HTML. `Program` in `tpunb/tpu/compiled_program.py` lists its
    attributes: `tpu`, `replicas`, `memory`, `time`, `errors` and more.
    """

    def as_text(self) -> str:
        """Return the program as the compiler scheduled it: optimised HLO.

        Raises:
            CompileError: The function does not compile, or the compiler does not return the
                text for this TPU.
        """
        if not self.text:
            reason = self.unknown or self.unsized or "the compiler did not return it."
            if self.errors:
                reason = "it does not compile."
            raise CompileError(f"There is no program for {self.label}: {reason}")
        return self.text

    def raise_if_refused(self) -> None:
        """Raise an error if the function does not compile or nothing is known, for scripts.

        Raises:
            DoesNotFitError: The program takes more memory than a core has.
            CompileError: The function does not compile for another reason.
            NotKnownError: Nothing is known.
        """
        if self.unknown:
            raise NotKnownError(
                self.headline,
                fix="Compile again, with a longer timeout or on a machine with more memory.",
            )
        memory = self.memory
        if self.errors:
            fix = self.errors[0].fix
            if memory is None or any(error.code != "memory" for error in self.errors):
                raise CompileError(self.headline, fix=fix)
            raise DoesNotFitError(
                self.headline, fix=fix, tpu=self.tpu, needed=memory.peak, limit=memory.available
            )
        if self.unsized:
            raise NotKnownError(self.headline)

    def raise_if_unfit(self, limit: int | float | str | None = None) -> None:
        """Raise an error unless the program is known to compile and to fit, for tests.

        Args:
            limit: The memory that the program may take on a core: a number of bytes, a fraction of
                the available memory such as 0.9, or a text such as `"12 GiB"` or `"90%"`. By
                default, all of the available memory.

        Raises:
            DoesNotFitError: The program takes more memory. The message names the TPU type, the
                memory and the limit.
            NotKnownError: It is not known whether it fits.
            CompileError: The function does not compile for another reason.
            LimitError: The limit is not such a value.
        """
        available = self.memory.available if self.memory is not None else _usable(self.tpu)
        most = limit_in_bytes(limit, available)
        self.raise_if_refused()
        if self.memory is None:
            raise NotKnownError(f"{self.label}: compiles, but its memory is not known.")
        if self.memory.exceeds(most):
            raise DoesNotFitError(
                f"{self.label}: the program takes {self.memory.takes} a core, more than "
                f"{limit_phrase(most, available)}.",
                fix="Use a smaller batch or a larger TPU type, or raise the limit.",
                tpu=self.tpu,
                needed=self.memory.needs,
                limit=most,
            )

    def as_dict(self) -> dict[str, Any]:
        """Return everything except the HLO, as dicts, lists, numbers and strings."""
        # JSON turns tuples into lists.
        values = json.loads(json.dumps(dataclasses.asdict(dataclasses.replace(self, text=""))))
        del values["text"]
        return {
            **values,
            "ok": self.ok,
            "examples_per_second_per_core": self.examples_per_second_per_core,
        }

    def __repr__(self) -> str:
        return f"<TpuProgram {plain(self.headline)}>"


def merged(programs: Sequence[TpuProgram]) -> TpuProgram:
    """Return the programs of one call as one: the largest one's memory, and the sum of times."""
    if len(programs) == 1:
        return programs[0]
    largest = max(programs, key=lambda program: program.memory.peak if program.memory else 0)
    times = [program.time for program in programs if program.time is not None]
    note = f"It calls strategy.run {len(programs)} times. The memory is the largest program's."
    return dataclasses.replace(
        largest,
        errors=tuple(dict.fromkeys(error for program in programs for error in program.errors)),
        unknown=next((program.unknown for program in programs if program.unknown), ""),
        crashed=any(program.crashed for program in programs),
        provenance=_oldest([program.provenance for program in programs]),
        unsized=next((program.unsized for program in programs if program.unsized), ""),
        time=_sum(times) if len(times) == len(programs) else None,
        lines=tuple(dict.fromkeys(line for program in programs for line in program.lines)),
        text="\n\n".join(program.text for program in programs if program.text),
        compile_seconds=sum(program.compile_seconds for program in programs),
        notes=tuple(dict.fromkeys([note, *(text for each in programs for text in each.notes)])),
    )


def _usable(tpu: str) -> int:
    """Return the bytes that a program can use on a core of a TPU type."""
    return HARDWARE[accelerator(tpu).family].usable_bytes


def _oldest(origins: Sequence[Provenance | None]) -> Provenance | None:
    """Return the first provenance, which is recorded if any of them is."""
    known = sorted(filter(None, origins), key=lambda each: (not each.recorded, each.time))
    return known[0] if known else None


def _sum(times: Sequence[StepTime]) -> StepTime:
    total = sum(time.estimate for time in times) or 1.0
    weights = [time.estimate / total for time in times]

    def mean(name: str) -> float:
        return float(sum(w * getattr(time, name) for w, time in zip(weights, times, strict=True)))

    def shares(name: str) -> tuple[Share, ...]:
        merged_shares: dict[tuple[object, str], Share] = {}
        for share in (share for time in times for share in getattr(time, name)):
            former = merged_shares.get((share.line, share.name))
            seconds = (share.seconds or 0.0) + ((former.seconds or 0.0) if former else 0.0)
            merged_shares[share.line, share.name] = dataclasses.replace(
                former or share, seconds=seconds, fraction=seconds / total
            )
        return tuple(
            sorted(merged_shares.values(), key=lambda each: each.seconds or 0, reverse=True)
        )

    figures: dict[str, Any] = {
        **{name: sum(getattr(time, name) for time in times) for name in ("low", "high", "start")},
        **{name: mean(name) for name in ("matmul", "memory_bound", "collectives_fraction")},
        **{name: shares(name) for name in ("by_line", "by_layer", "by_operation", "collectives")},
    }
    not_counted = dict.fromkeys(text for time in times for text in time.not_counted)
    return StepTime(**figures, not_counted=tuple(not_counted))


class TpuPrograms(_Shown, Sequence[TpuProgram]):
    """A function compiled for several TPU types.

    Args:
        programs: One program for each type, in the order of the request.
    """

    def __init__(self, programs: Sequence[TpuProgram]) -> None:
        self._programs = tuple(programs)

    @overload
    def __getitem__(self, index: int | str) -> TpuProgram: ...
    @overload
    def __getitem__(self, index: slice) -> TpuPrograms: ...
    def __getitem__(self, index: int | str | slice) -> TpuProgram | TpuPrograms:
        """Return a program by its position or its TPU type."""
        if isinstance(index, slice):
            return TpuPrograms(self._programs[index])
        if not isinstance(index, str):
            return self._programs[index]
        for program in self:
            if program.tpu == index:
                return program
        types = ", ".join(program.tpu for program in self)
        raise KeyError(f"{index}: the function was compiled for {types}")

    def __len__(self) -> int:
        return len(self._programs)

    @property
    def ok(self) -> bool:
        """True if the function compiles and fits on all types."""
        return all(program.ok for program in self)

    def rows(self) -> tuple[TpuRow, ...]:
        """Return the table "which TPU do I need"."""
        return tuple(program.row for program in self)

    def raise_if_refused(self) -> None:
        """Raise an error if the function does not compile for one of the types.

        Raises:
            CompileError: The function does not compile for this type.
        """
        for program in self:
            program.raise_if_refused()

    def raise_if_unfit(self, limit: int | float | str | None = None) -> None:
        """Raise an error unless the program is known to fit on all of the types.

        Args:
            limit: The memory that it may take on a core, as for `TpuProgram.raise_if_unfit`.

        Raises:
            CompileError: As for `TpuProgram.raise_if_unfit`, for the first such type.
        """
        for program in self:
            program.raise_if_unfit(limit)

    def as_dict(self) -> dict[str, Any]:
        """Return the programs' dicts by TPU type."""
        return {program.tpu: program.as_dict() for program in self}

    def to_pandas(self) -> Any:
        """Return the table as a `pandas.DataFrame`, indexed by TPU type."""
        pd = importlib.import_module("pandas")
        frame = pd.DataFrame([dataclasses.asdict(row) for row in self.rows()])
        return frame.set_index("tpu")

    def __repr__(self) -> str:
        return f"TpuPrograms({', '.join(program.label for program in self)})"


def load_program(path: str | os.PathLike[str]) -> TpuProgram | TpuPrograms:
    """Load a program that `TpuProgram.save` or `TpuPrograms.save` has written.

    It shows, compares and asserts like a program that was compiled here, and says when and by
    which compiler it was made. This needs no compiler, no TensorFlow and no JAX, on any system.
    The file may come from a stranger: it contains no code.

    Example:
        >>> import tensorflow as tf
        >>> program = tpunb.compile(tf.nn.relu, tf.TensorSpec([8, 128]), tpu="v5e-8")
        >>> program.save("relu.tpuprogram")
        >>> tpunb.load_program("relu.tpuprogram").tpu
        'v5e-8'

    Args:
        path: The file.

    Returns:
        The program, or the table of programs.

    Raises:
        ProgramFileError: The file does not exist, is not a program, is damaged, or has a newer
            format.
    """
    return read_program(path, functools.partial(_programs, Path(path).name))


def _programs(name: str, value: Any) -> TpuProgram | TpuPrograms:
    """Return the programs among a file's values.

    Args:
        name: The name of the file.
        value: The values.
    """
    if not isinstance(value, Mapping) or not isinstance(value["programs"], list):
        raise TypeError("it has no programs")
    programs = [_named(record_from(TpuProgram, each), name) for each in value["programs"]]
    for program in programs:
        _ = program.headline, program.row, program.cores  # raises if its figures make no sense
    if value["several"] is True:
        return TpuPrograms(programs)
    (program,) = programs
    return program


def _named(program: TpuProgram, name: str) -> TpuProgram:
    """Return a program that says which file it comes from."""
    known = program.provenance or Provenance()
    return dataclasses.replace(program, provenance=dataclasses.replace(known, file=name))


_latest: TpuProgram | TpuPrograms | None = None


def remember_program(program: TpuProgram | TpuPrograms) -> None:
    """Remember the program that was compiled last."""
    global _latest
    _latest = program


def latest_program() -> TpuProgram | TpuPrograms | None:
    """Return the program that was compiled last in this process, or None."""
    return _latest
