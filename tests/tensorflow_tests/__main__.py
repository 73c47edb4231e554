"""Runs TensorFlow's own tests of TPU strategies on the virtual TPU, with two replicas.

    make tensorflow-tests TENSORFLOW=~/tensorflow
    cd tests && python -m tensorflow_tests ~/tensorflow [--processes 2] [--files values_test]

`~/tensorflow` is a clone of the release whose tests are recorded, its git directory, or an unpacked
archive. The test files are laid out in a temporary folder. What passes is compared with
`record.json`: the command names what got worse and what got better, and fails if something got
worse. `--write` takes what got better into the record and into `docs/tensorflow-tests.md`; a test
that no longer passes is added by hand, with its reason.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tensorflow_tests import page, record
from tensorflow_tests.processes import FileResults, run_files
from tensorflow_tests.sources import TESTS, VERSION, SourceError, lay_out
from tpunb.machine.software import tensorflow_version


def main() -> int:
    """Runs the command; gives 1 if something got worse, and 2 if nothing can be run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("source", nargs="?", default="", help=f"a clone of TensorFlow {VERSION}")
    parser.add_argument("--processes", type=int, default=2, help="how many at a time")
    parser.add_argument("--files", nargs="+", default=TESTS, choices=TESTS, metavar="FILE")
    parser.add_argument("--match", default="", help="a part of the names of the tests to run")
    parser.add_argument("--write", action="store_true", help="record what got better")
    options = parser.parse_args()
    try:
        return _run(options)
    except SourceError as error:
        sys.stderr.write(f"{error}\n")
        return 2


def _run(options: argparse.Namespace) -> int:
    installed = tensorflow_version() or "none"
    if not installed.startswith(f"{VERSION}."):
        raise SourceError(f"The tests are those of TensorFlow {VERSION}; installed is {installed}.")
    results = []
    with tempfile.TemporaryDirectory(prefix="tensorflow_tests_") as folder:
        files = lay_out(options.source, Path(folder), options.files)
        for one in run_files(_longest_first(files), Path(folder), options.processes, options.match):
            _say(_line(one))
            results.append(one)
    known = record.load()
    compared = record.compare(results, known, whole=not options.match)
    for text in compared.worse:
        _say(f"worse: {text}")
    for text in compared.better:
        _say(f"better: {text}")
    passed, run = sum(len(one.passed) for one in results), sum(one.run for one in results)
    _say(f"{passed:,} of {run:,} tests pass.")
    if options.write and not options.match:
        known = known.without(results)
        record.save(known)
        page.put(known)
    elif compared.better:
        _say("Record what got better: the same command with --write (make: ARGS=--write).")
    return int(bool(compared.worse))


_LONGEST = ("distributed_variable_test", "vars_test", "values_test", "random_generator_test")


def _longest_first(files: list[Path]) -> list[Path]:
    """The order that leaves no process without work."""
    order = {name: place for place, name in enumerate(_LONGEST)}
    return sorted(files, key=lambda file: order.get(file.stem, len(order)))


def _line(one: FileResults) -> str:
    skipped = f", {len(one.skipped)} skip themselves" if one.skipped else ""
    return f"{one.name}: {len(one.passed)} of {one.run} pass{skipped}, {one.seconds:.0f} s"


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
