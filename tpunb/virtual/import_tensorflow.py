"""How TensorFlow is imported, by tpunb and by the notebook's own cells: prepared, and quietly."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from tpunb.errors import ConnectError
from tpunb.machine.software import prepare_tpu_library
from tpunb.virtual.tensorflow_log import quiet_start, silence_log

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


_MODULE = "tensorflow"


def import_tensorflow() -> None:
    """Imports TensorFlow, if that has not been done, without the noise.

    Raises:
        ConnectError: It is not installed.
    """
    silence_log()
    if sys.modules.get(_MODULE) is not None:
        skip_tpu_search()
        return
    require_tensorflow()
    with prepared_import():
        import tensorflow  # noqa: F401


@contextlib.contextmanager
def prepared_import() -> Iterator[None]:
    """A block that imports TensorFlow.

    Raises:
        ConnectError: TensorFlow would load a libtpu that ends the process.
    """
    prepare_tpu_library()
    silence_log()
    with quiet_start():
        yield
    skip_tpu_search()


class QuietImport(MetaPathFinder):
    """Stands before all that find modules, and prepares every import of TensorFlow."""

    def __init__(self) -> None:
        self._asking = False

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> ModuleSpec | None:
        """TensorFlow's spec as the other finders give it; None for other modules."""
        del path, target
        if fullname != _MODULE or self._asking:  # by another finder, which asks in its turn
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking = False
        if spec is not None:
            self._watch(spec.loader)
        return spec

    def _watch(self, loader: Any) -> None:
        load = getattr(loader, "exec_module", None)
        if load is None:
            return

        def exec_module(module: types.ModuleType) -> None:
            with contextlib.suppress(AttributeError):
                del loader.exec_module  # it may have been taken back by then
            with prepared_import():
                self.load(module, load)

        loader.exec_module = exec_module

    def load(self, module: types.ModuleType, load: Callable[[types.ModuleType], None]) -> None:
        """Loads TensorFlow by its loader's own function."""
        load(module)


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
