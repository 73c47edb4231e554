"""TensorFlow in the tests' own processes, without what costs them a processor for nothing."""

from __future__ import annotations

import functools
import sys
from typing import Any

UNUSED = ("jax", "sklearn")
"""What TensorFlow and Keras import if it is there. No test needs it of them, it is a quarter of
their import, and for each function that it converts AutoGraph walks all modules that there are."""


@functools.cache
def import_tensorflow() -> Any:
    """TensorFlow, imported as if `UNUSED` were not installed; tests can import that themselves."""
    hidden = [name for name in UNUSED if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        import tensorflow as tf
        from tensorflow.python.autograph.pyct import inspect_utils
    finally:
        for name in hidden:
            del sys.modules[name]
    # It mends what another way of packing Python programs does to their sources, and for that asks
    # each module for its file, whenever a function is converted.
    inspect_utils._fix_linecache_record = lambda converted: None
    return tf
