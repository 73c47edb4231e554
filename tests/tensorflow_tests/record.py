"""The record of what passes: how many tests of each file, and which do not, each with a reason."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tensorflow_tests.processes import FileResults

RECORD = Path(__file__).with_name("record.json")


@dataclasses.dataclass(frozen=True)
class Exceptions:
    """Tests that do not pass for one reason.

    Attributes:
        reason: Why.
        tests: Their names.
    """

    reason: str
    tests: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Record:
    """What is known to pass.

    Attributes:
        passed: How many tests pass, by the name of their file.
        exceptions: The tests that do not.
    """

    passed: Mapping[str, int]
    exceptions: Sequence[Exceptions]

    def exceptions_of(self, file: str) -> set[str]:
        """The names of a file's tests that do not pass."""
        tests = (test for group in self.exceptions for test in group.tests)
        return {test for test in tests if test.partition(".")[0] == file}

    def without(self, results: Iterable[FileResults]) -> Record:
        """The record with new numbers, and without exceptions that pass or are gone."""
        ran = {one.name: one for one in results}
        passed = {**self.passed, **{name: len(one.passed) for name, one in ran.items()}}

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
    """What differs from the record, as sentences.

    Attributes:
        worse: What passed and does not.
        better: What did not pass and does.
    """

    worse: Sequence[str]
    better: Sequence[str]


def compare(results: Iterable[FileResults], record: Record, *, whole: bool = True) -> Comparison:
    """Compare results with the record.

    Args:
        results: Those of some files.
        record: The record.
        whole: Whether all tests of these files have run, so that numbers can be compared.
    """
    worse, better = [], []
    for one in results:
        known = record.exceptions_of(one.name)
        new = sorted(set(one.failed) - known)
        worse += [f"{test} fails: {one.failed[test]}" for test in new]
        better += [f"{test} passes." for test in sorted(known & one.passed)]
        if not whole:
            continue
        better += [
            f"{test} no longer runs." for test in sorted(known - one.passed - set(one.failed))
        ]
        change = len(one.passed - known) + len(new) - record.passed.get(one.name, 0)
        if change < 0:
            worse.append(f"{one.name} runs {-change} fewer tests than recorded.")
        elif change > 0:
            better.append(f"{one.name} runs {change} more tests than recorded.")
    return Comparison(worse, better)


def load(file: Path = RECORD) -> Record:
    """Read the record."""
    read = json.loads(file.read_text(encoding="utf-8"))
    return Record(read["passed"], [Exceptions(**group) for group in read["exceptions"]])


def save(record: Record, file: Path = RECORD) -> None:
    """Write the record."""
    text = json.dumps(dataclasses.asdict(record), indent=1, ensure_ascii=False)
    file.write_text(text + "\n", encoding="utf-8")
