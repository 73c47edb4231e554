"""TensorFlow 1's metrics in its graphs, in steps that a strategy runs itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.tiers import thorough

from tpunb.virtual import TPUStrategyV1, VirtualTPUClusterResolver, VirtualTPUStrategy

metrics = tf.compat.v1.metrics

Metric = Callable[[Any], tuple[Any, Any]]

METRICS: dict[str, tuple[Metric, list[float]]] = {
    "mean": (lambda x: metrics.mean(x["predictions"]), [0.5, 0.59375]),
    "precision": (lambda x: metrics.precision(x["labels"], x["predictions"] > 0.4), [0.5, 0.6]),
    "auc": (
        lambda x: metrics.auc(
            x["labels"], x["predictions"], 8, summation_method="careful_interpolation"
        ),
        [0.75, 0.875],
    ),
}


def batches(_: Any) -> tf.data.Dataset:
    labels = [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    predictions = [1.0, 0.75, 0.25, 0.0, 1.0, 0.75, 1.0, 0.0]
    return (
        tf.data.Dataset.from_tensor_slices({"labels": labels, "predictions": predictions})
        .batch(2, drop_remainder=True)
        .repeat()
    )


STRATEGIES = {
    "one step": lambda: TPUStrategyV1(VirtualTPUClusterResolver(2), steps_per_run=1),
    "steps": lambda: TPUStrategyV1(VirtualTPUClusterResolver(2), steps_per_run=2),
    "newest": lambda: VirtualTPUStrategy(2),
}


@pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("mean", kind) for kind in STRATEGIES),
        *thorough([("precision", "newest"), ("auc", "steps")]),
    ],
)
def test_metrics_have_their_value_after_the_steps(kind: str, name: str) -> None:
    """TensorFlow's metrics_v1_test asks this of a TPU."""
    metric, expected = METRICS[name]
    strategy = STRATEGIES[kind]()
    steps = 2 if kind == "steps" else 1
    with tf.Graph().as_default(), strategy.scope():
        iterator = strategy.make_input_fn_iterator(batches)

        def step(context: Any, batch: Any) -> Any:
            value, update = strategy.extended.call_for_each_replica(metric, args=(batch,))
            context.set_non_tensor_output(name="value", output=value)
            return strategy.group(update)

        context = strategy.extended.experimental_run_steps_on_iterator(step, iterator, steps)
        value = context.non_tensor_outputs["value"]
        with tf.compat.v1.Session() as session:
            session.run([iterator.initializer, tf.compat.v1.local_variables_initializer()])
            values = []
            for _ in range(2 // steps):
                session.run(context.run_op)
                values.append(session.run(value))
    np.testing.assert_allclose(values, expected[-len(values) :], rtol=1e-3)
    assert not hasattr(strategy.extended, "_outer_control_flow_context")
