"""The form of an answer that is a replica function of TensorFlow."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tpunb.connection.tpu_connection import latest_connection
from tpunb.puzzles.comparison import are_equal
from tpunb.puzzles.forms import functions
from tpunb.puzzles.framework import AnswerError, Numbers
from tpunb.puzzles.puzzle import Attempt, Puzzle
from tpunb.puzzles.trial import wrong

REPLICAS = 8

_NOT_THE_SAME = (
    "The replicas return different results. Combine their parts with "
    'tf.distribute.get_replica_context().all_reduce("sum", value), or "mean".'
)


class OnReplicas:
    """A replica function: each replica gets an eighth of the rows, and returns the same result."""

    tpu: ClassVar[str] = "v5e-8"

    def attempt(self, puzzle: Puzzle, answer: tuple[Any, ...]) -> Attempt:
        """Run the function on all replicas, and return it with the types of a replica's part."""
        (fn,) = functions(answer, 1)
        strategy = _strategy()
        step = tf.function(lambda *parts: strategy.run(fn, args=parts))

        def run(*arrays: Numbers) -> list[Numbers]:
            parts = (_distributed(strategy, array) for array in arrays)
            first, *others = _on_each(strategy, step(*parts))
            if not all(are_equal(first, other) for other in others):
                raise AnswerError(_NOT_THE_SAME)
            return first

        problem = wrong(puzzle, run, REPLICAS)
        args = tuple(
            tf.TensorSpec([array.shape[0] // REPLICAS, *array.shape[1:]], array.dtype)
            for array in puzzle.arguments.values()
        )
        return Attempt(problem, fn, args, strategy)


def _strategy() -> Any:
    """Return the strategy of the open connection.

    Raises:
        AnswerError: There is none, or it has another number of replicas.
    """
    connection = latest_connection()
    strategy = getattr(connection, "strategy", None)
    if strategy is None or strategy.num_replicas_in_sync != REPLICAS:
        raise AnswerError(
            f"This puzzle needs a virtual TPU with {REPLICAS} replicas.",
            fix="%tpu_connect --simulate v5e-8",
        )
    return strategy


def _distributed(strategy: Any, array: Numbers) -> Any:
    """Return an array as a value of replicas, each with its part of the rows."""
    parts = np.split(array, REPLICAS)
    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(parts[context.replica_id_in_sync_group])
    )


def _on_each(strategy: Any, results: Any) -> list[list[Numbers]]:
    """Return each replica's results."""
    leaves = [strategy.experimental_local_results(leaf) for leaf in tf.nest.flatten(results)]
    return [[np.asarray(leaf[i]).astype("float64") for leaf in leaves] for i in range(REPLICAS)]
