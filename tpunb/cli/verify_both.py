"""`tpunb verify --framework both`: one report from a process for each framework.

A TPU belongs to one process, and both frameworks in one process would share it.
"""

from __future__ import annotations

import collections
import contextlib
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tpunb.machine.framework import JAX, NAMES, TENSORFLOW
from tpunb.verification.report import VerifyReport, merged, scrubber
from tpunb.verification.suite import Outcome

_LINES = 12
"""The last lines of a process's errors, for the report if it dies."""


def verify_both(
    arguments: Sequence[str], say: Callable[[str], None], tensorflow_python: str = ""
) -> VerifyReport:
    """Verify with JAX and then with TensorFlow, and return one report.

    Args:
        arguments: The arguments of `tpunb verify`, without the framework and without files.
        say: Called with each line of progress.
        tensorflow_python: The Python with TensorFlow; empty for this one.
    """
    pythons = {JAX: sys.executable, TENSORFLOW: tensorflow_python or sys.executable}
    reports = []
    for framework, python in pythons.items():
        command = _command(python, framework, arguments)
        reports.append(_verified(framework, command, say))
        if reports[-1].interrupted:
            break
    return merged(reports)


def _verified(framework: str, command: Sequence[str], say: Callable[[str], None]) -> VerifyReport:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        lines: collections.deque[str] = collections.deque(maxlen=_LINES)
        told = lambda line: say(f"{NAMES[framework]:10} {line}")  # noqa: E731
        code = _run([*command, "--json", str(path)], lines, told)
        with contextlib.suppress(OSError, ValueError):
            report = VerifyReport.from_dict(json.loads(path.read_text(encoding="utf-8")))
            return (
                merged([report, _ended(framework, code, lines)]) if report.not_reached else report
            )
    return _ended(framework, code, lines)


def _command(python: str, framework: str, arguments: Sequence[str]) -> list[str]:
    return [python, "-m", "tpunb", "verify", *arguments, "--framework", framework]


def _run(command: Sequence[str], lines: collections.deque[str], say: Callable[[str], None]) -> int:
    """Run a command, and pass on the lines of its errors. An interrupt reaches it too."""
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as process:
        assert process.stderr is not None
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for line in process.stderr:
                lines.append(line.rstrip())
                say(line.rstrip())
        finally:
            signal.signal(signal.SIGINT, before)
    return process.returncode


def _ended(framework: str, code: int, lines: Sequence[str]) -> VerifyReport:
    """Return a report that says how a process without a result ended."""
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
    return VerifyReport({"TPU": "not known"}, (outcome,))
