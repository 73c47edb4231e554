"""How TensorFlow is imported in a kernel: silently, and with a virtual TPU or not at all."""

from __future__ import annotations

import contextlib
import importlib.util
import types
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

from tpunb.errors import TpunbError

__all__ = ["Gate"]

_MODULE = "tensorflow"


class Gate(MetaPathFinder):
    """Stands before all that find modules, and looks at TensorFlow alone.

    While TensorFlow loads, what it says about GPUs that are not there is held
    back. If it comes without its virtual TPU, it does not come: neither then, nor
    when a cell tries again.

    Attributes:
        error: Why there is no virtual TPU; None as long as nothing speaks against.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._asking = False

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> ModuleSpec | None:
        """TensorFlow's spec as the other finders give it; None for other modules.

        Raises:
            BaseException: The `error`, if there is one.
        """
        del path, target
        if fullname != _MODULE:
            return None
        if self.error is not None:
            raise self.error.with_traceback(None)
        if self._asking:  # by another finder that stands between and asks in its turn
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
            from tpunb.virtual.import_tensorflow import quiet_start

            with contextlib.suppress(AttributeError):
                del loader.exec_module  # it may have been taken back by then
            with quiet_start():
                try:
                    load(module)
                except TpunbError as error:
                    self.error = error
                    raise

        loader.exec_module = exec_module
