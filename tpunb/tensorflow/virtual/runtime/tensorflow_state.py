"""TensorFlow's state of the process that has no public API.

Only this module uses these private attributes. `tests/virtual/test_tensorflow_adapters.py` lists
them and reports if a release of TensorFlow no longer has them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tpunb.tensorflow.virtual.private_names import (
    MultiDeviceSaver,
    cancellation,
    context,
    distribute_lib,
    tpu,
    tpu_strategy_util,
)


def has_started() -> bool:
    """Return whether TensorFlow's context is running, after which devices cannot be added."""
    return context.context()._context_handle is not None


def forget_cluster() -> None:
    """Make TensorFlow forget the cluster that it could not connect to."""
    context.context()._server_def = None


@contextlib.contextmanager
def soft_placement() -> Iterator[None]:
    """Turn on soft device placement, then restore it: a TPU distinguishes off from unset."""
    before = context.context()._soft_device_placement
    tf.config.set_soft_device_placement(True)
    try:
        yield
    finally:
        tf.config.set_soft_device_placement(bool(before))
        context.context()._soft_device_placement = before


def default_strategy() -> Any:
    """Return the strategy outside any scope."""
    return distribute_lib._get_default_strategy()


def initialized_tpu_systems() -> dict[str, Any]:
    """Return the topologies of the TPU systems that are initialized, by their names."""
    return tpu_strategy_util._INITIALIZED_TPU_SYSTEMS  # type: ignore[no-any-return]


def cancelling() -> Any:
    """Return the cancellation manager for the function that TensorFlow calls, or None."""
    return cancellation._active_context


def set_cancelling(manager: Any) -> None:
    """Set the manager that `cancelling` returns."""
    cancellation._active_context = manager


def padded_for_replicas(
    tensors: list[list[Any]], shapes: list[tf.TensorShape | None], *, to_power_of_two: bool
) -> list[list[Any]]:
    """Return each replica's tensors, padded to one shape and followed by their former sizes.

    Args:
        tensors: The tensors of each replica.
        shapes: A shape for each tensor, with None for each padded axis; None for a tensor without
            padding.
        to_power_of_two: Whether they are padded to a power of two, not to the longest.
    """
    spec = tpu.PaddingSpec.POWER_OF_TWO if to_power_of_two else None
    filled, _ = tpu._pad_all_input(tensors, shapes, spec)
    return filled  # type: ignore[no-any-return]


@contextlib.contextmanager
def restoring_as_one_task(saver: MultiDeviceSaver) -> Iterator[None]:
    """Make a saver restore as if all of its variables belonged to one task."""
    tasks, saver._num_unique_tasks = saver._num_unique_tasks, 1
    try:
        yield
    finally:
        saver._num_unique_tasks = tasks
