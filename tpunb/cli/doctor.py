"""`tpunb doctor`: what of this machine matters for TPUs, and what to do next."""

from __future__ import annotations

import argparse
import json
from typing import Any

from tpunb.cli.outcome import Failed

__all__ = ["add_to"]

_EPILOG = """\
examples:
  tpunb doctor
  tpunb doctor --json | jq .findings

exit codes: 0 all is in order; 1 something has to be mended first
"""


def add_to(commands: Any) -> None:
    """Adds the command to those of the parser."""
    doctor = commands.add_parser(
        "doctor",
        help="say what of this machine matters for TPUs, and what to do next",
        description="Show versions and whether they fit, TPU devices and who holds them, "
        "environment variables that matter, memory, what %%tpu_connect would do, and the one "
        "thing to do next. TensorFlow is not imported, and secrets are not shown.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    doctor.add_argument("--json", action="store_true", help="print the report as JSON")
    doctor.set_defaults(command=_doctor)


def _doctor(args: argparse.Namespace) -> None:
    from tpunb.checkup import doctor

    report = doctor()
    print(json.dumps(report.as_dict(), indent=2) if args.json else report)
    if not report.ok:
        raise Failed(report.headline)
