"""The compiler's answers in the user's cache folder, so that no program is compiled twice.

An answer is stored for a program without its names, a TPU type, the effort and the compiler's
releases. Crashes, time limits and errors of this machine are not stored.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tpunb._util.logs import logger
from tpunb.compiler.ask import environment
from tpunb.compiler.ask.fingerprint import Fingerprint
from tpunb.compiler.ask.verdict_files import (
    SUFFIX,
    Answer,
    is_permanent,
    key_of,
    store_answer,
    stored_answer,
)

FOLDER = "TPUNB_VERDICTS"
"""The environment variable that names another folder for the answers; `off` stores none."""

MOST_BYTES = 256 * 2**20
MOST_FILES = 4096
"""The limits of the store. The answers that were used longest ago make room for new ones."""

_FORGOTTEN = 3600.0
"""Seconds after which an unfinished file must belong to a killed process."""


def folder() -> Path | None:
    """Return the folder of the answers, which need not exist, or None if none are stored."""
    named = os.environ.get(FOLDER, "")
    if named.strip().lower() == "off":
        return None
    return Path(named).expanduser() if named else environment.folder().with_name("verdicts")


def kept_answer(program: Fingerprint, question: Mapping[str, Any]) -> Answer | None:
    """Return the stored answer about an equal program, or None."""
    kept_in = folder()
    if kept_in is None:
        return None
    key = key_of(program, question)
    return stored_answer(kept_in / (key + SUFFIX), key, program)


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
    log = logger("compiler")
    if (known := kept_answer(program, question)) is not None:
        log.debug("the answer is stored in %s", folder())
        return known
    answer = compile_it()
    kept_in = folder()
    if kept_in is not None and is_permanent(answer):
        key = key_of(program, question)
        try:
            store_answer(kept_in / (key + SUFFIX), key, program, answer)
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
