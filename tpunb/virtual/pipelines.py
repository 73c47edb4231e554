"""Input pipelines that end when they are told to.

tf.data tunes each iterator in a thread of its own that wakes up after growing
pauses, of a minute in the end. Whoever ends an iterator waits for that thread,
which can miss the call. A TPU's input ends once in a long run; in a notebook it
ends with every short epoch, with one iterator for each core: 12 epochs of `fit`
on 8 virtual cores waited for 3 minutes. There is nothing to gain from tuning
either, as host and cores share one processor.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tpunb.virtual._tensorflow import multi_device_iterator_ops


def without_tuning(dataset: Any) -> Any:
    """A dataset that does not tune itself, unless it has been told whether to.

    Args:
        dataset: A `tf.data.Dataset`; anything else is given back as it is.
    """
    if not isinstance(dataset, tf.data.Dataset) or dataset.options().autotune.enabled is not None:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def stop_tuning_cores() -> None:
    """Stops the tuning of the iterators that hand batches to single devices.

    They are TensorFlow's own and take no options. All they do is to fetch a batch
    from the host's iterator: there is nothing to tune, for whichever strategy.
    """
    create = multi_device_iterator_ops._create_device_dataset
    if getattr(create, "untuned", False):
        return

    def create_untuned(*args: Any, **kwargs: Any) -> Any:
        return without_tuning(create(*args, **kwargs))

    create_untuned.untuned = True  # type: ignore[attr-defined]
    multi_device_iterator_ops._create_device_dataset = create_untuned
