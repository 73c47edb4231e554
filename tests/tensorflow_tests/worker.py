"""Run the tests of one file of TensorFlow in a process: `python -m tensorflow_tests.worker`."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import absl.flags
from peer_tests.worker import Results, flat, main
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
    # AutoGraph does not convert functions of modules named tensorflow.*, so import the file
    # under its own name, as TensorFlow does.
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    if not absl.flags.FLAGS.is_parsed():
        absl.flags.FLAGS([str(file), f"--test_tmpdir={tempfile.mkdtemp()}"])
    return flat(unittest.defaultTestLoader.loadTestsFromModule(module))


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
