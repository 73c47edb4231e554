"""Print the results of this folder's commands as soon as they are known."""

from __future__ import annotations

import sys
from typing import Any

from tpunb._util.units import duration


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def say_row(name: str, tpu: str, program: Any, seconds: float) -> None:
    """Print a row for `docs/compiler-accuracy.md`: the estimate and the measured time."""
    time, estimate = program.time, program.headline
    if time is not None:  # the published times include the host's start
        estimate = f"{duration(time.low)} to {duration(time.high)} | {duration(time.estimate)}"
    say(f"| {name} | {tpu} | {estimate} | {duration(seconds)} |")
