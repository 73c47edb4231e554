"""A fault found in a replica function, before its line and its severity are known."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from tpunb.errors.code_problems import Problem, SourceLine, definition, innermost
from tpunb.errors.explain import explain
from tpunb.virtual.keras_internals import is_model

Choose = Callable[[Sequence[SourceLine]], "tuple[str, int] | None"]
"""Which of the lines that led to a node is shown."""

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


def problem_of(
    diagnostic: Diagnostic,
    places: Sequence[SourceLine],
    choose: Choose,
) -> Problem:
    """A diagnostic for a reader.

    Args:
        diagnostic: What was found.
        places: The lines that led to it, innermost first.
        choose: Says which of them is shown.
    """
    file, line = choose(places) or ("", None)
    known = explain(diagnostic.message)
    return Problem(
        diagnostic.rule,
        line,
        file,
        diagnostic.reason,
        diagnostic.fix,
        known.code if known else None,
    )


def chooser(fn: Any) -> Choose:
    """Which line of a function is shown: the innermost, or where the function is defined."""
    if is_model(fn) or is_model(getattr(fn, "__self__", None)):
        return innermost  # of a library's model no line is the user's
    defined = definition(fn)
    return lambda places: innermost(places) or defined
