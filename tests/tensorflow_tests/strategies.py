"""TensorFlow's named TPU strategies, on a virtual TPU.

TensorFlow's tests take their strategy from objects of one of its modules. These make it by
TensorFlow's own names, a resolver's and a strategy's, which answer for a virtual TPU here.
"""

from __future__ import annotations

from typing import Any

from tensorflow.python.distribute import combinations, strategy_combinations

import tpunb.virtual

CORES = 2
"""Most tests expect the results of two replicas."""


def use_virtual_tpu() -> None:
    """Have TensorFlow's tests run on virtual TPUs, and on no other strategy."""
    tpunb.virtual.install(CORES)
    strategy_combinations.cloud_tpu_strategy.use_cloud_tpu = False
    # As in the test targets that run on a TPU: what needs no TPU is left out.
    combinations.TPUCombination.TPU_TEST = True
    _leave_out(strategy_combinations.tpu_strategy_spmd)


def _leave_out(strategy: Any) -> None:
    chosen = combinations.TPUCombination.should_execute_combination

    def should_execute(self: Any, kwargs: dict[str, Any]) -> Any:
        if any(value is strategy for value in kwargs.values()):
            return False, LEFT_OUT
        return chosen(self, kwargs)

    combinations.TPUCombination.should_execute_combination = should_execute


LEFT_OUT = "is not among the strategies of this run"
FILTERED = (
    LEFT_OUT,
    "doesn't require TPUs",
    "requires a TPU",
    "requires a Cloud TPU",
    "requires local TPU",
    "GPUs are available",
    "required physical GPUs",
    "doesn't require GPUs",
    "n/a: skipping strategy combination",
    "Not a test.",
)
"""Why TensorFlow leaves out a combination before its test begins."""
