"""Run each test file in its own process, and collect the result of each test."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from peer_tests.peer import Peer

PATIENCE = 900.0
"""Seconds until a test counts as hung. Most take less than one."""

_TESTS = Path(__file__).parents[1]


@dataclasses.dataclass
class FileResults:
    """The results of the tests in one file.

    Attributes:
        name: The file's name, without its ending.
        passed: The names of the tests that pass.
        failed: The error of each test that fails.
        skipped: The reason of each test that skips itself.
        seconds: The total time.
    """

    name: str
    passed: set[str] = dataclasses.field(default_factory=set)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0

    @property
    def run(self) -> int:
        """The number of tests that ran."""
        return len(self.passed) + len(self.failed)

    @property
    def done(self) -> set[str]:
        """The names of tests that need not run again."""
        return self.passed | set(self.failed) | set(self.skipped)

    def add(self, line: dict[str, Any]) -> None:
        """Add the result of a test. A test fails if one of its parts fails."""
        name, status = line["id"], line["status"]
        self.seconds += line["seconds"]
        if status == "failed":
            self.passed.discard(name)
            self.failed.setdefault(name, line["detail"])
        elif status == "skipped":
            self.skipped[name] = line["detail"]
        elif name not in self.failed:
            self.passed.add(name)


def run_files(
    peer: Peer,
    files: Sequence[Path],
    folder: Path,
    processes: int,
    match: str = "",
    patience: float = PATIENCE,
) -> Iterator[FileResults]:
    """Run test files, several at a time.

    Args:
        peer: The framework.
        files: The files.
        folder: The folder for the processes' output.
        processes: The number of processes at a time.
        match: Runs only tests whose names contain this text.
        patience: Seconds until a test counts as hung.

    Yields:
        The results of each file, as soon as it has finished.
    """
    with ThreadPoolExecutor(processes) as pool:
        running = [pool.submit(run_file, peer, file, folder, match, patience) for file in files]
        for future in as_completed(running):
            yield future.result()


def run_file(peer: Peer, file: Path, folder: Path, match: str, patience: float) -> FileResults:
    """Run the tests of a file; start a new process after a test that ends the process."""
    results = FileResults(file.stem)
    lines, done, log = (folder / f"{file.stem}.{kind}" for kind in ("lines", "done", "log"))
    while True:
        lines.write_text("", encoding="utf-8")
        done.write_text("\n".join(results.done), encoding="utf-8")
        command = [sys.executable, "-m", f"{peer.package}.worker", str(file), str(lines)]
        command += [f"--done={done}", f"--match={match}", f"--patience={patience}"]
        with log.open("w", encoding="utf-8") as output:
            code = subprocess.run(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(peer),
                check=False,
            ).returncode
        begun, ended = _read_lines(lines, results)
        if ended:
            return results
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])
        if begun is None:
            raise RuntimeError(f"No test of {file.name} started (exit code {code}):\n{tail}")
        results.failed[begun] = f"It ends the process with {code}:\n{tail}"


def _environment(peer: Peer) -> dict[str, str]:
    """The environment of a worker, in which it can import this package from any folder."""
    paths = [str(_TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, **peer.environment, "PYTHONPATH": os.pathsep.join(paths)}


def _read_lines(file: Path, results: FileResults) -> tuple[str | None, bool]:
    """Add a process's lines to the results.

    Returns:
        The test that was running last, if any, and whether all tests have finished.
    """
    begun = None
    for text in file.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        if "ended" in line:
            return None, True
        if "begun" in line:
            begun = line["begun"]
        else:
            results.add(line)
    return begun, False
