"""Helpers for the tests of joining: a value for each replica, analyses, and comparisons."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from support.strategies import each, run, strategy_of
from tpunb.tensorflow.virtual.replicate import expansion, joining
from tpunb.tensorflow.virtual.replicate.variance import Analysis

REPLICAS = 4


def per_replica(*shape: int, seed: int = 0) -> list[np.ndarray]:
    """Return a random value for each replica."""
    values = np.random.default_rng(seed).normal(size=[REPLICAS, *shape])
    return list(values.astype(np.float32))


@contextlib.contextmanager
def analyses(*, costs: bool) -> Iterator[list[Analysis]]:
    """Collect the analyses of the functions traced in the block.

    Without `costs`, functions are joined even if joining costs more than it saves.
    """
    collected: list[Analysis] = []
    originals = joining._CONVERSION, joining._BYTES, expansion.join

    def observed(*args: Any) -> Any:
        analysis, at_once = originals[2](*args)
        collected.append(analysis)
        return analysis, at_once

    expansion.join = observed
    if not costs:
        joining._CONVERSION, joining._BYTES = 0.0, 1e9
    try:
        yield collected
    finally:
        joining._CONVERSION, joining._BYTES, expansion.join = originals


def operations(analyses: list[Analysis]) -> set[str]:
    """Return the operations of the joined nodes."""
    return {
        node.op for analysis in analyses for node in analysis.order if node.name in analysis.plans
    }


def both(
    function: Callable[..., Any], *columns: list[Any], choice: bool | None = True, **options: Any
) -> None:
    """Compare a replica function's results, joined and not joined."""

    def results(strategy: Any) -> Any:
        return run(strategy, function, *(each(strategy, column) for column in columns))

    both_ways(results, choice=choice, **options)


def both_ways(results: Callable[[Any], Any], *, choice: bool | None = True, **options: Any) -> None:
    """Compare the results of a strategy that joins replicas with those of a strategy that does not."""
    results_both = (
        results(strategy_of(REPLICAS, joined=joined, **options)) for joined in (choice, False)
    )
    for actual, expected in zip(*map(tf.nest.flatten, results_both), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5)
