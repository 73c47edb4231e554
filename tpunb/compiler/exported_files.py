"""Programs that another process has exported: `jax.export` files, and StableHLO.

JAX need not be imported: a `jax.export` file is a FlatBuffer, and only three of its fields matter.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tpunb.compiler.ask import libtpu, recorded_verdicts
from tpunb.compiler.ask.compile_settings import CompileOptions
from tpunb.compiler.ask.exported_modules import prepared_module
from tpunb.compiler.ask.partial_answers import for_each_type
from tpunb.compiler.ask.topologies import Target, targets
from tpunb.compiler.ask.verdict import program_for, reporting
from tpunb.compiler.program import CompileError, TpuProgram, TpuPrograms
from tpunb.errors.code_problems import innermost

JAX_EXPORT, STABLEHLO = "jax-export", "stablehlo"

_BYTECODE = b"ML\xefR"
"""The first bytes of MLIR's bytecode."""

_FUNCTION, _PLATFORMS, _MODULE = 6, 22, 30
"""The fields of `Exported` in JAX's serialization.fbs: their places in the table of offsets."""

_AGAIN = (
    'Export it for TPUs: jax.export.export(jax.jit(step), platforms=["tpu"])(*args).serialize().'
)


class ExportedFile(NamedTuple):
    """The program in a file.

    Attributes:
        kind: `JAX_EXPORT` or `STABLEHLO`.
        module: The StableHLO module, as text or as bytecode.
        name: The function's name; empty if unknown.
    """

    kind: str
    module: bytes
    name: str = ""


def exported_file(path: str | os.PathLike[str]) -> ExportedFile | None:
    """Return the program in a file, or None if the file has none.

    Raises:
        OSError: The file cannot be read.
        CompileError: JAX has exported the program for other platforms.
    """
    content = Path(path).read_bytes()
    if content.startswith(_BYTECODE):
        return ExportedFile(STABLEHLO, content)
    try:
        return _jax_export(content)
    except CompileError:  # which is a ValueError too
        raise
    except (struct.error, IndexError, UnicodeDecodeError, ValueError):
        pass
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return ExportedFile(STABLEHLO, content) if "func.func" in text else None


def _jax_export(content: bytes) -> ExportedFile:
    """Return the program in a `jax.export` file.

    Raises:
        ValueError: It is another file, as do the other errors of reading it.
        CompileError: The program is not for TPUs.
    """
    table = _Table(content, _unsigned(content, 0))
    module = table.bytes(_MODULE)
    if not module.startswith(_BYTECODE):
        raise ValueError("it has no module")
    name, platforms = table.text(_FUNCTION), table.texts(_PLATFORMS)
    if list(platforms) != ["tpu"]:
        raise CompileError(
            f"JAX has exported {name or 'the function'} for {', '.join(platforms)}, not for TPUs.",
            fix=_AGAIN,
        )
    return ExportedFile(JAX_EXPORT, module, name)


class _Table:
    """A table of a FlatBuffer. See "FlatBuffer internals" in its documentation.

    Args:
        content: The buffer.
        position: The table's place.
    """

    def __init__(self, content: bytes, position: int) -> None:
        self._content, self._position = content, position
        self._offsets = position - struct.unpack_from("<i", content, position)[0]
        if self._offsets < 0:
            raise ValueError("it is not a FlatBuffer")
        self._size = struct.unpack_from("<H", content, self._offsets)[0]

    def bytes(self, field: int) -> bytes:
        """Return a field with bytes, empty if it is missing."""
        place = self._place(field)
        return b"" if place is None else _vector(self._content, place)

    def text(self, field: int) -> str:
        """Return a field with text."""
        return self.bytes(field).decode("utf-8")

    def texts(self, field: int) -> Sequence[str]:
        """Return a field with several texts."""
        place = self._place(field)
        if place is None:
            return []
        vector = place + _unsigned(self._content, place)
        count = _unsigned(self._content, vector)
        if count > 100:
            raise ValueError("it has too many texts")
        places = [vector + 4 + 4 * number for number in range(count)]
        return [_vector(self._content, each).decode("utf-8") for each in places]

    def _place(self, field: int) -> int | None:
        if field >= self._size:
            return None
        offset = struct.unpack_from("<H", self._content, self._offsets + field)[0]
        return self._position + offset if offset else None


def _unsigned(content: bytes, place: int) -> int:
    return int(struct.unpack_from("<I", content, place)[0])


def _vector(content: bytes, place: int) -> bytes:
    begin = place + _unsigned(content, place)
    size = _unsigned(content, begin)
    if begin + 4 + size > len(content):
        raise ValueError("it is cut off")
    return content[begin + 4 : begin + 4 + size]


def compile_exported(
    exported: ExportedFile,
    options: CompileOptions,
) -> TpuPrograms:
    """Compile an exported program.

    Args:
        exported: The program.
        options: How to compile, and for which TPU types. A program for one device runs on one
            core; a program for several devices needs a type with as many cores.

    Raises:
        CompileError: The program cannot be read, or needs another number of cores.
        CompilerUnavailableError: There is no compiler.
    """
    with recorded_verdicts.recorded_in(options.recorded), reporting(options.progress) as say:
        libtpu.start(speed=options.speed)
        kinds = targets(options.tpus)
        settings = options.settings(innermost, len(kinds), say)
        prepare = functools.cache(lambda: prepared_module(exported.module, settings))

        def compiled(kind: Target) -> TpuProgram:
            prepared, devices = prepare()
            cores = kind.tpu.num_devices
            if devices not in {1, cores}:
                raise CompileError(
                    f"The program is for {devices} devices, but a {kind.tpu.name} has {cores} "
                    "cores.",
                    fix=f"Choose a type with {devices} cores, or export it with another mesh.",
                )
            target = dataclasses.replace(kind, replicas=1, partitions=devices)
            return program_for(prepared, target, settings)

        return for_each_type(kinds, compiled, lambda _, program: program)
