"""Many steps by `Connection.run` against loops written by hand, in one process, in turns.

``python -m benchmarks.loops`` prints JSON: the seconds of a step of each kind. A run with curves
keeps two numbers for each replica and step. The loop that it is compared with keeps them too,
because TensorFlow does not compute values that nothing reads.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

_STEPS = 1000
_ROUNDS = 7
_SINGLES = 200  # single steps take several times as long
_BEST = (50, 200, 1000)
_PLOTTED = ("loss", "norm")


def main() -> None:
    """Measure all kinds and print JSON."""
    from tpunb import connect

    connection = connect(simulate="v5e-8")
    import tensorflow as tf

    step, dataset = _training(tf, connection.strategy)
    kinds: dict[str, Callable[[], Any]] = {
        "ours": lambda: connection.run(step, dataset, steps=_STEPS),
        "plotted": lambda: connection.run(step, dataset, steps=_STEPS, plot=_PLOTTED),
        "single": _single(tf, connection.strategy, step, dataset),
        **{f"hand {k}": _by_hand(tf, connection.strategy, step, dataset, k) for k in _BEST},
        **{f"kept {k}": _keeping(tf, connection.strategy, step, dataset, k) for k in _BEST},
    }
    times: dict[str, list[float]] = {name: [] for name in kinds}
    order = list(kinds)
    for run in kinds.values():
        run()  # traces
    for _ in range(_ROUNDS):
        order = order[1:] + order[:1]
        for name in order:
            began = time.perf_counter()
            kinds[name]()
            steps = _SINGLES if name == "single" else _STEPS
            times[name].append((time.perf_counter() - began) / steps)
    best = {kind: times[_fastest(times, kind)] for kind in ("hand", "kept")}
    print(json.dumps({**times, **best}), file=sys.__stdout__)


def _fastest(times: dict[str, list[float]], kind: str) -> str:
    """Return the name of the fastest loop of one kind."""
    return min((f"{kind} {k}" for k in _BEST), key=lambda name: statistics.median(times[name]))


def _training(tf: Any, strategy: Any) -> tuple[Callable[..., Any], Any]:
    """Return a step of under a millisecond, and its data."""
    with strategy.scope():
        weights = tf.Variable(tf.random.stateless_normal([64, 10], [1, 2]))
    images = tf.random.stateless_normal([64, 64], [3, 4])
    labels = tf.random.stateless_uniform([64], [5, 6], 0, 10, tf.int32)

    def step(images: Any, labels: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            logits = images @ weights
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        gradient = tape.gradient(loss, weights)
        context = tf.distribute.get_replica_context()
        gradient = context.all_reduce(tf.distribute.ReduceOp.MEAN, gradient)
        weights.assign_sub(0.01 * gradient)
        return {"loss": loss, "norm": tf.norm(gradient)}

    return step, tf.data.Dataset.from_tensors((images, labels)).cache().repeat().prefetch(4)


def _by_hand(
    tf: Any, strategy: Any, step: Any, dataset: Any, steps_per_loop: int
) -> Callable[[], None]:
    """Return the loop of the TPU guide."""

    @tf.function
    def loop(iterator: Any, steps: Any) -> None:
        for _ in tf.range(steps):
            strategy.run(step, args=next(iterator))

    def run() -> None:
        iterator = iter(strategy.experimental_distribute_dataset(dataset))
        for _ in range(_STEPS // steps_per_loop):
            loop(iterator, tf.constant(steps_per_loop))

    return run


def _keeping(
    tf: Any, strategy: Any, step: Any, dataset: Any, steps_per_loop: int
) -> Callable[[], Any]:
    """Return the same loop, which also keeps two numbers of each replica's steps."""
    replicas = strategy.num_replicas_in_sync

    @tf.function
    def loop(iterator: Any, steps: Any) -> Any:
        shape = [len(_PLOTTED), replicas]
        kept = tf.TensorArray(tf.float32, size=steps, element_shape=shape)
        for number in tf.range(steps):
            numbers = strategy.run(step, args=next(iterator))
            values = [strategy.experimental_local_results(numbers[name]) for name in _PLOTTED]
            kept = kept.write(number, tf.stack([tf.stack(value) for value in values]))
        return kept.stack()

    def run() -> Any:
        iterator = iter(strategy.experimental_distribute_dataset(dataset))
        return [
            loop(iterator, tf.constant(steps_per_loop)).numpy()
            for _ in range(_STEPS // steps_per_loop)
        ]

    return run


def _single(tf: Any, strategy: Any, step: Any, dataset: Any) -> Callable[[], None]:
    """Return a loop that makes one step per call."""

    @tf.function
    def one(iterator: Any) -> Any:
        return strategy.run(step, args=next(iterator))

    def run() -> None:
        iterator = iter(strategy.experimental_distribute_dataset(dataset))
        for _ in range(_SINGLES):
            one(iterator)

    return run


if __name__ == "__main__":
    main()
