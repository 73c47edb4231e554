"""The record of passing tests: their number in each file, and the exceptions with a reason."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from peer_tests.processes import FileResults


@dataclasses.dataclass(frozen=True)
class Exceptions:
    """Tests that fail for the same reason.

    Attributes:
        reason: The reason.
        tests: The names of the tests.
    """

    reason: str
    tests: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Record:
    """The tests known to pass.

    Attributes:
        passed: The number of passing tests, by file name.
        exceptions: The tests that fail.
    """

    passed: Mapping[str, int]
    exceptions: Sequence[Exceptions]

    def exceptions_of(self, file: str) -> set[str]:
        """The names of a file's tests that fail."""
        tests = (test for group in self.exceptions for test in group.tests)
        return {test for test in tests if test.partition(".")[0] == file}

    def without(self, results: Iterable[FileResults]) -> Record:
        """The record with new numbers, without exceptions that now pass or no longer exist."""
        ran = {file.name: file for file in results}
        passed = {**self.passed, **{name: len(file.passed) for name, file in ran.items()}}

        def stays(test: str) -> bool:
            file = ran.get(test.partition(".")[0])
            return file is None or test in file.failed

        kept = [
            Exceptions(group.reason, tests)
            for group in self.exceptions
            if (tests := [test for test in group.tests if stays(test)])
        ]
        return Record(passed, kept)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The differences from the record, as sentences.

    Attributes:
        worse: Tests that passed and now fail.
        better: Tests that failed and now pass.
    """

    worse: Sequence[str]
    better: Sequence[str]


def compare(results: Iterable[FileResults], record: Record, *, whole: bool = True) -> Comparison:
    """Compare results with the record.

    Args:
        results: The results of some files.
        record: The record.
        whole: Whether all tests of these files ran, so that their numbers can be compared.
    """
    worse, better = [], []
    for file in results:
        recorded = record.exceptions_of(file.name)
        new = sorted(set(file.failed) - recorded)
        worse += [f"{test} fails: {file.failed[test]}" for test in new]
        better += [f"{test} passes." for test in sorted(recorded & file.passed)]
        if not whole:
            continue
        better += [
            f"{test} no longer runs." for test in sorted(recorded - file.passed - set(file.failed))
        ]
        change = len(file.passed - recorded) + len(new) - record.passed.get(file.name, 0)
        if change < 0:
            worse.append(f"{file.name} runs {-change} fewer tests than recorded.")
        elif change > 0:
            better.append(f"{file.name} runs {change} more tests than recorded.")
    return Comparison(worse, better)


def load(file: Path) -> Record:
    """Read the record."""
    read = json.loads(file.read_text(encoding="utf-8"))
    return Record(read["passed"], [Exceptions(**group) for group in read["exceptions"]])


def save(record: Record, file: Path) -> None:
    """Write the record."""
    text = json.dumps(dataclasses.asdict(record), indent=1, ensure_ascii=False)
    file.write_text(text + "\n", encoding="utf-8")
