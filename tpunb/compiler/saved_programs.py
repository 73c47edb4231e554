"""Compiled programs read from files, which needs neither the compiler nor TensorFlow."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpunb._util.plain_values import record_from
from tpunb.compiler.program import TpuProgram, TpuPrograms
from tpunb.compiler.program_files import read_program
from tpunb.tpu.compiled_program import Provenance


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
