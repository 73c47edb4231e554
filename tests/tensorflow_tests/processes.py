"""Runs test files in processes of their own, and collects what becomes of each test."""

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

PATIENCE = 900.0
"""Seconds after which a test hangs. Most take less than one."""

_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "PYTHONHASHSEED": "0",  # some tests are named after members of a set
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_ENABLE_ONEDNN_OPTS": "0",
}


_TESTS = Path(__file__).parents[1]


@dataclasses.dataclass
class FileResults:
    """The results of the tests of one file.

    Attributes:
        name: The file's name, without its ending.
        passed: The names of tests that pass.
        failed: What is wrong with those that do not.
        skipped: Why tests skip themselves.
        seconds: The time of all together.
    """

    name: str
    passed: set[str] = dataclasses.field(default_factory=set)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0

    @property
    def run(self) -> int:
        """How many tests have run."""
        return len(self.passed) + len(self.failed)

    @property
    def done(self) -> set[str]:
        """The names of tests that are not to run again."""
        return self.passed | set(self.failed) | set(self.skipped)

    def add(self, line: dict[str, Any]) -> None:
        """Add what became of a test. What fails in one part of it has failed."""
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
    files: Sequence[Path], folder: Path, processes: int, match: str = "", patience: float = PATIENCE
) -> Iterator[FileResults]:
    """Run test files, several at a time.

    Args:
        files: The files.
        folder: Takes what the processes write.
        processes: How many run at a time.
        match: A part of the names of the tests that run.
        patience: Seconds after which a test hangs.

    Yields:
        The results of each file, as soon as they are known.
    """
    with ThreadPoolExecutor(processes) as pool:
        running = [pool.submit(run_file, file, folder, match, patience) for file in files]
        for future in as_completed(running):
            yield future.result()


def run_file(file: Path, folder: Path, match: str, patience: float) -> FileResults:
    """Run the tests of a file; start again after a test that ends the process."""
    results = FileResults(file.stem)
    lines, done, log = (folder / f"{file.stem}.{kind}" for kind in ("lines", "done", "log"))
    while True:
        lines.write_text("", encoding="utf-8")
        done.write_text("\n".join(results.done), encoding="utf-8")
        command = [sys.executable, "-m", "tensorflow_tests.worker", str(file), str(lines)]
        command += [f"--done={done}", f"--match={match}", f"--patience={patience}"]
        with log.open("w", encoding="utf-8") as output:
            code = subprocess.run(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(),
                check=False,
            ).returncode
        begun, ended = _read_lines(lines, results)
        if ended:
            return results
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])
        if begun is None:
            raise RuntimeError(f"No test of {file.name} has begun (exit code {code}):\n{tail}")
        results.failed[begun] = f"It ends the process with {code}:\n{tail}"


def _environment() -> dict[str, str]:
    """The environment of a worker, which imports this package from wherever the command runs."""
    paths = [str(_TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths)}


def _read_lines(file: Path, results: FileResults) -> tuple[str | None, bool]:
    """Add a process's lines to the results.

    Returns:
        The test that began last and has not ended, and whether all have run.
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
