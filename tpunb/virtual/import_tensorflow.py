"""How TensorFlow is imported, by tpunb and by the notebook's own cells: prepared, and quietly."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

from tpunb.errors import ConnectError
from tpunb.machine.software import prepare_tpu_library
from tpunb.virtual.tensorflow_log import quiet_start, silence_log
from tpunb.virtual.tpu_platform import skip_tpu_search

__all__ = [
    "QuietImport",
    "import_tensorflow",
    "needing_tensorflow",
    "prepared_import",
    "require_tensorflow",
]

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
