"""Run the tests of one file of JAX in a process: `python -m jax_tests.worker`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jax._src import test_util
from peer_tests.worker import Results, flat, imported, main

import tpunb

_TPU = "v5e-8"


def _tests_of(file: Path) -> Iterator[Any]:
    """Connect to a virtual TPU, and return the tests of a file."""
    # The tests are about numbers and errors. A judge would compile each program once more.
    tpunb.connect(simulate=_TPU, framework="jax", judge="off")
    return flat(test_util.JaxTestLoader().loadTestsFromModule(imported(file)))


if __name__ == "__main__":
    main(__doc__ or "", _tests_of, Results)
