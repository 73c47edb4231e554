"""JAX's suites of claims."""

from __future__ import annotations

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
from tpunb.verification.suite import Suite


def suites() -> tuple[type[Suite], ...]:
    """Import and return the suites, in the order of `tpunb.framework.Framework.suites`."""
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
