"""Spares a TensorFlow for TPUs the search for a TPU that cannot be there."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from pathlib import Path

__all__ = ["skip_tpu_search"]

# tensorflow::tpu::TpuPlatformInterface::GetRegisteredPlatform(initialize_platform, num_tries)
_GET_PLATFORM = "_ZN10tensorflow3tpu20TpuPlatformInterface21GetRegisteredPlatformEbi"
_LIBRARY = "libtensorflow_cc.so.2"


def skip_tpu_search() -> None:
    """Lets TensorFlow, which has been imported, look for a TPU once rather than five times.

    Without libtpu it has none. It keeps the answer, and would otherwise ask when it lists its
    devices, a second apart each time. No Python function does this; where a release does not
    have the C++ one, nothing happens.
    """
    file = getattr(sys.modules.get("tensorflow"), "__file__", None)
    if os.environ.get("TPU_LOAD_LIBRARY", "").strip() != "0" or file is None:
        return
    with contextlib.suppress(OSError, AttributeError):
        get_platform = getattr(ctypes.CDLL(str(Path(file).parent / _LIBRARY)), _GET_PLATFORM)
        get_platform.restype = ctypes.c_void_p
        get_platform(ctypes.c_bool(True), ctypes.c_int(1))
