"""The costs of nodes, conversions and products: the reasons for the constants of the engine.

``python -m benchmarks.joining_costs`` prints them for 8 replicas on one device, in microseconds
of a processor and in nodes for each replica. ``--steps`` prints the milliseconds of a processor
that training steps take with other constants. The constants are in `replicate/joining.py` and
`replicate/joining_rules.py`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

_Write = Callable[[Sequence[Any]], Sequence[Any]]

_REPLICAS, _ROWS, _WIDTH = 8, 16, 64
_WIDE = 1024
_NODES, _CALLS, _ROUNDS = 100, 20, 9
_OTHERS = (
    ("_CONVERSION", None),
    ("_CONVERSION", 0.5),
    ("_CONVERSION", 12.5),
    ("_BYTES", 2_000),
    ("_BYTES", 200_000),
    ("_TURNS", 2),
)
"""The constants that training steps are measured with; None for the usual ones."""


def main() -> None:
    """Print all costs."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    weights = tf.random.stateless_normal([_WIDTH, _WIDTH], [1, 2], stddev=0.1)

    def negated(values: Sequence[Any]) -> Sequence[Any]:
        return [tf.raw_ops.Neg(x=value) for value in values]

    def converted(values: Sequence[Any]) -> Sequence[Any]:
        rows = tf.raw_ops.ConcatV2(values=values, axis=0)
        parts: Sequence[Any] = tf.raw_ops.Split(axis=0, value=rows, num_split=_REPLICAS)
        return parts

    def multiplied(values: Sequence[Any]) -> Sequence[Any]:
        return [value @ weights for value in values]

    node = _seconds(tf, negated, _REPLICAS, [1, _WIDTH]) / _REPLICAS
    conversion = _seconds(tf, converted, _REPLICAS, [1, _WIDTH]) / _REPLICAS
    wide = _seconds(tf, converted, _REPLICAS, [_ROWS, _WIDE]) / _REPLICAS
    copied_bytes = 4 * (_ROWS * _WIDE - _WIDTH)
    separate = _seconds(tf, multiplied, _REPLICAS, [_ROWS, _WIDTH]) / _REPLICAS
    joined = _seconds(tf, multiplied, 1, [_REPLICAS * _ROWS, _WIDTH]) / _REPLICAS
    copied = copied_bytes * node / (wide - conversion)
    print(f"a node: {1e6 * node:.1f} us")
    print(f"joining and separating values: {conversion / node:.1f} nodes")
    print(f"bytes that are copied there and back like a node: {copied:,.0f}")
    print(f"a joined product saves {(separate - joined) / node:.1f} nodes")


def steps() -> None:
    """Print the time of training steps on 8 cores with other constants."""
    from benchmarks.training import training_step
    from tpunb.tensorflow.virtual.replicate import joining
    from tpunb.virtual import VirtualTPUStrategy

    for model in ("mlp", "cnn", "lstm"):
        calls = {}
        for name, value in _OTHERS:
            usual = getattr(joining, name, None)
            setattr(joining, name, usual if value is None else value)
            calls[f"{name} {value}"] = training_step(
                VirtualTPUStrategy(_REPLICAS), model, _REPLICAS
            )
            calls[f"{name} {value}"]()
            setattr(joining, name, usual)
        rounds = [{key: _processor_seconds(call) for key, call in calls.items()} for _ in range(9)]
        for key in calls:
            print(f"{model:5} {key:20} {1e3 * min(each[key] for each in rounds):.2f} ms")


def _seconds(tf: Any, write: _Write, count: int, shape: Sequence[int]) -> float:
    """Return the processor's seconds that one more turn takes, on some tensors of a shape."""
    short, long = (_seconds_of(tf, write, count, shape, turns) for turns in (_NODES, 3 * _NODES))
    return (long - short) / (2 * _NODES)


def _seconds_of(tf: Any, write: _Write, count: int, shape: Sequence[int], turns: int) -> float:
    tensors = [tf.random.stateless_uniform(shape, [k, 1]) for k in range(count)]

    @tf.function
    def chain(*values: Any) -> Any:
        for _ in range(turns):
            values = tuple(write(values))
        return values

    with tf.device("CPU:0"):
        chain(*tensors)
        return min(_processor_seconds(lambda: chain(*tensors)) for _ in range(_ROUNDS))


def _processor_seconds(call: Callable[[], Any]) -> float:
    begin = time.process_time()
    for _ in range(_CALLS):
        call()
    return (time.process_time() - begin) / _CALLS


if __name__ == "__main__":
    steps() if "--steps" in sys.argv else main()
