"""The files with the compiler's answers: their keys, their form and their checks.

`kept_verdicts` stores them so that no program is compiled twice. `recorded_verdicts` stores them to
answer where the compiler is missing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpunb._util.atomic_files import write_file
from tpunb._util.checked_files import (
    DamagedFileError,
    NewerFileError,
    WrongFileError,
    packed,
    unpacked,
)
from tpunb._util.plain_values import record_from
from tpunb.compiler.ask.answers import Compiled, Refused
from tpunb.compiler.ask.fingerprint import Fingerprint, renamed
from tpunb.compiler.program import TpuProgram

SUFFIX = ".verdict"
_KIND, _FORMAT = "verdict", 1

_PERMANENT = re.compile(r"UNIMPLEMENTED|INVALID_ARGUMENT|Ran out of memory (?:on|in memory space)")
"""Messages of refusals that concern the program and not this machine."""

Answer = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class _Made:
    """When and by which releases an answer was made."""

    time: str
    compiler: Mapping[str, str]
    software: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class _Judged:
    """The form of an answer that is kept as the whole program."""

    peak: int
    program: TpuProgram


def key_of(program: Fingerprint, question: Mapping[str, Any]) -> str:
    """Return the key of the answer to a question about a program."""
    asked = json.dumps([program.digest, question], sort_keys=True)
    return hashlib.sha256(asked.encode()).hexdigest()


def is_permanent(answer: Answer) -> bool:
    """Return whether an answer concerns the program alone, and not this machine or this moment."""
    return bool(_PERMANENT.search(answer["error"])) if "error" in answer else "peak" in answer


def stored_answer(path: Path, key: str, program: Fingerprint) -> Answer | None:
    """Return a file's answer with the names of this program, or None if it has none."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    entry = entry_in(data)
    if entry is None or entry["key"] != key:
        return None
    answer = entry["answer"]
    for part in ("text", "error"):
        if part in answer:
            text = renamed(answer[part], entry["names"], program.names)
            if text is None:
                return None
            answer[part] = text
    with contextlib.suppress(OSError):
        os.utime(path)
    return dict(answer)


def store_answer(
    path: Path, key: str, program: Fingerprint, answer: Answer, mode: int = 0o700
) -> None:
    """Write an answer to a file, whose folder is made with this mode if it does not exist.

    Raises:
        OSError: The file cannot be written.
    """
    path.parent.mkdir(mode=mode, parents=True, exist_ok=True)
    entry = {"key": key, "names": program.names, "answer": dict(answer)}
    write_file(path, packed(_KIND, _FORMAT, entry))


_DAMAGED = (WrongFileError, NewerFileError, DamagedFileError, LookupError, TypeError, ValueError)


def entry_in(data: bytes) -> dict[str, Any] | None:
    """Return the entry in a file's content, or None if it is damaged or of another release."""
    try:
        entry = unpacked(_KIND, _FORMAT, data)
        answer = dict(entry["answer"])
        kinds = {"error": Refused, "program": _Judged}
        kind = next((kinds[name] for name in kinds if name in answer), Compiled)
        record_from(kind, answer)
        if kind is not _Judged:
            record_from(_Made, answer["made"])
        names = tuple(map(str, entry["names"]))
        return {"key": entry["key"], "names": names, "answer": answer}
    except _DAMAGED:
        return None
