"""Which values are Keras models, of any backend, and what their layers are called."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any


def is_model(value: object) -> bool:
    """Whether this is a Keras model, of Keras 3 or tf_keras."""
    return all(hasattr(value, name) for name in ("train_step", "predict_step", "layers"))


def layer_names(fn: Any) -> frozenset[str]:
    """The names of the layers of the models that a function is, is a method of, or uses."""
    return frozenset(
        layer.name
        for model in _models(fn)
        for layer in (
            model._flatten_layers() if hasattr(model, "_flatten_layers") else model.layers
        )
    )


def _models(fn: Any) -> Iterator[Any]:
    for value in (fn, getattr(fn, "__self__", None)):
        if is_model(value):
            yield value
            return
    plain = inspect.unwrap(getattr(fn, "python_function", fn))
    try:
        used = inspect.getclosurevars(plain)
    except (TypeError, ValueError):
        return
    for value in (*used.nonlocals.values(), *used.globals.values()):
        if is_model(value):
            yield value
        elif callable(value) and getattr(value, "__closure__", None):
            cells = [cell.cell_contents for cell in value.__closure__ if _is_filled(cell)]
            yield from filter(is_model, cells)


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
