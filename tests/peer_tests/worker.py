"""The part of a worker that frameworks share: it runs the tests of one file in its process.

The worker writes a line of JSON when a test begins and another when it ends, so that results
survive a crash.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import re
import sys
import tempfile
import time
import traceback
import unittest
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import absl.flags
from support.modules import loaded


class Results(unittest.TestResult):
    """Write the result of each test.

    Args:
        stream: The stream for the lines.
        patience: Seconds until a test counts as hung and the process ends.
        left_out: Parts of the reasons with which tests skip that are not counted.
        before_each: Called before each test.
    """

    def __init__(
        self,
        stream: TextIO,
        patience: float,
        left_out: Sequence[str] = (),
        before_each: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self._stream, self._patience, self._began = stream, patience, time.monotonic()
        self._left_out, self._before_each = left_out, before_each

    def startTest(self, test: Any) -> None:
        super().startTest(test)
        faulthandler.dump_traceback_later(self._patience, exit=True)
        self._began = time.monotonic()
        self._before_each()
        self._write(begun=_name(test))

    def stopTest(self, test: Any) -> None:
        faulthandler.cancel_dump_traceback_later()
        super().stopTest(test)

    def addSuccess(self, test: Any) -> None:
        self._ended(test, "passed")

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self._ended(test, "passed")

    def addSkip(self, test: Any, reason: str) -> None:
        if not any(text in reason for text in self._left_out):
            self._ended(test, "skipped", reason)

    def addFailure(self, test: Any, err: Any) -> None:
        self._ended(test, "failed", _described(err))

    addError = addFailure

    def addUnexpectedSuccess(self, test: Any) -> None:
        self._ended(test, "failed", "It passes, but its framework expects it to fail.")

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self._ended(test, "failed", _described(err))

    def _ended(self, test: Any, status: str, detail: str = "") -> None:
        seconds = round(time.monotonic() - self._began, 1)
        self._write(id=_name(test), status=status, detail=detail, seconds=seconds)

    def _write(self, **line: Any) -> None:
        self._stream.write(json.dumps(line) + "\n")
        self._stream.flush()


def _name(test: Any) -> str:
    """The name of a test without its parameters, or of the setup of a test class."""
    setup = re.fullmatch(r"(\w+) \(([\w.]+)\)", test.id())
    return f"{setup[2]}.{setup[1]}" if setup else str(test.id()).partition(" ")[0]


def _described(err: Any) -> str:
    kind, error, trace = err
    frames = reversed(traceback.extract_tb(trace)[-4:])
    where = ", ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
    return f"{kind.__name__}: {' '.join(str(error).split())[:600]} ({where})"


def imported(file: Path) -> Any:
    """Import a test file under its own name, as its framework does, and parse absl's flags."""
    module = loaded(file)
    if not absl.flags.FLAGS.is_parsed():
        absl.flags.FLAGS([str(file), f"--test_tmpdir={tempfile.mkdtemp()}"])
    return module


def flat(suite: Any) -> Iterator[Any]:
    """The tests of a suite."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flat(test)
        else:
            yield test


def main(
    description: str,
    load: Callable[[Path], Iterable[Any]],
    results: Callable[[TextIO, float], Results],
) -> None:
    """Run the command, and end the process: threads of a framework would keep it alive.

    Args:
        description: The command's description.
        load: Prepares the framework, and returns the tests of a file.
        results: Makes the object that gets the results, from a stream and the patience.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("file", type=Path)
    parser.add_argument("lines", type=Path)
    parser.add_argument("--done", type=Path, required=True, help="a file with a name on each line")
    parser.add_argument("--match", default="")
    parser.add_argument("--patience", type=float, required=True)
    options = parser.parse_args()
    done = set(options.done.read_text(encoding="utf-8").splitlines())
    sys.argv = [str(options.file)]
    tests = [
        test
        for test in load(options.file)
        if options.match in test.id() and _name(test) not in done
    ]
    with options.lines.open("a", encoding="utf-8") as stream:
        unittest.TestSuite(tests).run(results(stream, options.patience))
        stream.write(json.dumps({"ended": True}) + "\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
