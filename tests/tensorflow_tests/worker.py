"""Run the tests of one file of TensorFlow in a process: `python -m tensorflow_tests.worker`."""

from __future__ import annotations

import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from peer_tests.worker import Results, flat, imported, main
from tensorflow.python.compat import v2_compat
from tensorflow.python.distribute import test_util
from tensorflow.python.eager import context

from tensorflow_tests.strategies import FILTERED, make_virtual

_DEVICES = 4
"""Logical CPU devices: two for replicas, one for their host, and a spare."""


def _tests_of(file: Path) -> Iterator[Any]:
    """Make TensorFlow's strategies virtual, and return the tests of a file."""
    v2_compat.enable_v2_behavior()
    test_util.set_logical_devices_to_at_least("CPU", _DEVICES)
    make_virtual()
    # AutoGraph does not convert functions of modules named tensorflow.*; this one has its own name.
    return flat(unittest.defaultTestLoader.loadTestsFromModule(imported(file)))


def _results(stream: TextIO, patience: float) -> Results:
    known = context.context_safe()

    def restore_devices() -> None:
        """Restore the devices, which some tests reset, before a test enters a graph."""
        nonlocal known
        if known is not context.context_safe():
            context._reset_context()
            test_util.set_logical_devices_to_at_least("CPU", _DEVICES)
            known = context.context()

    return Results(stream, patience, FILTERED, restore_devices)


if __name__ == "__main__":
    main(__doc__ or "", _tests_of, _results)
