"""Restores checkpoints eagerly when their values go to several workers.

TensorFlow restores such checkpoints inside a graph, where the shapes of what it reads are
unknown, and Keras 3 assigns only values with a known shape. So a model on a Pod could not be
restored together with a variable on the notebook's machine.
"""

from __future__ import annotations

import contextlib
from typing import Any

from tpunb.virtual import _tensorflow as private
from tpunb.virtual.patch.patch_tools import attribute

__all__ = ["restored_eagerly"]


def restored_eagerly() -> contextlib.AbstractContextManager[None]:
    """Makes TensorFlow restore checkpoints eagerly on any number of workers."""
    restore = private.MultiDeviceSaver.restore

    def one_by_one(saver: Any, *args: Any, **kwargs: Any) -> Any:
        tasks, saver._num_unique_tasks = saver._num_unique_tasks, 1
        try:
            return restore(saver, *args, **kwargs)
        finally:
            saver._num_unique_tasks = tasks

    return attribute(private.MultiDeviceSaver, "restore", one_by_one)
