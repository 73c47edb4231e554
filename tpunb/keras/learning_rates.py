"""The learning rate, sampled now and then."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpunb.training.history import History
from tpunb.virtual.keras_internals import is_of_jax, jax_value_of, learning_rate_of

RATE = "learning_rate"
RATE_NAMES = (RATE, "lr")
"""The names under which callbacks of Keras log the rate; ours is exact to the step."""

_SELDOM = 100
_AT_LEAST = 10


class LearningRates:
    """Records the learning rate at each epoch's start, and between.

    A sample costs a transfer from the device, and computing a schedule. So there are ten
    in a short training, and one every hundred steps in a long one.

    Args:
        history: Where to; nothing is recorded while the rate stays what it was.
        model: The model whose optimizer has the rate.
        steps: How many steps an epoch has, if known.
        epochs: How many epochs there are, if known.
        always: Whether to record a rate that does not change.

    Attributes:
        next_step: The first step at which to sample again.
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
        """Samples the rate with which the next step is done."""
        self.next_step = step + self._stride
        rate = _rate_of(getattr(self._model, "optimizer", None), self._model)
        if rate is None:
            return
        self._seen.append((step, rate))
        self._changes = self._changes or rate != self._seen[0][1]
        if self._changes:
            for each in self._seen:
                self._history.append(each[0], {RATE: each[1]})
            self._seen = self._seen[-1:]


def _rate_of(optimizer: Any, model: Any) -> float | None:
    """An optimizer's rate for its next step; None if it has none."""
    while (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
        optimizer = inner  # what scales the loss is around it
    try:
        if is_of_jax(model):
            rate = learning_rate_of(optimizer)
            if not callable(rate):
                return float(jax_value_of(rate, model))
            return float(rate(jax_value_of(optimizer.iterations, model)))
        rate = optimizer.learning_rate
        if hasattr(optimizer, "_current_learning_rate"):
            # Of a schedule tf_keras has the rate of the last step only.
            rate = learning_rate_of(optimizer)
        if callable(rate):
            rate = rate(optimizer.iterations)
        return float(np.asarray(rate.numpy() if hasattr(rate, "numpy") else rate))
    except (AttributeError, TypeError, ValueError):
        return None
