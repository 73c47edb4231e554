"""The command that runs a framework's tests and compares the results with the record."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from peer_tests import page, record
from peer_tests.peer import Peer
from peer_tests.processes import FileResults, run_files
from peer_tests.sources import SourceError, lay_out


def main(peer: Peer, description: str) -> int:
    """Run the command; return 1 if something got worse, and 2 if no test can run."""
    parser = argparse.ArgumentParser(description=description)
    clone = f"a clone of {peer.name} {peer.version}"
    parser.add_argument("source", nargs="?", default="", help=clone)
    parser.add_argument("--processes", type=int, default=2, help="number of processes at a time")
    parser.add_argument(
        "--files", nargs="+", default=peer.tests, choices=peer.tests, metavar="FILE"
    )
    parser.add_argument("--match", default="", help="run only tests whose names contain this")
    parser.add_argument("--write", action="store_true", help="record the improvements")
    try:
        return _run(peer, parser.parse_args())
    except SourceError as error:
        sys.stderr.write(f"{error}\n")
        return 2


def _run(peer: Peer, options: argparse.Namespace) -> int:
    installed = peer.installed() or "none"
    if not f"{installed}.".startswith(f"{peer.version}."):
        raise SourceError(
            f"The tests belong to {peer.name} {peer.version}; installed is {installed}."
        )
    results = []
    with tempfile.TemporaryDirectory(prefix=peer.package) as name:
        folder = Path(name)
        files = sorted(lay_out(peer, options.source, folder, options.files), key=_turn(peer))
        for result in run_files(peer, files, folder, options.processes, options.match):
            _say(_line(result))
            results.append(result)
    known = record.load(peer.record)
    compared = record.compare(results, known, whole=not options.match)
    for text in compared.worse:
        _say(f"worse: {text}")
    for text in compared.better:
        _say(f"better: {text}")
    passed, run = sum(len(file.passed) for file in results), sum(file.run for file in results)
    _say(f"{passed:,} of {run:,} tests pass.")
    if options.write and not options.match:
        known = known.without(results)
        record.save(known, peer.record)
        page.put(known, peer.page)
    elif compared.better:
        _say("To record the improvements, run the same command with --write (make: ARGS=--write).")
    return int(bool(compared.worse))


def _turn(peer: Peer) -> Callable[[Path], int]:
    """The key that starts the slowest files first, so that no process ends up idle."""
    order = {name: place for place, name in enumerate(peer.longest)}
    return lambda file: order.get(file.stem, len(order))


def _line(file: FileResults) -> str:
    skipped = f", {len(file.skipped)} skip themselves" if file.skipped else ""
    return f"{file.name}: {len(file.passed)} of {file.run} pass{skipped}, {file.seconds:.0f} s"


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
