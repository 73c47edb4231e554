"""A folder of recorded verdicts, which answers where the compiler is missing.

Where the compiler is, its answers are recorded. An answer belongs to the program that the compiler
gets, which is HLO or StableHLO without its names and lines, the TPU type and the options. The
compiler's release is not part of the key: the answer says which release gave it.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tpunb import examples
from tpunb._util.logs import logger
from tpunb._util.units import counted
from tpunb.compiler.ask import versions
from tpunb.compiler.ask.fingerprint import Fingerprint
from tpunb.compiler.ask.verdict_files import (
    SUFFIX,
    Answer,
    entry_in,
    is_permanent,
    key_of,
    store_answer,
    stored_answer,
)
from tpunb.compiler.program import CompilerUnavailableError, NotRecordedError
from tpunb.errors import TpuWarning

FOLDER = "TPUNB_RECORDED"
"""The environment variable that names the folder."""

_MOST_READ = 50
"""The most recordings to read for a message about versions."""

_FOR_THE_HOST = ("--xla_cpu_", "--xla_force_host_")
"""Flags of XLA that do not change a TPU's program."""

_chosen: contextvars.ContextVar[Path | None] = contextvars.ContextVar("recorded", default=None)


def folder() -> Path | None:
    """Return the folder, which need not exist, or None if none is named."""
    named = _chosen.get() or os.environ.get(FOLDER, "")
    return Path(named).expanduser() if named else None


@contextlib.contextmanager
def recorded_in(chosen: str | os.PathLike[str] | None) -> Iterator[None]:
    """Within a block, use this folder; None leaves the folder of the environment variable."""
    token = _chosen.set(Path(chosen) if chosen else _chosen.get())
    try:
        yield
    finally:
        _chosen.reset(token)


def require(unavailable: CompilerUnavailableError) -> None:
    """Raise an error if no recorded verdicts replace the compiler.

    Args:
        unavailable: Why there is no compiler.

    Raises:
        CompilerUnavailableError: No folder is named, or it has no recordings.
    """
    recordings = folder()
    if recordings is None:
        raise unavailable
    if not _files(recordings):
        raise NotRecordedError(
            f"{recordings} has no recorded verdicts. {unavailable.message}",
            fix=f"{_RECORD} Or: {unavailable.fix}",
        )


_RECORD = (
    "Record them where the compiler is installed, with the same option: --recorded DIR, "
    f"recorded=DIR or {FOLDER}=DIR."
)


def flags_for_tpus(flags: Sequence[str]) -> list[str]:
    """Return the users' flags for the compiler, without flags for the host's processor."""
    return [
        " ".join(flag for flag in each.split() if not flag.startswith(_FOR_THE_HOST))
        for each in flags
    ]


def recorded_answer(
    recordings: Path,
    program: Fingerprint | None,
    question: Mapping[str, Any],
    tpu: str,
    unavailable: CompilerUnavailableError,
) -> Answer:
    """Return the recorded answer to a question about a program.

    Args:
        recordings: The folder.
        program: The program; None if this machine cannot compute its fingerprint.
        question: The TPU type and the options, as the compiler gets them.
        tpu: The TPU type.
        unavailable: Why there is no compiler.

    Raises:
        NotRecordedError: The answer is not recorded.
    """
    if program is not None:
        path, key = _place(recordings, program, question)
        if (answer := stored_answer(path, key, program)) is not None:
            return {**answer, "recorded": True}
    raise NotRecordedError(
        f"This program has no recorded verdict for {tpu} in {recordings}, which has "
        f"{counted(len(_files(recordings)), 'verdict')}. "
        f"{_other_versions(recordings)}{unavailable.message}",
        fix=f"{_RECORD} Or: {unavailable.fix}",
    )


def record(
    recordings: Path, program: Fingerprint, question: Mapping[str, Any], answer: Answer
) -> None:
    """Record an answer, unless the same compiler's answer is recorded.

    A folder that cannot be written causes a warning, because the answer itself is there. The
    folders that come with tpunb stay as they are: a maintainer records elsewhere, and copies.
    """
    own = [examples.path(name).resolve() for name in ("recorded", "puzzles")]
    if not is_permanent(answer) or recordings.resolve() in own:
        return
    path, key = _place(recordings, program, question)
    former = stored_answer(path, key, program)
    # Its text may differ: TensorFlow numbers the functions of a process.
    if former is not None and _compiler_of(former) == _compiler_of(answer):
        return
    try:
        store_answer(path, key, program, answer, mode=0o777)
        logger("compiler").debug("the answer is recorded in %s", path)
    except OSError as error:
        why = error.strerror or error
        warnings.warn(f"A verdict is not recorded in {recordings}: {why}.", TpuWarning, 2)


def _compiler_of(answer: Answer) -> Any:
    return answer.get("made", {}).get("compiler")


def _place(recordings: Path, program: Fingerprint, question: Mapping[str, Any]) -> tuple[Path, str]:
    """Return the file of an answer and its key."""
    key = key_of(program, question)
    topology = str(question["topology"]).replace(":", "-")
    return recordings / f"{topology}-{key[:32]}{SUFFIX}", key


def _files(recordings: Path) -> list[Path]:
    try:
        return sorted(path for path in recordings.iterdir() if path.suffix == SUFFIX)
    except OSError:
        return []


def _other_versions(recordings: Path) -> str:
    """Return a sentence if all recordings are of other releases of the frameworks, or `""`."""
    here = versions.software()
    there: dict[str, set[str]] = {}
    for path in _files(recordings)[:_MOST_READ]:
        with contextlib.suppress(OSError, LookupError, TypeError, AttributeError):
            entry = entry_in(path.read_bytes())
            for name, version in entry["answer"]["made"]["software"].items() if entry else ():
                there.setdefault(str(name), set()).add(str(version))
    others = [
        f"{name} {' and '.join(sorted(there[name]))}, and here is {version}"
        for name, version in here.items()
        if name != "tpunb" and name in there and version not in there[name]
    ]
    return f"They were recorded with {'; '.join(others)}. " if others else ""
