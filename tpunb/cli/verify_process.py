"""A process that verifies a TPU and may die. Its report has what it found until then.

A TPU belongs to one process, so each framework has its own.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tpunb.cli.only_verdicts import forwarding_signals
from tpunb.machine.framework import NAMES
from tpunb.verification.report import VerifyReport, is_final, merged, scrubber
from tpunb.verification.suite import Outcome

_LINES = 12
"""The last lines of a process's errors, for the report if it dies."""


def verify_in_process(
    command: Sequence[str],
    framework: str,
    say: Callable[[str], None],
    so_far: Callable[[VerifyReport], None],
) -> tuple[VerifyReport, int]:
    """Run a command that verifies, and return its report and its exit code.

    The code is 128 plus a signal's number, as in shells, if a signal to this process ended it.

    Args:
        command: The command, without the file for the report.
        framework: The framework whose claims it tries.
        say: Called with each line of its progress and errors.
        so_far: Called with its report, again and again until it ends.
    """
    lines: collections.deque[str] = collections.deque(maxlen=_LINES)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        process = subprocess.Popen(
            [*command, "--json", str(path)],
            stdin=subprocess.PIPE,  # the process ends with this pipe
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=os.name == "posix",  # signals arrive once: they are forwarded
        )
        with process, forwarding_signals(process.pid) as forwarded:
            assert process.stderr is not None
            for line in process.stderr:
                lines.append(line.rstrip())
                say(lines[-1])
                if (report := _read(path)) is not None:
                    so_far(report)
        report = _read(path)
    code = 128 + max(forwarded) if forwarded else process.returncode
    if report is not None and is_final(report):
        return report, code
    ended = _ended(framework, process.returncode, lines)
    return ended if report is None else merged([report, ended]), code


def _read(path: Path) -> VerifyReport | None:
    with contextlib.suppress(OSError, ValueError):
        return VerifyReport.from_dict(json.loads(path.read_text(encoding="utf-8")))
    return None


def _ended(framework: str, code: int, lines: Sequence[str]) -> VerifyReport:
    """Return a report that says how a process without a complete report ended."""
    scrub = scrubber()
    outcome = Outcome(
        group="processes",
        name=NAMES[framework],
        says=f"The process with {NAMES[framework]} connects to the TPU, and ends with a report.",
        status="differs",
        expected="a report",
        found=f"signal {-code}" if code < 0 else f"exit code {code}",
        message=scrub(" ".join(lines)),
    )
    return VerifyReport({}, (outcome,))
