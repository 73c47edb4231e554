"""The words for a collective's effect, which its picture and its text share."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpunb._util.plain_text import aligned, hanging, listed, plain, shortened
from tpunb._util.units import shape_phrase
from tpunb.display.describe.collective_effect import NOTHING, Array, CollectiveEffect, Held

_NAMES = {
    "all_reduce": "All-reduce",
    "all_gather": "All-gather",
    "reduce_scatter": "Reduce-scatter",
    "all_to_all": "All-to-all",
    "ppermute": "Permute",
    "broadcast": "Broadcast",
}
_SENTENCES = {
    "all_reduce": "Every core gets the {reduction} of the values of all {cores} cores.",
    "all_gather": "Every core gets the values of all {cores} cores, one after the other.",
    "reduce_scatter": "The {reduction} is cut into {cores} parts. Core 0 gets the first part, "
    "core 1 the second.",
    "all_to_all": "Each core cuts its value into {cores} parts, and sends the first to core 0, "
    "the second to core 1.",
    "broadcast": "Every core gets the value of core {source}.",
}
_WIDTH = 100
_MOST_IN_TEXT = 16
"""The most elements that a line of text or an alternative text lists."""


def effect_title(effect: CollectiveEffect) -> str:
    """Return the title: `"All-reduce (sum) over 8 cores"`."""
    kind = _NAMES[effect.operation] + (f" ({effect.reduction})" if effect.reduction else "")
    return f"{kind} over {len(effect.before)} cores"


def effect_sentence(effect: CollectiveEffect) -> str:
    """Return what the collective does to the values."""
    if effect.operation == "ppermute":
        return _permutation(effect)
    source = effect.sends[0][0]
    reduction = {"max": "maximum", "min": "minimum"}.get(effect.reduction, effect.reduction)
    return _SENTENCES[effect.operation].format(
        reduction=reduction, cores=len(effect.before), source=source
    )


def _permutation(effect: CollectiveEffect) -> str:
    sent = listed([f"{source} → {target}" for source, target in effect.sends])
    sentence = f"Each core sends its value to one other core: {sent}."
    empty = [core for core, held in enumerate(effect.after) if (held.origins == NOTHING).any()]
    if not empty:
        return sentence
    who = f"Cores {listed(list(map(str, empty)))} receive"
    who = who if len(empty) > 1 else f"Core {empty[0]} receives"
    return f"{sentence} {who} nothing, and get{'' if len(empty) > 1 else 's'} zeros."


def effect_text(effect: CollectiveEffect) -> str:
    """Return a collective's effect as plain text, a line for each core."""
    head = ("core", "before", "", "after")
    rows = [
        (str(core), array_text(before.values), "→", array_text(after.values))
        for core, (before, after) in enumerate(zip(effect.before, effect.after, strict=True))
    ]
    table = (shortened(line, _WIDTH) for line in aligned([head, *rows], "  "))
    sentence = hanging("  ", effect_sentence(effect), _WIDTH)
    return plain("\n".join([effect_title(effect), sentence, *table]))


def effect_says(effect: CollectiveEffect) -> str:
    """Return the alternative text of the picture."""
    pairs = zip(effect.before, effect.after, strict=True)
    cores = (
        f"core {core} has {array_text(before.values)} before and {array_text(after.values)} after"
        for core, (before, after) in enumerate(pairs)
    )
    return f"{effect_title(effect)}. {effect_sentence(effect)} {'; '.join(cores)}."


def array_text(values: Array) -> str:
    """Return an array as short text: `"[1, 2, 3]"`, or its type and shape if it is large."""
    if values.ndim == 0:
        return number(values[()])
    if values.size > _MOST_IN_TEXT or values.ndim > 2:
        return f"{values.dtype}{shape_phrase(values.shape)}"
    if values.ndim == 2:
        return f"[{', '.join(map(array_text, values))}]"
    return f"[{', '.join(map(number, values))}]"


def number(value: Any) -> str:
    """Return a number with at most four digits after the first, as a picture has room for."""
    if isinstance(value, (bool, np.bool_, int, np.integer)):
        return str(value)
    if np.iscomplexobj(value):
        return shortened(f"{complex(value):.3g}", 12)
    return f"{float(value):.4g}"


def is_drawn_in_full(held: Held) -> bool:
    """Return whether there is room for each element of a value."""
    shape = held.values.shape
    return held.values.ndim < 3 and held.values.size <= 32 and max(shape[:1], default=1) <= 16
