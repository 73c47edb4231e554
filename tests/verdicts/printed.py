"""What the commands of this folder print, as soon as it is known."""

from __future__ import annotations

import sys
from typing import Any


def say(text: str) -> None:
    """Prints a line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def say_row(name: str, tpu: str, program: Any, seconds: float) -> None:
    """Prints a row of the table in `docs/compiler-measured.md`: the estimate, and what was measured."""
    time = program.time
    found = program.headline if time is None else f"{time} | {1e3 * time.estimate:.3g} ms"
    say(f"| {name} | {tpu} | {found} | {1e3 * seconds:.3g} ms |")
