"""The counts of replicas and examples that a number in a step's code may stand for."""

from __future__ import annotations

import dataclasses

_MOST_STEPS = 64
"""The largest multiple of the number of replicas that code is likely to compute."""


@dataclasses.dataclass(frozen=True)
class Meaning:
    """A meaning that a number may have, apart from a number of the user's choice.

    Attributes:
        on_one: The number that it would be on one replica with the same global batch.
        what: The meaning.
        instead: The code that says so.
        is_multiple: Whether it would be a multiple of the number of replicas, or one over that.
        is_batch: Whether it may also be the size of the global batch, or one over that.
        is_weight: Whether it rather is the weight of a term, or a rate.
    """

    on_one: float
    what: str
    instead: str
    is_multiple: bool = False
    is_batch: bool = False
    is_weight: bool = False


def meaning_of(value: float, replicas: int, examples: int, *, is_literal: bool) -> Meaning | None:
    """Return the meaning that a number may have; None if it has none.

    Args:
        value: The number.
        replicas: The number of replicas, which is more than 1.
        examples: The number of a replica's examples.
        is_literal: Whether the number is a literal, which no code computes.
    """
    if not value:
        return None
    is_share = abs(value) < 1
    size = 1 / abs(value) if is_share else abs(value)
    times = round(size / replicas)
    fewer, more = value / replicas, value * replicas
    if is_share:
        fewer, more = more, fewer
    if _equal(size, replicas):
        what = "one over the number of replicas" if is_share else "as many as there are replicas"
        return Meaning(fewer, what, _instead("1 / {}" if is_share else "{}"))
    if examples > 1 and _equal(size, examples):
        what = "one over the number of a replica's examples"
        what = what if is_share else "as many as a replica has examples"
        code = "1 / tf.shape(x)[0]" if is_share else "tf.shape(x)[0]"
        return Meaning(more, what, f"`{code}` of the batch `x`")
    if is_literal or not times or not _equal(size, times * replicas):
        return None
    what = "a multiple of the number of replicas"
    return Meaning(
        fewer,
        f"one over {what}" if is_share else what,
        _instead(f"1 / ({times} * {{}})" if is_share else f"{times} * {{}}"),
        is_multiple=True,
        is_batch=_equal(size, replicas * examples),
        is_weight=_is_chosen(value) if is_share else times > _MOST_STEPS,
    )


def _equal(size: float, count: int) -> bool:
    return abs(size / count - 1) <= 1e-5


def _is_chosen(share: float) -> bool:
    """Return whether a share, such as 0.001, has too few digits to be a computed share."""
    return len(f"{share:.10e}".partition("e")[0].replace(".", "").rstrip("0").lstrip("-")) <= 2


def _instead(text: str) -> str:
    """Return code that asks for the number of replicas, inside a cell and elsewhere."""
    in_cell, in_step = text.format("num_replicas"), text.format("strategy.num_replicas_in_sync")
    return f"`{in_cell}` in a cell, or `{in_step}` inside the step"
