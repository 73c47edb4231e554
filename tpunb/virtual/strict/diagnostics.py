"""A fault found in a replica function, before its line and its severity are known."""

from __future__ import annotations

import dataclasses

__all__ = ["UNCHECKED", "Diagnostic", "Unknown"]

UNCHECKED = "It runs here; whether a TPU compiles it is not known."
"""What is advised where nothing is known of a function."""


class Unknown(Exception):
    """A function that cannot be compiled by itself, so that nothing is known of it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Diagnostic:
    """Something in a replica function that a TPU refuses or is slow at.

    Attributes:
        rule: The rule's name.
        node: The node's name, with those of the calls around it; empty where
            it concerns the whole function.
        op: The operation's type.
        reason: What is the matter, a sentence for the author.
        fix: What to do, a sentence.
        message: What TensorFlow says on a TPU.
    """

    rule: str
    node: str
    op: str
    reason: str
    fix: str
    message: str
