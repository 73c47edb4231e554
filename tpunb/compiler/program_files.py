"""The file of a saved program: plain values and a checksum, so that reading it runs no code."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tpunb._util.atomic_files import write_file
from tpunb._util.checked_files import (
    DamagedFileError,
    NewerFileError,
    WrongFileError,
    packed,
    unpacked,
)
from tpunb._util.plain_text import plain
from tpunb.errors import TpunbError
from tpunb.version import __version__

_KIND = "program"
_FORMAT = 1
"""The format of a file. A field with a default does not change it: older releases ignore the
field, and newer releases use the default."""

_EXAMPLE = 'program.save("resnet.tpuprogram")'

_Read = TypeVar("_Read")


class ProgramFileError(TpunbError, ValueError):
    """A file of a saved program that cannot be written or read."""


def write_program(value: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a file of plain values, completely or not at all.

    Raises:
        ProgramFileError: The file cannot be written.
    """
    try:
        write_file(path, packed(_KIND, _FORMAT, {"tpunb": __version__, **value}))
    except OSError as error:
        raise ProgramFileError(
            f"Cannot write {os.fspath(path)}: {error.strerror or error}.",
            fix="Name a file in a folder that exists and that you may write to.",
        ) from None


def read_program(path: str | os.PathLike[str], parse: Callable[[Any], _Read]) -> _Read:
    """Read a file.

    Args:
        path: The file.
        parse: Makes the result of the file's values. Its errors say that the file is damaged.

    Raises:
        ProgramFileError: The file does not exist, is not a program, is damaged, or has a newer
            format.
    """
    name = plain(os.fspath(path))
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        missing = error.errno == errno.ENOENT
        raise ProgramFileError(
            f"Cannot read {name}: {error.strerror or error}.",
            fix=f"Make it first: {_EXAMPLE}." if missing else "Name a file that you may read.",
        ) from None
    try:
        return parse(unpacked(_KIND, _FORMAT, content))
    except WrongFileError as error:
        raise ProgramFileError(
            f"{name} is not a saved program: {error}.", fix=f"Save a program: {_EXAMPLE}."
        ) from None
    except NewerFileError as error:
        raise ProgramFileError(
            f"{name} was saved by a newer tpunb than {__version__}: {error}.",
            fix="pip install --upgrade tpunb",
        ) from None
    except (DamagedFileError, TypeError, LookupError, ValueError, ArithmeticError) as error:
        raise ProgramFileError(
            f"{name} is damaged: {plain(str(error))}.",
            fix="Copy it again, or save the program again.",
        ) from None
