"""`tpunb compile --serve`: answers about programs, one JSON object a line in and one out."""

from __future__ import annotations

import collections
import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from tpunb._util.child_process import ChildLostError
from tpunb.cli.command import StopSignals
from tpunb.cli.compile_requests import arguments_of, checked, read_request
from tpunb.cli.compile_worker import Stamps, Worker, source_file, stamps_of
from tpunb.cli.compiled_source import source_of
from tpunb.compiler import fit_report
from tpunb.compiler.ask.compile_settings import CompileOptions
from tpunb.compiler.exit_codes import BAD_INPUT, FAILED, INTERNAL, NOT_KNOWN, USAGE
from tpunb.errors import TpunbError

_MOST_BYTES = 1 << 20
"""The longest line of a request."""

_MOST_ANSWERS = 4096


def serve(requests: IO[bytes], write: Callable[[str], None]) -> None:
    """Answer requests until there are no more.

    Args:
        requests: The stream with a request on each line.
        write: Writes a line.
    """
    server = _Server()
    try:
        with StopSignals():
            for line in _lines(requests):
                if line is None or line.strip():
                    write(json.dumps(server.answer(line)))
    finally:
        server.close()


def _lines(requests: IO[bytes]) -> Iterator[bytes | None]:
    """Yield each line, or None for a line that is too long."""
    while line := requests.readline(_MOST_BYTES):
        if len(line) < _MOST_BYTES or line.endswith(b"\n"):
            yield line
            continue
        while (rest := requests.readline(_MOST_BYTES)) and not rest.endswith(b"\n"):
            pass
        yield None


@dataclasses.dataclass(frozen=True)
class _Kept:
    """An answer that holds as long as its files are the same."""

    report: Mapping[str, Any]
    files: Stamps

    def holds(self) -> bool:
        return stamps_of(self.files) == self.files


class _Server:
    """The answers that were given, and the process with the file that was asked about last."""

    def __init__(self) -> None:
        self._kept: collections.OrderedDict[str, _Kept] = collections.OrderedDict()
        self._worker: Worker | None = None
        self._imported: Stamps = {}

    def answer(self, line: bytes | None) -> dict[str, Any]:
        """Return the answer to a request."""
        start = time.monotonic()
        request: dict[str, Any] = {}
        seen, source = False, source_of("")
        try:
            if line is None:
                raise TpunbError(f"The line is longer than {_MOST_BYTES} bytes.")
            request = read_request(line)
            asked = checked(request)
            source = source_of(asked["source"])
            report, seen = self._report(asked)
        except TpunbError as error:
            report = fit_report.failure_report(source, USAGE, error.message, fix=error.fix)
        seconds = round(time.monotonic() - start, 6)
        return {"id": request.get("id"), "seen": seen, "seconds": seconds, **report}

    def close(self) -> None:
        """End the process."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def _report(self, asked: dict[str, Any]) -> tuple[Mapping[str, Any], bool]:
        """Return the report on a program, and whether it was kept."""
        asked.pop("id", None)
        fresh = asked.pop("fresh", False)
        key = json.dumps(asked, sort_keys=True)
        kept = self._kept.get(key)
        if kept is not None and not fresh and kept.holds():
            self._kept.move_to_end(key)
            return kept.report, True
        if fresh:
            self.close()
        report, files = self._asked(asked)
        self._kept.pop(key, None)
        # A request for a file writes it each time, and a later answer may know more.
        if report["verdict"] not in (FAILED, NOT_KNOWN) and ("output" not in asked):
            self._kept[key] = _Kept(report, files)
        if len(self._kept) > _MOST_ANSWERS:
            self._kept.popitem(last=False)
        return report, False

    def _asked(self, asked: Mapping[str, Any]) -> tuple[Mapping[str, Any], Stamps]:
        args = arguments_of(asked)
        options = CompileOptions(timeout=args.timeout)
        seconds = options.deadline(max(1, len(args.tpus))).seconds
        try:
            worker = self._worker_for(source_file(args.source))
            report, self._imported = worker.report(asked, seconds)
        except ChildLostError as error:
            self.close()
            source = source_of(args.source)
            message = f"The process that imports {source['path']} {error}, before it had a verdict."
            return fit_report.failure_report(source, BAD_INPUT, message), {}
        if report["exit_code"] in (BAD_INPUT, INTERNAL):  # its code may have stopped halfway
            self.close()
        return report, self._imported

    def _worker_for(self, path: str) -> Worker:
        """Return the process with a file as it is now."""
        worker = self._worker
        if worker is not None and worker.path == path and _unchanged(self._imported):
            return worker
        self.close()
        self._imported = {}
        self._worker = Worker(path)
        return self._worker


def _unchanged(files: Stamps) -> bool:
    return stamps_of(files) == files
