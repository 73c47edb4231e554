"""Run the tests of one file in a process: `python -m tensorflow_tests.worker`.

The worker writes a line of JSON when a test begins and another when it ends, so that results
survive a crash.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib.util
import json
import os
import re
import sys
import tempfile
import time
import traceback
import unittest
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, TextIO

import absl.flags
from tensorflow.python.compat import v2_compat
from tensorflow.python.distribute import test_util
from tensorflow.python.eager import context

from tensorflow_tests.strategies import FILTERED, make_virtual

_DEVICES = 4
"""Logical CPU devices: two for replicas, one for their host, and a spare."""


class Results(unittest.TestResult):
    """Write the result of each test.

    Args:
        stream: The stream for the lines.
        patience: Seconds until a test counts as hung and the process ends.
    """

    def __init__(self, stream: TextIO, patience: float) -> None:
        super().__init__()
        self._stream, self._patience, self._began = stream, patience, time.monotonic()
        self._context = context.context_safe()

    def startTest(self, test: Any) -> None:
        super().startTest(test)
        faulthandler.dump_traceback_later(self._patience, exit=True)
        self._began = time.monotonic()
        # Some tests reset TensorFlow, which removes the devices. Restore them here, before a test
        # enters a graph: a reset inside a graph would leave the graph.
        if self._context is not context.context_safe():
            context._reset_context()
            test_util.set_logical_devices_to_at_least("CPU", _DEVICES)
            self._context = context.context()
        self._write(begun=test.id())

    def stopTest(self, test: Any) -> None:
        faulthandler.cancel_dump_traceback_later()
        super().stopTest(test)

    def addSuccess(self, test: Any) -> None:
        self._ended(test, "passed")

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self._ended(test, "passed")

    def addSkip(self, test: Any, reason: str) -> None:
        if not any(text in reason for text in FILTERED):
            self._ended(test, "skipped", reason)

    def addFailure(self, test: Any, err: Any) -> None:
        self._ended(test, "failed", _described(err))

    addError = addFailure

    def addUnexpectedSuccess(self, test: Any) -> None:
        self._ended(test, "failed", "It passes, but TensorFlow expects it to fail.")

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
    """The name of a test, or of the setup of a test class."""
    setup = re.fullmatch(r"(\w+) \(([\w.]+)\)", test.id())
    return f"{setup[2]}.{setup[1]}" if setup else str(test.id())


def _described(err: Any) -> str:
    kind, error, trace = err
    frames = reversed(traceback.extract_tb(trace)[-4:])
    where = ", ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
    return f"{kind.__name__}: {' '.join(str(error).split())[:600]} ({where})"


def tests_of(file: Path) -> Iterator[Any]:
    """The tests of a file."""
    # AutoGraph does not convert functions of modules named tensorflow.*, so import the file
    # under its own name, as TensorFlow does.
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return _flat(unittest.defaultTestLoader.loadTestsFromModule(module))


def _flat(suite: Any) -> Iterator[Any]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _flat(test)
        else:
            yield test


def run(file: Path, lines: Path, done: Collection[str], match: str, patience: float) -> None:
    """Run the tests of a file.

    Args:
        file: The test file.
        lines: The file for the results.
        done: The names of tests that need not run again.
        match: Runs only tests whose names contain this text.
        patience: Seconds until a test counts as hung.
    """
    sys.argv = [str(file)]
    v2_compat.enable_v2_behavior()
    test_util.set_logical_devices_to_at_least("CPU", _DEVICES)
    make_virtual()
    tests = [test for test in tests_of(file) if match in test.id() and test.id() not in done]
    if not absl.flags.FLAGS.is_parsed():
        absl.flags.FLAGS([str(file), f"--test_tmpdir={tempfile.mkdtemp()}"])
    with lines.open("a", encoding="utf-8") as stream:
        unittest.TestSuite(tests).run(Results(stream, patience))
        stream.write(json.dumps({"ended": True}) + "\n")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("lines", type=Path)
    parser.add_argument("--done", type=Path, required=True, help="a file with a name on each line")
    parser.add_argument("--match", default="")
    parser.add_argument("--patience", type=float, required=True)
    options = parser.parse_args()
    done = options.done.read_text(encoding="utf-8").splitlines()
    run(options.file, options.lines, set(done), options.match, options.patience)
    sys.stdout.flush()
    sys.stderr.flush()
    # A strategy's threads would keep the process alive.
    os._exit(0)


if __name__ == "__main__":
    main()
