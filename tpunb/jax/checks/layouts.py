"""The check of a Keras `LayoutMap`: whether its keys match the paths of the model's variables."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tpunb._util.plain_text import listed
from tpunb.errors.code_problems import Problem
from tpunb.jax.checks.call import Call
from tpunb.machine.keras_internals import layout_map

_MOST_PATHS = 4


def unmatched_layouts(call: Call) -> Iterator[Problem]:
    """Yield the keys of the `LayoutMap` that match no variable of the model.

    Keras says nothing of them, and the variables are whole on each device (keras-hub#2827). Keras
    3.15 compares a key with the whole path, and earlier releases search in it. So the map is asked.
    """
    layouts = layout_map() if call.model is not None else None
    if not layouts:
        return
    paths = [weight.path for weight in call.model.weights]
    of_paths = [layouts[path] for path in paths]
    optimizer = getattr(call.model, "optimizer", None)
    others = [layouts[variable.path] for variable in getattr(optimizer, "variables", ())]
    known = {id(layout) for layout in (*of_paths, *others)}
    unmatched = [key for key in layouts if id(layouts[key]) not in known]
    if not unmatched:
        return
    sharded = sum(layout is not None and any(layout.axes) for layout in of_paths)
    keys = listed([f"`{key}`" for key in unmatched])
    whole = next((key for key in unmatched if any(re.search(key, path) for path in paths)), None)
    shown = ", ".join([*paths[:_MOST_PATHS], *["…"][: len(paths) > _MOST_PATHS]])
    yield Problem(
        "layout-map",
        f"{sharded} of {len(paths)} weights of {call.model.name} are sharded: {keys} in the "
        f"LayoutMap {'match' if len(unmatched) > 1 else 'matches'} no path, and other weights are "
        "whole on each device.",
        f"The paths are {shown}."
        + (f" This Keras compares whole paths: write `.*{whole}`." if whole else ""),
    )
