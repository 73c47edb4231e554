"""The cost of live curves for a `fit` whose batches take 1 ms, against two other packages.

``python -m benchmarks.keras_curves`` prints JSON: the seconds per batch in each round without a
callback, with LiveCurves, with livelossplot (which draws once an epoch) and with fastprogress, if
they are installed. ``--legacy`` takes tf_keras. The callbacks take turns in one process. ``ours``
leaves out the work that LiveCurves does once in a fit: it shows the widget, and draws the picture
at the end. The seconds of that work are ``once``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

os.environ["TPUNB_WIDGETS"] = "always"
_BATCH = 64
_SECONDS = 0.001
_ROUNDS = 5
_BATCHES = 1000


def main() -> None:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--legacy", action="store_true", help="tf_keras instead of Keras 3")
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    args = parser.parse_args()
    from benchmarks.curves import _kernel

    with _kernel():
        measured = measure("tf_keras" if args.legacy else "keras", args.rounds)
    print(json.dumps(measured), file=sys.__stdout__)


def measure(name: str, rounds: int = _ROUNDS) -> dict[str, list[float]]:
    """Return the seconds per batch of each way in each round."""
    keras = importlib.import_module(name)
    fit = _fit_of(keras)
    once: list[float] = []
    ways = _ways(name, once)
    times: dict[str, list[float]] = {way: [] for way in ways}
    onces: list[float] = []
    order = list(ways.items())
    for _ in range(rounds):
        order = order[1:] + order[:1]  # the first of a round has another speed
        for way, callback in order:
            once.clear()
            each = fit([each for each in [callback()] if each is not None], _BATCHES)
            times[way].append(each - sum(once) / _BATCHES)
            if once:
                onces.append(sum(once))
    return {**times, "once": onces}


def _ways(name: str, once: list[float]) -> dict[str, Callable[[], Any]]:
    from tpunb.keras import LiveCurves

    class Timed(LiveCurves):
        def on_train_begin(self, logs: Any = None) -> None:
            began = time.perf_counter()
            super().on_train_begin(logs)
            once.append(time.perf_counter() - began)

        def on_train_end(self, logs: Any = None) -> None:
            began = time.perf_counter()
            super().on_train_end(logs)
            once.append(time.perf_counter() - began)

    ways: dict[str, Callable[[], Any]] = {"without": lambda: None, "ours": Timed}
    if name == "keras":
        ways |= _livelossplot() | _fastprogress()
    return ways


def _livelossplot() -> dict[str, Callable[[], Any]]:
    try:
        import matplotlib as mpl

        mpl.use("agg")
        from livelossplot import PlotLossesKerasTF
    except ImportError:
        return {}
    return {"livelossplot": PlotLossesKerasTF}


def _fastprogress() -> dict[str, Callable[[], Any]]:
    import keras

    try:
        from fastprogress.fastprogress import NBProgressBar
    except ImportError:
        return {}

    class Bar(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            self.bar = NBProgressBar(range(self.params["steps"]))
            self.bar.on_iter_begin()
            self.bar.update(0)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.bar.comment = f"loss {logs['loss']:.4f}"
            self.bar.update(batch + 1)

    return {"fastprogress": Bar}


def _fit_of(keras: Any) -> Callable[[list[Any], int], float]:
    """Return a function that fits batches of about a millisecond and returns seconds per batch."""
    import numpy as np
    import tensorflow as tf

    width, taken = 64, 0.0
    while taken < _SECONDS and width < 2048:
        width = int(width * 1.25)
        data = np.zeros([_BATCH, 64], np.float32), np.zeros([_BATCH, 1], np.float32)
        layers = keras.layers
        model = keras.Sequential([layers.Dense(width, "relu"), layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"])
        batches = tf.data.Dataset.from_tensors(data).repeat()

        def fit(callbacks: list[Any], steps: int, model: Any = model, data: Any = batches) -> float:
            began = time.perf_counter()
            with redirect_stdout(StringIO()):
                model.fit(data, steps_per_epoch=steps, verbose=0, callbacks=callbacks)
            return (time.perf_counter() - began) / steps

        fit([], 10)
        taken = min(fit([], 200) for _ in range(3))
    return fit


if __name__ == "__main__":
    main()
