"""Test files, copied from a clone of a framework's repository to a folder.

The files are neither part of this project nor of the framework's wheel.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

from peer_tests.peer import Peer


class SourceError(Exception):
    """The test files cannot be read from the given source."""


def lay_out(peer: Peer, source: str, folder: Path, tests: Iterable[str]) -> list[Path]:
    """Write test files to a folder.

    Args:
        peer: The framework.
        source: A clone of its repository, its git directory, or an unpacked archive.
        folder: The folder for the files.
        tests: The names of the files, without their ending.

    Returns:
        The written files, in the order of `tests`.

    Raises:
        SourceError: The source is not the framework, or it is another release.
    """
    read = _reader(peer, source)
    files = []
    for name in tests:
        path = peer.path_of(name)
        text = read(path)
        if text is None:
            raise SourceError(f"{source} has no {path}.\nA complete clone: {peer.clone}")
        files.append(folder / f"{name}.py")
        files[-1].write_text(text, encoding="utf-8")
    return files


def _reader(peer: Peer, source: str) -> Callable[[str], str | None]:
    """A function that reads a file of the recorded release, or returns None if it is missing."""
    name = peer.repository.rpartition("/")[2]
    if not source:
        raise SourceError(
            f"No clone of {peer.name} is named.\n"
            f"Get one: {peer.clone}\nThen: make {peer.command} {name.upper()}={name}"
        )
    folder = Path(source).expanduser()
    if not folder.is_dir():
        raise SourceError(f"There is no folder {source}.\nGet a clone: {peer.clone}")
    readers: list[Callable[[str], str | None]] = [lambda path: _read(folder / path)]
    revisions = ("HEAD", peer.tag, *peer.revisions)
    readers += [_of_revision(folder, revision) for revision in revisions]
    versions = []
    for read in readers:
        version = re.search(peer.version_line, read(peer.version_file) or "", re.MULTILINE)
        if version is None:
            continue
        if f"{version[1]}.".startswith(f"{peer.version}."):
            return read
        versions.append(version[1])
    if versions:
        raise SourceError(
            f"{source} is {peer.name} {versions[0]}, and the recorded tests are those of "
            f"{peer.version}.\nIn a clone: git fetch --depth 1 origin tag {peer.tag}"
        )
    raise SourceError(f"{source} is no clone of {peer.name}.\nGet one: {peer.clone}")


def _of_revision(folder: Path, revision: str) -> Callable[[str], str | None]:
    """A function that reads the files of a revision of a clone, also of a bare clone."""

    def read(path: str) -> str | None:
        command = ["git", "-C", str(folder), "show", f"{revision}:{path}"]
        try:
            shown = subprocess.run(command, capture_output=True, check=False)
        except FileNotFoundError:
            return None
        return shown.stdout.decode().replace("\r\n", "\n") if shown.returncode == 0 else None

    return read


def _read(file: Path) -> str | None:
    return file.read_text(encoding="utf-8") if file.is_file() else None
