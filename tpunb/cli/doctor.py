"""`tpunb doctor`: check this machine's TPU setup and show the next step."""

from __future__ import annotations

import argparse
import json
from typing import Any

from tpunb.cli.command import Failed, add_command

_EPILOG = """\
examples:
  tpunb doctor
  tpunb doctor --json | jq .problems

exit codes: 0 no blocking problem; 1 a problem must be fixed first
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


def _doctor(args: argparse.Namespace) -> None:
    from tpunb.connection.doctor import doctor

    report = doctor()
    print(json.dumps(report.as_dict(), indent=2) if args.json else report)
    if not report.ok:
        raise Failed(report.headline)
