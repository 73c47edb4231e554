"""The source that a front end gets: ES modules and styles of this folder.

A front end loads a widget's source as one module of its own, in which relative
imports lead nowhere. So they are put in place here; the files stay plain ES
modules that any browser and any editor understands, and there is no build step.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

__all__ = ["es_module", "styles"]

_FOLDER = Path(__file__).parent
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(?P<file>[\w./-]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function|const|class|let)", re.MULTILINE)


@functools.cache
def es_module(file: str, *scripts: str) -> str:
    """A module with what it imports from this folder, as one module.

    Names are not changed: modules that come together may not declare the same
    name twice.

    Args:
        file: The module's file in this folder.
        scripts: Files of plain scripts whose globals the module uses.
    """
    parts = [_read(script) for script in scripts]
    seen: set[str] = set()
    _collect(file, parts, seen)
    return "\n".join(parts)


def _collect(file: str, parts: list[str], seen: set[str]) -> None:
    """Appends a module's imports, then the module itself, each once."""
    seen.add(file)
    source = _read(file)
    for found in _IMPORT.finditer(source):
        imported = (Path(file).parent / found["file"]).as_posix()
        if imported not in seen:
            _collect(imported, parts, seen)
    body = _IMPORT.sub("", source)
    parts.append(_EXPORT.sub("", body))


@functools.cache
def styles(*files: str) -> str:
    """Style files of this folder, one after the other."""
    return "\n".join(_read(file) for file in files)


def _read(file: str) -> str:
    return (_FOLDER / file).read_text(encoding="utf-8")
