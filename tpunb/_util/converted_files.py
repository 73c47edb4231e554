"""The files into which TensorFlow's AutoGraph writes the functions that it converts."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

_NAME = "__autograph_generated_file"


@contextlib.contextmanager
def removing_converted_files() -> Iterator[None]:
    """Remove the files that AutoGraph writes within a block.

    AutoGraph removes them when Python ends, but not if the process ends with `os._exit` or by a
    signal (TensorFlow 2.21, `pyct/loader.py`).
    """
    before = set(sys.modules)
    try:
        yield
    finally:
        for name in set(sys.modules) - before:
            if name.startswith(_NAME) and (file := sys.modules[name].__file__):
                Path(file).unlink(missing_ok=True)
