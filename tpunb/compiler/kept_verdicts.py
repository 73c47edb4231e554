"""The compiler's answers in the user's cache folder, so that no program is compiled twice.

An answer is stored for a program without its names, a TPU type, the effort and the compiler's
releases. Crashes, time limits and errors of this machine are not stored.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import re
import time
from collections.abc import Callable, Mapping
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
from tpunb._util.logs import logger
from tpunb._util.plain_values import record_from
from tpunb.compiler import environment
from tpunb.compiler.fingerprint import Fingerprint, renamed
from tpunb.compiler.program import TpuProgram

FOLDER = "TPUNB_VERDICTS"
"""The environment variable that names another folder for the answers; `off` stores none."""

MOST_BYTES = 256 * 2**20
MOST_FILES = 4096
"""The limits of the store. The answers that were used longest ago make room for new ones."""

SUFFIX = ".verdict"
_KIND, _FORMAT = "verdict", 1
_FORGOTTEN = 3600.0
"""Seconds after which an unfinished file must belong to a killed process."""

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
class _Refusal:
    """The form of an answer about a program that does not compile."""

    error: str
    made: _Made
    text: str = ""


_Pair = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class _Figures:
    """The form of an answer about a program that compiles."""

    peak: int
    arguments: int
    outputs: int
    aliased: int
    code: int
    text: str
    kernels: Mapping[str, tuple[int, _Pair, _Pair, _Pair, _Pair]]
    bounded: bool
    made: _Made


@dataclasses.dataclass(frozen=True)
class _Judged:
    """The form of an answer that is kept as the whole program."""

    peak: int
    program: TpuProgram


def folder() -> Path | None:
    """Return the folder of the answers, which need not exist, or None if none are stored."""
    named = os.environ.get(FOLDER, "")
    if named.strip().lower() == "off":
        return None
    return Path(named).expanduser() if named else environment.folder().with_name("verdicts")


def answer_for(
    program: Fingerprint, question: Mapping[str, Any], compile_it: Callable[[], Answer]
) -> Answer:
    """Return the stored answer about an equal program, or ask the compiler.

    Args:
        program: The program.
        question: Everything else that the answer depends on, as JSON values.
        compile_it: Asks the compiler.

    Raises:
        Exception: The error of `compile_it`.
    """
    kept_in = folder()
    if kept_in is None:
        return compile_it()
    key = key_of(program, question)
    path = kept_in / (key + SUFFIX)
    log = logger("compiler")
    if (known := stored_answer(path, key, program)) is not None:
        log.debug("the answer is stored in %s", path)
        return known
    answer = compile_it()
    if is_permanent(answer):
        try:
            store_answer(path, key, program, answer)
            _make_room(kept_in)
        except OSError as error:  # the folder cannot be written, or the disk is full
            log.debug("the answer is not stored: %s", error)
    return answer


def size() -> tuple[int, int]:
    """Return the number of stored answers, and their bytes."""
    sizes = [bytes_ for _, bytes_, _ in _entries(folder())]
    return len(sizes), sum(sizes)


def remove() -> Path | None:
    """Delete the answers.

    Returns:
        The answers' folder, or None if there was none.
    """
    kept_in = folder()
    if kept_in is None or not kept_in.is_dir():
        return None
    for path, _, _ in _entries(kept_in, unfinished=True):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # it has other files, or another process writes
        kept_in.rmdir()
    return kept_in


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


def _make_room(kept_in: Path) -> None:
    """Delete the answers that were used longest ago, and the remains of killed processes."""
    count = total = 0
    for path, bytes_, _ in sorted(_entries(kept_in), key=lambda entry: entry[2], reverse=True):
        count, total = count + 1, total + bytes_
        if count > MOST_FILES or total > MOST_BYTES:
            path.unlink(missing_ok=True)
    for path, _, written in _entries(kept_in, unfinished=True):
        if path.suffix != SUFFIX and time.time() - written > _FORGOTTEN:
            path.unlink(missing_ok=True)


def _entries(kept_in: Path | None, *, unfinished: bool = False) -> list[tuple[Path, int, float]]:
    """Return the files of tpunb in a folder, with their sizes and times."""
    entries = []
    with contextlib.suppress(OSError):
        for file in os.scandir(kept_in) if kept_in else ():
            ours = file.name.endswith(SUFFIX) or (unfinished and file.name.startswith(".tpunb-"))
            with contextlib.suppress(OSError):  # another process has deleted it
                if ours and file.is_file(follow_symlinks=False):
                    status = file.stat(follow_symlinks=False)
                    entries.append((Path(file.path), status.st_size, status.st_mtime))
    return entries


_DAMAGED = (WrongFileError, NewerFileError, DamagedFileError, LookupError, TypeError, ValueError)


def entry_in(data: bytes) -> dict[str, Any] | None:
    """Return the entry in a file's content, or None if it is damaged or of another release."""
    try:
        entry = unpacked(_KIND, _FORMAT, data)
        answer = dict(entry["answer"])
        kinds = {"error": _Refusal, "program": _Judged}
        kind = next((kinds[name] for name in kinds if name in answer), _Figures)
        record_from(kind, answer)
        if not all(map(math.isfinite, dict(answer.get("cost", {})).values())):
            raise ValueError("a cost is not a number")
        names = tuple(map(str, entry["names"]))
        return {"key": entry["key"], "names": names, "answer": answer}
    except _DAMAGED:
        return None
