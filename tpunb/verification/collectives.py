"""Claims about operations across replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tpunb.verification.bench import Bench
from tpunb.verification.claims import Claims
from tpunb.verification.observation import Observation
from tpunb.verification.observing import close, refused

__all__ = ["ACROSS", "COLLECTIVES"]

COLLECTIVES = Claims("collectives inside a replica function")
ACROSS = Claims("collectives outside")


def _context() -> Any:
    import tensorflow as tf

    return tf.distribute.get_replica_context()


def _all(bench: Bench, value: Any) -> np.ndarray:
    """The same value for each replica."""
    return np.asarray([value] * bench.replicas)


def _summed(bench: Bench, dtype: str) -> Observation:
    import tensorflow as tf

    def step(x: Any) -> Any:
        return tf.cast(_context().all_reduce("SUM", tf.cast(x % 4.0, dtype)), tf.float32)

    return close(_all(bench, float((bench.ranks % 4.0).sum())), bench.on_ranks(step))


@COLLECTIVES.claim("all_reduce SUM", "every replica gets the sum over the replicas")
def _(bench: Bench) -> Observation:
    found = bench.on_ranks(lambda x: _context().all_reduce("SUM", x))
    return close(_all(bench, bench.ranks.sum()), found)


@COLLECTIVES.claim("all_reduce MEAN", "every replica gets the mean over the replicas")
def _(bench: Bench) -> Observation:
    found = bench.on_ranks(lambda x: _context().all_reduce("MEAN", x))
    return close(_all(bench, bench.ranks.mean()), found, bench.tolerance())


@COLLECTIVES.claim("all_reduce of bfloat16", "bfloat16 is summed")
def _(bench: Bench) -> Observation:
    return _summed(bench, "bfloat16")


@COLLECTIVES.claim("all_reduce of int32", "int32 is summed")
def _(bench: Bench) -> Observation:
    return _summed(bench, "int32")


@COLLECTIVES.claim("all_reduce of int64", "int64 is refused")
def _(bench: Bench) -> Observation:
    return refused(lambda: _summed(bench, "int64").found)


@COLLECTIVES.claim("all_reduce of a nest", "each tensor of a nest is reduced")
def _(bench: Bench) -> Observation:
    def step(x: Any) -> Any:
        reduced = _context().all_reduce("SUM", {"a": x, "b": [x * 2.0]})
        return reduced["b"][0] - reduced["a"]

    return close(_all(bench, bench.ranks.sum()), bench.on_ranks(step))


@COLLECTIVES.claim("all_reduce in a loop", "a loop may reduce in every round")
def _(bench: Bench) -> Observation:
    import tensorflow as tf

    def step(x: Any) -> Any:
        for _ in tf.range(3):
            x = _context().all_reduce("MEAN", x) + 1.0
        return x

    return close(_all(bench, bench.ranks.mean() + 3.0), bench.on_ranks(step), bench.tolerance())


@COLLECTIVES.claim("all_gather", "every replica gets the values of all, in the replicas' order")
def _(bench: Bench) -> Observation:
    import tensorflow as tf

    found = bench.on_ranks(lambda x: _context().all_gather(tf.reshape(x, [1]), axis=0))
    return close(_all(bench, bench.ranks), found)


@COLLECTIVES.claim("all_gather along axis 1", "values are concatenated along any axis")
def _(bench: Bench) -> Observation:
    import tensorflow as tf

    found = bench.on_ranks(lambda x: _context().all_gather(tf.fill([2, 1], x), axis=1))
    return close(_all(bench, [bench.ranks, bench.ranks]), found)


@COLLECTIVES.claim("gradient of all_reduce", "the gradient of a sum is summed over the replicas")
def _(bench: Bench) -> Observation:
    import tensorflow as tf

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = _context().all_reduce("SUM", x * x)
        return tape.gradient(y, x)

    return close(bench.ranks * 2.0 * bench.replicas, bench.on_ranks(step), bench.tolerance())


def _groups(bench: Bench) -> list[list[int]]:
    """The even replicas, and the odd ones."""
    bench.need_replicas()
    return [list(range(first, bench.replicas, 2)) for first in (0, 1)]


@COLLECTIVES.claim("sum in groups", "CrossReplicaSum adds up the replicas of a group")
def _(bench: Bench) -> Observation:
    import tensorflow as tf

    groups = _groups(bench)
    found = bench.on_ranks(lambda x: tf.raw_ops.CrossReplicaSum(input=x, group_assignment=groups))
    sums = [float(bench.ranks[group].sum()) for group in groups]
    return close([sums[replica % 2] for replica in range(bench.replicas)], found)


def _pairs(bench: Bench) -> list[Sequence[int]]:
    """From each replica to the next, round the ring."""
    bench.need_replicas()
    return [(replica, (replica + 1) % bench.replicas) for replica in range(bench.replicas)]


@COLLECTIVES.claim("permute", "CollectivePermute sends the value of each replica to another")
def _(bench: Bench) -> Observation:
    import tensorflow as tf

    pairs = _pairs(bench)
    found = bench.on_ranks(
        lambda x: tf.raw_ops.CollectivePermute(input=x, source_target_pairs=pairs)
    )
    return close(np.roll(bench.ranks, 1), found)


@COLLECTIVES.claim("permute to some", "a replica that is sent nothing gets zeros")
def _(bench: Bench) -> Observation:
    import tensorflow as tf

    pairs = _pairs(bench)[:1]
    found = bench.on_ranks(
        lambda x: tf.raw_ops.CollectivePermute(input=x, source_target_pairs=pairs)
    )
    return close([0.0, 1.0, *[0.0] * (bench.replicas - 2)], found)


@COLLECTIVES.claim("all to all", "AllToAll gives replica k the k-th piece of every replica")
def _(bench: Bench) -> Observation:
    import tensorflow as tf

    bench.need_replicas()
    count = bench.replicas

    def step(x: Any) -> Any:
        return tf.raw_ops.AllToAll(
            input=x * tf.range(1.0, count + 1.0),
            group_assignment=[list(range(count))],
            concat_dimension=0,
            split_dimension=0,
            split_count=count,
        )

    return close(np.outer(bench.ranks, bench.ranks), bench.on_ranks(step))


@ACROSS.claim("reduce SUM", "strategy.reduce adds up the replicas' values")
def _(bench: Bench) -> Observation:
    return close(
        bench.ranks.sum(), bench.strategy.reduce("SUM", bench.each(bench.ranks), axis=None)
    )


@ACROSS.claim("reduce MEAN", "strategy.reduce takes the mean of the replicas' values")
def _(bench: Bench) -> Observation:
    found = bench.strategy.reduce("MEAN", bench.each(bench.ranks), axis=None)
    return close(bench.ranks.mean(), found, bench.tolerance())


@ACROSS.claim("reduce along axis 0", "with an axis it takes the mean of all examples")
def _(bench: Bench) -> Observation:
    rows = np.stack([bench.ranks, bench.ranks + 1.0], axis=1)
    found = bench.strategy.reduce("MEAN", bench.each(rows), axis=0)
    return close(rows.mean(), found, bench.tolerance())


@ACROSS.claim("reduce in a function", "within a tf.function, after strategy.run, it is the same")
def _(bench: Bench) -> Observation:
    import tensorflow as tf

    @tf.function  # type: ignore[untyped-decorator]
    def step(x: Any) -> Any:
        squares = bench.strategy.run(lambda y: y * y, args=(x,))
        return bench.strategy.reduce("SUM", squares, axis=None)

    found = step(bench.each(bench.ranks))
    return close(float((bench.ranks**2).sum()), found, bench.tolerance())


@ACROSS.claim("gather", "strategy.gather concatenates the replicas' values in their order")
def _(bench: Bench) -> Observation:
    values = bench.each(bench.ranks[:, None])
    return close(bench.ranks, bench.strategy.gather(values, axis=0))


@ACROSS.claim("gather along axis 1", "strategy.gather concatenates along any axis")
def _(bench: Bench) -> Observation:
    values = bench.each(np.repeat(bench.ranks[:, None, None], 2, axis=1))
    return close([bench.ranks, bench.ranks], bench.strategy.gather(values, axis=1))
