"""Acting as soon as TensorFlow is imported, and the variables that name a TPU until then."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from tpunb.errors import TpuWarning
from tpunb.tpu.types import Accelerator
from tpunb.virtual.patch.patch_tools import variable
from tpunb.virtual.patch.state import ADDRESS


def set_tpu_variables(accelerator: Accelerator, undo: contextlib.ExitStack) -> None:
    """Sets those that are not set: Colab's of old, and that of a TPU VM for its type."""
    values = {
        "COLAB_TPU_ADDR": ADDRESS,
        "TPU_NAME": f"grpc://{ADDRESS}",
        "XRT_TPU_CONFIG": f"tpu_worker;0;{ADDRESS}",
        "TPU_ACCELERATOR_TYPE": accelerator.name,
    }
    for name, value in values.items():
        undo.enter_context(variable(name, value))


_MODULE = "tensorflow"


class Hook(importlib.abc.MetaPathFinder, contextlib.AbstractContextManager[None]):
    """Waits for TensorFlow's import.

    It finds TensorFlow as Python would and lets its own loader load it; a failure
    of the import itself, or that there is no TensorFlow, is as without the hook.

    Args:
        arrived: Called when TensorFlow has been imported.
        required: Whether an error of it fails the import, and every further one; if
            not, it is a warning.
    """

    def __init__(self, arrived: Callable[[], None], *, required: bool) -> None:
        self._arrived = arrived
        self._required = required

    def __enter__(self) -> None:
        sys.meta_path.insert(0, self)

    def __exit__(self, *exception: object) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """TensorFlow's spec as the other finders give it, with a loader that reports."""
        del path, target
        if fullname != _MODULE:
            return None
        spec = self._found()
        if spec is not None and hasattr(spec.loader, "exec_module"):
            self._listen(spec.loader)
        return spec

    def _found(self) -> importlib.machinery.ModuleSpec | None:
        for finder in list(sys.meta_path):
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(_MODULE, None)
            if spec is not None:
                return spec
        return None

    def _listen(self, loader: Any) -> None:
        # On the loader itself: a wrapper would have to offer all that loaders offer.
        load = loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            with contextlib.suppress(AttributeError):
                del loader.exec_module
            load(module)
            self._report()
            self.__exit__()

        loader.exec_module = exec_module

    def _report(self) -> None:
        try:
            self._arrived()
        except Exception as error:
            if self._required:
                raise
            warnings.warn(
                "TensorFlow's names do not answer for the virtual TPU: "
                f"{type(error).__name__}: {error}",
                TpuWarning,
                stacklevel=2,
            )
