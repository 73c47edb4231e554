"""Checkpoints whose values go to several workers, read one value after the other.

TensorFlow restores them inside of a graph, where it does not know the shapes of what it
reads; and Keras 3 assigns only what has a shape. So a model on a Pod could not be restored
together with a counter of the notebook's own.
"""

from __future__ import annotations

import contextlib
from typing import Any

from tpunb.virtual import _tensorflow as private
from tpunb.virtual.install_places import attribute

__all__ = ["restored_eagerly"]


def restored_eagerly() -> contextlib.AbstractContextManager[None]:
    """Lets TensorFlow restore checkpoints eagerly, however many workers have the values."""
    restore = private.MultiDeviceSaver.restore

    def one_by_one(saver: Any, *args: Any, **kwargs: Any) -> Any:
        tasks, saver._num_unique_tasks = saver._num_unique_tasks, 1
        try:
            return restore(saver, *args, **kwargs)
        finally:
            saver._num_unique_tasks = tasks

    return attribute(private.MultiDeviceSaver, "restore", one_by_one)
