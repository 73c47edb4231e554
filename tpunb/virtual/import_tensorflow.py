"""TensorFlow's start-up messages kept out of notebooks.

While TensorFlow is imported its C++ parts write to the standard error stream
that there is no GPU, with the time and a process id: noise for the reader, and a
difference in every run for anyone who compares saved outputs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Iterator

from tpunb.errors import ConnectError

__all__ = ["import_tensorflow", "needing_tensorflow", "quiet_start", "require_tensorflow"]

_NOISE = re.compile(
    r"WARNING: All log messages before absl::InitializeLog"
    r"|[IWE]\d{4} .*(cuda|cuDNN|cuBLAS|cuFFT|TensorRT|oneDNN|cpu_feature_guard|computation_placer)"
    r"|\d{4}-\d\d-\d\d .*(cuda|cuDNN|cuBLAS|cuFFT|TensorRT|oneDNN|cpu_feature_guard)"
    r"|To enable the following instructions:"
)
_STDERR = 2


def import_tensorflow() -> None:
    """Imports TensorFlow, if that has not been done, without the noise.

    Raises:
        ConnectError: It is not installed.
    """
    if sys.modules.get("tensorflow") is not None:
        return
    require_tensorflow()
    with quiet_start():
        import tensorflow  # noqa: F401


def require_tensorflow() -> None:
    """Raises if TensorFlow cannot be imported, without importing it.

    Raises:
        ConnectError: It is not installed.
    """
    if not _can_import():
        raise ConnectError(
            "TensorFlow is not installed here.",
            fix='Run %pip install "tpunb[cpu]" (on a TPU VM: "tpunb[tpu]") and connect again.',
        )


@contextlib.contextmanager
def needing_tensorflow() -> Iterator[None]:
    """A block that imports TensorFlow, which may be missing.

    Raises:
        ConnectError: It is not installed.
    """
    try:
        yield
    except ImportError:
        require_tensorflow()
        raise  # something else is missing


def _can_import() -> bool:
    if sys.modules.get("tensorflow") is not None:
        return True
    try:
        return importlib.util.find_spec("tensorflow") is not None
    except ImportError:  # something in sys.meta_path refuses it
        return False


@contextlib.contextmanager
def quiet_start() -> Iterator[None]:
    """Holds back what is written to the standard error stream, and drops the noise.

    Everything else that was written appears when the block ends, also after an error.
    """
    if sys.stderr is None:  # a process without a console: nobody reads it
        yield
        return
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held:
        kept = os.dup(_STDERR)
        os.dup2(held.fileno(), _STDERR)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, _STDERR)
            os.close(kept)
            held.seek(0)
            lines = held.read().decode(errors="replace").splitlines(keepends=True)
            rest = "".join(line for line in lines if not _NOISE.match(line))
            if rest:
                sys.stderr.write(rest)
