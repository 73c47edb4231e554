"""Claims about variables, of which every core has a copy."""

from __future__ import annotations

from typing import Any

from tpunb.verification.bench import Bench
from tpunb.verification.claims import Claims
from tpunb.verification.observation import Observation
from tpunb.verification.observing import close

__all__ = ["VARIABLES"]

VARIABLES = Claims("variables")


def _copies(bench: Bench, variable: Any) -> list[Any]:
    """The value of a variable on each core."""
    copies = bench.strategy.experimental_local_results(variable)
    return [copy.numpy() for copy in copies]


@VARIABLES.claim("broadcast", "a value assigned outside reaches the copy of every core")
def _(bench: Bench) -> Observation:
    variable = bench.variable(1.0)
    variable.assign(7.0)
    found = bench.run(lambda: variable + 0.0)
    return close([7.0] * bench.replicas, found)


def _assigned(bench: Bench, aggregation: str) -> list[Any]:
    import tensorflow as tf

    variable = bench.variable(0.0, aggregation=tf.VariableAggregation[aggregation])
    bench.on_ranks(lambda x: variable.assign(x))
    return _copies(bench, variable)


@VARIABLES.claim("assign SUM", "what the replicas assign is added up, for all copies")
def _(bench: Bench) -> Observation:
    return close([bench.ranks.sum()] * bench.replicas, _assigned(bench, "SUM"))


@VARIABLES.claim("assign MEAN", "likewise the mean")
def _(bench: Bench) -> Observation:
    expected = [bench.ranks.mean()] * bench.replicas
    return close(expected, _assigned(bench, "MEAN"), bench.tolerance())


@VARIABLES.claim("assign ONLY_FIRST_REPLICA", "likewise the first replica's value")
def _(bench: Bench) -> Observation:
    return close([1.0] * bench.replicas, _assigned(bench, "ONLY_FIRST_REPLICA"))


@VARIABLES.claim("assign NONE", "without aggregation each copy holds what its replica assigned")
def _(bench: Bench) -> Observation:
    return close(bench.ranks, _assigned(bench, "NONE"))


@VARIABLES.claim("sync on read", "each replica has a value of its own, and reading it adds them up")
def _(bench: Bench) -> Observation:
    import tensorflow as tf

    variable = bench.variable(
        0.0,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
    )
    bench.on_ranks(lambda x: variable.assign_add(x))
    return close(bench.ranks.sum(), variable.read_value())
