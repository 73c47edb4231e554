"""Files for a page: ES modules joined into one, style sheets, and columns packed in a buffer.

Pages and saved forms have some constants in common. Python defines them, and `es_module` writes
them into the module.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tpunb.display.draw import colours

_FOLDER = Path(__file__).parent
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(?P<file>[\w./-]+)";\n', re.MULTILINE)
_CONSTANTS = {"PALETTE": colours.HOST_COLOURS}
_EXPORT = re.compile(r"^export (?=(?:async )?function|const|class|let)", re.MULTILINE)


@functools.cache
def es_module(file: str, *scripts: str) -> str:
    """Return the constants, a module's imports from this folder and the module, joined into one.

    Names are not changed, so modules that are joined must not declare the same name twice.

    Args:
        file: The module's file in this folder.
        scripts: Files of plain scripts whose globals the module uses.
    """
    parts = [f"const {name} = {json.dumps(value)};" for name, value in _CONSTANTS.items()]
    parts += map(_read, scripts)
    seen: set[str] = set()
    _collect(file, parts, seen)
    return "\n".join(parts)


def _collect(file: str, parts: list[str], seen: set[str]) -> None:
    """Append a module's imports, then the module itself, each once."""
    seen.add(file)
    source = _read(file)
    for match in _IMPORT.finditer(source):
        imported = (Path(file).parent / match["file"]).as_posix()
        if imported not in seen:
            _collect(imported, parts, seen)
    body = _IMPORT.sub("", source)
    parts.append(_EXPORT.sub("", body))


@functools.cache
def styles(*files: str) -> str:
    """Return style files of this folder, one after the other."""
    return "\n".join(_read(file) for file in files)


def _read(file: str) -> str:
    return (_FOLDER / file).read_text(encoding="utf-8")


_ALIGNMENT = 8
_TYPES = {"u": "Uint", "i": "Int", "f": "Float"}


def pack(columns: Mapping[str, npt.NDArray[Any]]) -> tuple[dict[str, Any], bytes]:
    """Pack arrays for `unpack` in `common.js`.

    Args:
        columns: Arrays by name, of at most 8 bytes an element. 64-bit integers and
            booleans have no typed array that adds up like numbers, so they are sent
            as float64 and uint8.

    Returns:
        The place of each column, as JSON: name to `[type, offset, length]`; and the
        buffer, with each column aligned.
    """
    layout: dict[str, Any] = {}
    parts: list[bytes] = []
    offset = 0
    for name, column in columns.items():
        array = np.ascontiguousarray(column)
        if array.dtype == bool:
            array = array.astype(np.uint8)
        if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
            array = array.astype(np.float64)
        data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        layout[name] = [
            f"{_TYPES[array.dtype.kind]}{8 * array.itemsize}Array",
            offset,
            int(array.size),
        ]
        padding = -len(data) % _ALIGNMENT
        parts.append(data + bytes(padding))
        offset += len(data) + padding
    return layout, b"".join(parts)
