"""`tpunb doctor`: check this machine's TPU setup and show the next step."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpunb.cli.command import Failed, add_command, for_a_terminal

if TYPE_CHECKING:
    from tpunb.cli.course_check import CourseReport
    from tpunb.connection.doctor import DoctorReport

_EPILOG = """\
examples:
  tpunb doctor
  tpunb doctor --json | jq .problems
  tpunb doctor --course notebooks/course   is this laptop ready for the lessons?

exit codes: 0 no blocking problem; 1 a problem must be fixed first, or a lesson cannot run
"""


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    doctor = add_command(
        commands,
        "doctor",
        _doctor,
        help="check this machine's TPU setup and show the next step",
        description="Show versions and conflicts, TPU devices and the processes that use them, "
        "relevant environment variables, memory, what %tpu_connect would do, and the next step. "
        "It does not import TensorFlow and hides secrets.",
        epilog=_EPILOG,
    )
    doctor.add_argument("--json", action="store_true", help="print the report as JSON")
    doctor.add_argument(
        "--course",
        nargs="?",
        const=Path(),
        type=Path,
        metavar="FOLDER",
        help="check instead whether this machine is ready for the course: packages, kernel, "
        "compiler or recorded answers, and a test cell (FOLDER: the lessons' folder; default: "
        "this one)",
    )


def _doctor(args: argparse.Namespace) -> None:
    report = _course(args.course) if args.course is not None else _machine()
    print(json.dumps(report.as_dict(), indent=2) if args.json else for_a_terminal(report))
    if not report.ok:
        raise Failed(report.headline)


def _machine() -> DoctorReport:
    from tpunb.connection.doctor import doctor

    return doctor()


def _course(folder: Path) -> CourseReport:
    from tpunb.cli.course_check import course_report

    return course_report(folder)
