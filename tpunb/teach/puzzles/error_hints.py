"""Hints about errors that learners meet in puzzles. The messages are those of JAX 0.7 to 0.12."""

from __future__ import annotations

import re

_HINTS = {
    "could not infer replication|require replication": (
        "Every core has to return the same result here. Combine the cores' parts with a "
        'collective, such as jax.lax.psum(value, "core") or jax.lax.pmean.'
    ),
    "unbound axis name|^AssertionError: $": 'The mesh has one axis, "core".',
    # JAX up to 0.7 raises it for an unknown axis, without further words.
    r"^KeyError: '\w+'$": 'If this is the name of an axis: the mesh has one axis, "core".',
    "carry.*(?:varying|type)": (
        "The carry keeps its shape and type in a loop. If it becomes different from core to core, "
        "begin with such a value too: add 0 times a number of the core's own part."
    ),
    "does not divide|evenly divid|not divisible": (
        "An axis can be cut over the cores only if its size is a multiple of their number."
    ),
}


def hint_for(error: Exception) -> str:
    """Return what helps against an error, or `""`."""
    message = f"{type(error).__name__}: {error}"
    found = (fix for pattern, fix in _HINTS.items() if re.search(pattern, message, re.DOTALL))
    return next(found, "")
