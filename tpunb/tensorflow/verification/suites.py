"""TensorFlow's suites of claims."""

from __future__ import annotations

from tpunb.tensorflow.verification import (
    interrupting,
    keras_training,
    refusals,
    replicas,
    step_times,
    training,
)
from tpunb.verification.suite import Suite


def suites() -> tuple[type[Suite], ...]:
    """Import and return the suites, in the order of `tpunb.framework.Framework.suites`."""
    return (
        replicas.Topology,
        replicas.Replicas,
        replicas.CollectivesInside,
        replicas.CollectivesOutside,
        replicas.Variables,
        training.Numbers,
        training.Training,
        keras_training.Keras,
        step_times.StepTimes,
        refusals.Rules,
        refusals.KnownErrors,
        interrupting.Interrupting,
        interrupting.Reconnecting,
    )
