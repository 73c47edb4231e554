"""Print the results of this folder's commands as soon as they are known."""

from __future__ import annotations

import sys
from typing import Any


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def say_row(name: str, tpu: str, program: Any, seconds: float) -> None:
    """Print a row for `docs/compiler-accuracy.md`: the estimate and the measured time."""
    time = program.time
    estimate = program.headline if time is None else f"{time} | {1e3 * time.estimate:.3g} ms"
    say(f"| {name} | {tpu} | {estimate} | {1e3 * seconds:.3g} ms |")
