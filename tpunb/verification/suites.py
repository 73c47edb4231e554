"""The suites of claims of each framework."""

from __future__ import annotations

from tpunb.machine.framework import JAX
from tpunb.verification.suite import Suite


def suites_of(framework: str) -> tuple[type[Suite], ...]:
    """Import and return a framework's suites. This imports the framework.

    Claims about refusals come late, and claims that could leave the TPU unusable come last.

    Args:
        framework: `"tensorflow"`, which must be set up before, or `"jax"`.
    """
    return _of_jax() if framework == JAX else _of_tensorflow()


def _of_tensorflow() -> tuple[type[Suite], ...]:
    from tpunb.tensorflow.verification import (
        interrupting,
        keras_training,
        refusals,
        replicas,
        step_times,
        training,
    )

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


def _of_jax() -> tuple[type[Suite], ...]:
    from tpunb.jax.verification import (
        arithmetic,
        arrays,
        collectives,
        devices,
        host,
        interrupting,
        kernels,
        program_memory,
        refusals,
        step_times,
        training,
    )

    return (
        devices.Devices,
        arrays.Arrays,
        arithmetic.Numbers,
        arithmetic.Precision,
        collectives.Collectives,
        training.Training,
        program_memory.ProgramMemory,
        step_times.StepTimes,
        kernels.Kernels,
        host.Host,
        refusals.Refusals,
        interrupting.Interrupting,
        interrupting.Reconnecting,
    )
