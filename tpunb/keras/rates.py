"""The learning rate, looked at now and then."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpunb.histories import History

__all__ = ["RATE", "RATE_NAMES", "Rates"]

RATE = "learning_rate"
RATE_NAMES = (RATE, "lr")
"""The names under which callbacks of Keras log the rate; ours is exact to the step."""

_SELDOM = 100
_AT_LEAST = 10


class Rates:
    """Records the learning rate at each epoch's start, and between.

    Looking costs a transfer from the device, and a schedule is computed for it. So
    it is done ten times in a short training, and every hundred steps in a long one.

    Args:
        history: Where to; nothing is recorded while the rate stays what it was.
        model: The model whose optimizer has the rate.
        steps: How many steps an epoch has, if known.
        epochs: How many epochs there are, if known.
        always: Whether to record a rate that does not change.

    Attributes:
        next_step: The first step at which to look again.
    """

    def __init__(
        self, history: History, model: Any, steps: int | None, epochs: int | None, *, always: bool
    ) -> None:
        self._history = history
        self._model = model
        total = (steps or 0) * (epochs or 0)
        self._stride = max(1, min(_SELDOM, total // _AT_LEAST)) if total else _SELDOM
        self.next_step = 0
        self._seen: list[tuple[int, float]] = []
        self._changes = always

    def begin_epoch(self) -> None:
        """Makes the next sample one."""
        self.next_step = 0

    def sample(self, step: int) -> None:
        """Looks at the rate with which a step is about to be done."""
        self.next_step = step + self._stride
        rate = _rate_of(getattr(self._model, "optimizer", None))
        if rate is None:
            return
        self._seen.append((step, rate))
        self._changes = self._changes or rate != self._seen[0][1]
        if self._changes:
            for each in self._seen:
                self._history.append(each[0], {RATE: each[1]})
            self._seen = self._seen[-1:]


def _rate_of(optimizer: Any) -> float | None:
    """An optimizer's rate for its next step; None if it has none."""
    while (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
        optimizer = inner  # what scales the loss is around it
    try:
        rate = optimizer.learning_rate
        if hasattr(optimizer, "_current_learning_rate"):
            # tf_keras tells of a schedule only what it was for the last step.
            rate = optimizer._learning_rate
        if callable(rate):
            rate = rate(optimizer.iterations)
        return float(np.asarray(rate.numpy() if hasattr(rate, "numpy") else rate))
    except (AttributeError, TypeError, ValueError):
        return None
