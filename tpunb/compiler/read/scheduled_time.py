"""The time of a kernel, from the schedule that libtpu has written of it.

A core computes a tile while it copies the next. So the slowest of the bundles, the matrix unit and
the copies sets the time, and each step adds a wait for its copies. The constants come from the
published times of JAXBench's programs and of JAX's page of Pallas products: see
`docs/compiler-accuracy.md`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tpunb.compiler.ask.answers import Schedule
from tpunb.compiler.ask.topologies import Target


@dataclasses.dataclass(frozen=True, slots=True)
class _Form:
    """What the kernels of a family reach.

    Attributes:
        hbm: The part of HBM's bandwidth.
        strided: The same for copies in pieces.
        step: The seconds that each step waits.
    """

    hbm: float
    strided: float
    step: float


FORMS = {"v5e": _Form(0.9, 0.9, 0.25e-6), "v6e": _Form(0.86, 0.80, 0.3e-6)}
"""The forms of the families whose schedules are understood."""

_CYCLES = 0.95
"""The part of the clock, and of the peak of the matrix units."""
_LEAST, _MOST = 1.08, 1.08
"""The factors by which the time may be shorter or longer."""

_FLOPS = 2 * 8192 * 512 * 8192
_WRITTEN = 2 * 8192 * 8192
"""The work and the result's bytes of the known product in `libtpu_process`."""


def is_understood(product: Mapping[str, Schedule], target: Target) -> bool:
    """Return whether the schedule of the known product has its cycles, steps and bytes.

    Args:
        product: The schedules of the known product's kernels.
        target: The target of the compilation.
    """
    if target.tpu.family not in FORMS or len(product) != 1:
        return False
    (schedule,) = product.values()
    peak = _FLOPS / target.hardware.flops * target.hardware.clock
    return (
        schedule.unit == "MATMUL"
        and 0.7 * peak < schedule.matmul <= schedule.cycles[0] == schedule.cycles[1] < 1.3 * peak
        and _WRITTEN < schedule.bytes[0] == schedule.bytes[1] < 1.3 * _WRITTEN
        and 2 < schedule.steps < 1000
    )


def seconds_of(schedule: Schedule, flops: float, target: Target) -> tuple[float, float]:
    """Return the least and the most seconds of a kernel.

    Args:
        schedule: The kernel's schedule.
        flops: Its multiplications and additions, as those of bfloat16; 0 if they are not known.
        target: The target of the compilation.
    """
    hardware, form = target.hardware, FORMS[target.tpu.family]
    matrix = flops / hardware.flops

    def taken(cycles: int, moved: int) -> float:
        strided = min(schedule.strided, moved)
        copied = ((moved - strided) / form.hbm + strided / form.strided) / hardware.hbm
        return max(max(cycles / hardware.clock, matrix) / _CYCLES, copied)

    least, most = map(taken, schedule.cycles, schedule.bytes)
    waits = schedule.steps * form.step
    return (least + waits) / _LEAST, (most + waits) * _MOST
