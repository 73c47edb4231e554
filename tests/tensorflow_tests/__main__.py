"""Run TensorFlow's own tests of TPU strategies on the virtual TPU, with two replicas.

    make tensorflow-tests TENSORFLOW=~/tensorflow
    cd tests && python -m tensorflow_tests ~/tensorflow [--processes 2] [--files values_test]

`~/tensorflow` is a clone of the recorded release, its git directory, or an unpacked archive. The
test files are copied to a temporary folder. The results are compared with `record.json`: the
command lists what got worse and what got better, and fails if something got worse. `--write`
records improvements in `record.json` and in `docs/tensorflow-tests.md`. Add a test that no longer
passes by hand, with the reason.
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
    """Run the command; return 1 if something got worse, and 2 if no test can run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("source", nargs="?", default="", help=f"a clone of TensorFlow {VERSION}")
    parser.add_argument("--processes", type=int, default=2, help="number of processes at a time")
    parser.add_argument("--files", nargs="+", default=TESTS, choices=TESTS, metavar="FILE")
    parser.add_argument("--match", default="", help="run only tests whose names contain this")
    parser.add_argument("--write", action="store_true", help="record the improvements")
    options = parser.parse_args()
    try:
        return _run(options)
    except SourceError as error:
        sys.stderr.write(f"{error}\n")
        return 2


def _run(options: argparse.Namespace) -> int:
    installed = tensorflow_version() or "none"
    if not installed.startswith(f"{VERSION}."):
        raise SourceError(f"The tests belong to TensorFlow {VERSION}; installed is {installed}.")
    results = []
    with tempfile.TemporaryDirectory(prefix="tensorflow_tests_") as folder:
        files = lay_out(options.source, Path(folder), options.files)
        for result in run_files(
            _longest_first(files), Path(folder), options.processes, options.match
        ):
            _say(_line(result))
            results.append(result)
    known = record.load()
    compared = record.compare(results, known, whole=not options.match)
    for text in compared.worse:
        _say(f"worse: {text}")
    for text in compared.better:
        _say(f"better: {text}")
    passed, run = sum(len(file.passed) for file in results), sum(file.run for file in results)
    _say(f"{passed:,} of {run:,} tests pass.")
    if options.write and not options.match:
        known = known.without(results)
        record.save(known)
        page.put(known)
    elif compared.better:
        _say("To record the improvements, run the same command with --write (make: ARGS=--write).")
    return int(bool(compared.worse))


_LONGEST = ("distributed_variable_test", "vars_test", "values_test", "random_generator_test")


def _longest_first(files: list[Path]) -> list[Path]:
    """Start the slowest files first, so that no process ends up idle."""
    order = {name: place for place, name in enumerate(_LONGEST)}
    return sorted(files, key=lambda file: order.get(file.stem, len(order)))


def _line(file: FileResults) -> str:
    skipped = f", {len(file.skipped)} skip themselves" if file.skipped else ""
    return f"{file.name}: {len(file.passed)} of {file.run} pass{skipped}, {file.seconds:.0f} s"


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
