"""What trying a claim has shown."""

from __future__ import annotations

import dataclasses

__all__ = ["NotRunError", "Observation"]


@dataclasses.dataclass(frozen=True, slots=True)
class Observation:
    """What trying a claim has shown.

    Attributes:
        holds: Whether what was found is what is claimed.
        expected: What is claimed, in a few words or numbers.
        found: What was found, likewise.
        message: The error's text, where there was one.
    """

    holds: bool
    expected: str
    found: str
    message: str = ""


class NotRunError(Exception):
    """A claim cannot be tried here; the message says why."""
