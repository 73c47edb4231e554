"""Keras's record of a `fit` as a history: the values of each epoch, at the epoch's last step."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from tpunb._util.attributes import attribute
from tpunb.training.history import History


def is_fit_history(value: Any) -> bool:
    """Return whether a value is the record that `fit` returns, of Keras 3 or tf_keras."""
    lists, epochs = attribute(value, "history"), attribute(value, "epoch")
    return isinstance(lists, Mapping) and isinstance(epochs, list) and hasattr(value, "params")


def history_of_fit(record: Any) -> History:
    """Return Keras's record of a `fit` as a history.

    Steps count batches, as in `LiveCurves`, so that runs with other batch sizes can be compared.
    If Keras does not know the number of batches in an epoch, steps count epochs. A note says so.

    Args:
        record: The value that `fit` returned.
    """
    params = record.params if isinstance(record.params, Mapping) else {}
    per_epoch = params.get("steps")
    history = History(total_steps=_total(per_epoch, params.get("epochs")))
    if not per_epoch:
        history.notes["epochs"] = "The steps of a run without a known number of batches are epochs."
    ends = [(epoch + 1) * (per_epoch or 1) for epoch in record.epoch]
    for name, values in record.history.items():
        with contextlib.suppress(TypeError, ValueError):  # not numbers
            rows = [float(value) for value in values]
            history.extend(name, _spread_over(ends, len(rows)), rows)
    history.finish(stopped=len(ends) < (params.get("epochs") or 0) - _first_epoch(record.epoch))
    return history


def _total(per_epoch: int | None, epochs: int | None) -> int | None:
    return per_epoch * epochs if per_epoch and epochs else None


def _first_epoch(epochs: Sequence[int]) -> int:
    return epochs[0] if epochs else 0


def _spread_over(ends: Sequence[int], count: int) -> list[int]:
    """Return the steps of a metric's values, which may be rarer than epochs (`validation_freq`)."""
    if not count or count > len(ends):
        return []
    return [ends[round((number + 1) * len(ends) / count) - 1] for number in range(count)]
