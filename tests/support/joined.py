"""What the tests of joining share: values of replicas, what was joined, joined against not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from support.strategies import each, run, strategy_of
from tpunb.virtual.replicate import joining, replication
from tpunb.virtual.replicate.variance import Analysis

REPLICAS = 4


def per_replica(*shape: int, seed: int = 0) -> list[np.ndarray]:
    """A random value for each replica."""
    values = np.random.default_rng(seed).normal(size=[REPLICAS, *shape])
    return list(values.astype(np.float32))


@contextlib.contextmanager
def analyses(*, costs: bool) -> Iterator[list[Analysis]]:
    """The analyses of what is traced meanwhile; without costs nothing is too cheap to be joined."""
    found: list[Analysis] = []
    kept = joining._CONVERSION, joining._BYTES, replication.join

    def observed(*args: Any) -> Any:
        analysis, at_once = kept[2](*args)
        found.append(analysis)
        return analysis, at_once

    replication.join = observed
    if not costs:
        joining._CONVERSION, joining._BYTES = 0.0, 1e9
    try:
        yield found
    finally:
        joining._CONVERSION, joining._BYTES, replication.join = kept


def operations(found: list[Analysis]) -> set[str]:
    """The operations of the nodes that were joined."""
    return {node.op for one in found for node in one.order if node.name in one.plans}


def both(
    function: Callable[..., Any], *columns: list[Any], choice: bool | None = True, **options: Any
) -> None:
    """Compares a replica function's results, joined and not."""

    def results(strategy: Any) -> Any:
        return run(strategy, function, *(each(strategy, column) for column in columns))

    both_ways(results, choice=choice, **options)


def both_ways(results: Callable[[Any], Any], *, choice: bool | None = True, **options: Any) -> None:
    """Compares what two strategies give: one whose replicas are joined, and one where they are not."""
    found = (results(strategy_of(REPLICAS, joined=one, **options)) for one in (choice, False))
    for one, other in zip(*map(tf.nest.flatten, found), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)
