"""`tpunb doctor`: what of this machine matters for TPUs, and what to do next."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from tpunb.cli.outcome import Failed
from tpunb.machine import Machine, look

__all__ = ["add_to"]

_EPILOG = """\
examples:
  tpunb doctor

exit codes: 0 all is in order; 1 something has to be mended first
"""


def add_to(commands: Any) -> None:
    """Adds the command to those of the parser."""
    doctor = commands.add_parser(
        "doctor",
        help="say what of this machine matters for TPUs, and what to do next",
        description="Show versions, TPU devices and environment variables that matter, what "
        "%%tpu_connect would do, and the one thing to do next. TensorFlow is not imported.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    doctor.set_defaults(command=_doctor)


def _doctor(args: argparse.Namespace) -> None:
    del args
    machine = look()
    rows = list(_rows(machine))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")
    if machine.mend:
        raise Failed(machine.mend)
    print(f"{'next':<{width}}  {machine.next_step}")


def _rows(machine: Machine) -> Iterator[tuple[str, str]]:
    yield "Python", machine.python
    yield from machine.versions.items()
    yield "TPU", machine.search.tpu or "none found"
    for tried in machine.search.tried:
        yield "", tried
    for path in machine.locks:
        yield "lock file", path
    yield from machine.variables.items()
    yield "%tpu_connect", _connecting(machine)


def _connecting(machine: Machine) -> str:
    default = machine.variables.get("TPUNB_TPU", "").strip()
    if default:
        return f"connects to {default}, which TPUNB_TPU names"
    if machine.search.tpu is None:
        return "connects to a virtual v5e-8, because no TPU was found"
    return f"connects to {machine.search.tpu}"
