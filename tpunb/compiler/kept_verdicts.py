"""The compiler's answers in the user's cache folder, so that no program is compiled twice.

An answer is stored for a program without its names, a TPU type, the effort and the compiler's
releases. Crashes, time limits and errors of this machine are not stored.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pickle
import re
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tpunb._util.atomic_files import write_file
from tpunb._util.logs import logger
from tpunb.compiler import environment
from tpunb.compiler.fingerprint import Fingerprint, renamed

FOLDER = "TPUNB_VERDICTS"
"""The environment variable that names another folder for the answers; `off` stores none."""

MOST_BYTES = 256 * 2**20
MOST_FILES = 4096
"""The limits of the store. The answers that were used longest ago make room for new ones."""

_SUFFIX = ".verdict"
_FORGOTTEN = 3600.0
"""Seconds after which an unfinished file must belong to a killed process."""

_PERMANENT = re.compile(r"UNIMPLEMENTED|INVALID_ARGUMENT|Ran out of memory (?:on|in memory space)")
"""Messages of refusals that concern the program and not this machine."""

Answer = Mapping[str, Any]


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
    asked = json.dumps([program.digest, question], sort_keys=True)
    key = hashlib.sha256(asked.encode()).hexdigest()
    path = kept_in / (key + _SUFFIX)
    log = logger("compiler")
    if (known := _known(path, key, program)) is not None:
        log.debug("the answer is stored in %s", path)
        return known
    answer = compile_it()
    if _PERMANENT.search(answer["error"]) if "error" in answer else "peak" in answer:
        try:
            _keep(path, {"key": key, "names": program.names, "answer": dict(answer)})
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


def _known(path: Path, key: str, program: Fingerprint) -> Answer | None:
    """Return a file's answer with the names of this program, or None if it has none."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    entry = _read(data)
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


def _keep(path: Path, entry: Mapping[str, Any]) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_file(path, _written(entry))
    _make_room(path.parent)


def _make_room(kept_in: Path) -> None:
    """Delete the answers that were used longest ago, and the remains of killed processes."""
    count = total = 0
    for path, bytes_, _ in sorted(_entries(kept_in), key=lambda entry: entry[2], reverse=True):
        count, total = count + 1, total + bytes_
        if count > MOST_FILES or total > MOST_BYTES:
            path.unlink(missing_ok=True)
    for path, _, written in _entries(kept_in, unfinished=True):
        if path.suffix != _SUFFIX and time.time() - written > _FORGOTTEN:
            path.unlink(missing_ok=True)


def _entries(kept_in: Path | None, *, unfinished: bool = False) -> list[tuple[Path, int, float]]:
    """Return the files of tpunb in a folder, with their sizes and times."""
    entries = []
    with contextlib.suppress(OSError):
        for file in os.scandir(kept_in) if kept_in else ():
            ours = file.name.endswith(_SUFFIX) or (unfinished and file.name.startswith(".tpunb-"))
            with contextlib.suppress(OSError):  # another process has deleted it
                if ours and file.is_file(follow_symlinks=False):
                    status = file.stat(follow_symlinks=False)
                    entries.append((Path(file.path), status.st_size, status.st_mtime))
    return entries


def _written(entry: Mapping[str, Any]) -> bytes:
    """Return an entry with its checksum in front."""
    data = zlib.compress(pickle.dumps(entry, protocol=4), level=3)
    return hashlib.sha256(data).digest() + data


def _read(data: bytes) -> dict[str, Any] | None:
    """Return an entry that `_written` wrote, or None if it is damaged."""
    checksum, data = data[:32], data[32:]
    if hashlib.sha256(data).digest() != checksum:
        return None
    try:
        entry = _PlainValues(io.BytesIO(zlib.decompress(data))).load()
        return {"key": entry["key"], "names": entry["names"], "answer": dict(entry["answer"])}
    except (zlib.error, pickle.UnpicklingError, EOFError, LookupError, TypeError, ValueError):
        return None


class _PlainValues(pickle.Unpickler):
    """A reader of dicts, tuples, numbers and texts, which refuses to run code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is not a plain value")
