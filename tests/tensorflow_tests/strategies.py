"""Make TensorFlow's named TPU strategies virtual.

TensorFlow's tests take their strategies from objects in one of its modules and compare them by
identity. So this module changes the objects before a test file imports them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorflow.python import tf2
from tensorflow.python.distribute import combinations, strategy_combinations

from tpunb.virtual import TPUStrategy, TPUStrategyV2, VirtualTPUClusterResolver

REPLICAS = 2
"""Most tests expect results of two replicas."""

_NAMED = {
    "tpu_strategy": REPLICAS,
    "tpu_strategy_one_step": REPLICAS,
    "tpu_strategy_packed_var": REPLICAS,
    "tpu_strategy_one_core": 1,
    "tpu_strategy_one_step_one_core": 1,
    "cloud_tpu_strategy": REPLICAS,
}
"""The number of replicas."""


def make_virtual() -> None:
    """Make TensorFlow's tests run on virtual TPUs, and on no other strategy."""
    for name, replicas in _NAMED.items():
        strategy = getattr(strategy_combinations, name)
        strategy.use_cloud_tpu = False
        strategy.required_tpu = True
        strategy._distribution_fn = _creator(replicas, packed="packed" in name)
    # As in TensorFlow's TPU test targets: skip combinations that need no TPU.
    combinations.TPUCombination.TPU_TEST = True
    _leave_out(strategy_combinations.tpu_strategy_spmd)


def _creator(replicas: int, *, packed: bool) -> Callable[[], Any]:
    def create() -> Any:
        resolver = VirtualTPUClusterResolver(replicas)
        strategy = (TPUStrategyV2 if tf2.enabled() else TPUStrategy)(resolver)
        strategy._enable_packed_variable_in_eager_mode = packed
        return strategy

    return create


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
"""The reasons for which TensorFlow skips a combination before its test begins."""
