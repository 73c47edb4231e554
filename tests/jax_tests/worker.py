"""Run the tests of one file of JAX in a process: `python -m jax_tests.worker`."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import absl.flags
from jax._src import test_util
from peer_tests.worker import Results, flat, main

import tpunb

_TPU = "v5e-8"


def _tests_of(file: Path) -> Iterator[Any]:
    """Connect to a virtual TPU, and return the tests of a file."""
    # The tests are about numbers and errors. A judge would compile each program once more.
    tpunb.connect(simulate=_TPU, framework="jax", judge="off")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    if not absl.flags.FLAGS.is_parsed():
        absl.flags.FLAGS([str(file), f"--test_tmpdir={tempfile.mkdtemp()}"])
    return flat(test_util.JaxTestLoader().loadTestsFromModule(module))


if __name__ == "__main__":
    main(__doc__ or "", _tests_of, Results)
