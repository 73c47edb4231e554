"""A user's program, for type checkers only: `tests/test_public_api.py` passes it to mypy.

Each `type: ignore` is a mistake that a type checker must find.
"""

from __future__ import annotations

import tpunb
from tpunb.compiler.program import TpuProgram, TpuPrograms
from tpunb.errors import DoesNotFitError
from tpunb.tensorflow.checks.compare import Comparison
from tpunb.tpu.types import Accelerator


def step(x: float) -> float:
    return 2 * x


def fits(batch: int) -> bool:
    program: TpuProgram = tpunb.compile(step, float(batch), tpu="v5e-8")
    try:
        program.raise_if_unfit("90%")
    except DoesNotFitError as error:
        return error.needed < error.limit and not error.fix
    return program.ok


def table() -> list[str]:
    programs: TpuPrograms = tpunb.compile(step, 1.0, tpu=["v5e-8", "v6e-8"])
    return [program.headline for program in programs]


def train(batches: list[float]) -> float:
    with tpunb.connect(simulate="v5e-8") as connection:
        assert connection.replicas == 8, connection.phrase
    run = tpunb.track(batches, plot="loss")
    for batch in run:
        run.log(loss=step(batch))
    return run.history.best("loss")[1]


def facts() -> str:
    tpu: Accelerator = tpunb.accelerator("v4-32")
    explanation = tpunb.explain(24)
    return f"{tpu.num_devices} {explanation.fix if explanation else ''}"


def report() -> bool:
    comparison: Comparison = tpunb.compare(step, 1.0)
    return comparison.relative < 0.01 and tpunb.check(step, 1.0).ok and tpunb.doctor().ok


tpunb.connect(simulated="v5e-8")  # type: ignore[call-arg]
tpunb.accelerator(1.5)  # type: ignore[arg-type]
assert tpunb.explain(24).fix  # type: ignore[union-attr]
