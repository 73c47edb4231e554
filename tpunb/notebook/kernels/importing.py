"""Imports TensorFlow in a kernel: silently, and with a virtual TPU or not at all."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec

from tpunb.errors import TpunbError
from tpunb.virtual.import_tensorflow import QuietImport


class Gate(QuietImport):
    """If TensorFlow comes without its virtual TPU, it does not come, also not at a second try.

    Attributes:
        error: Why there is no virtual TPU; None as long as nothing speaks against.
    """

    def __init__(self) -> None:
        super().__init__()
        self.error: BaseException | None = None

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> ModuleSpec | None:
        """TensorFlow's spec as the other finders give it; the `error` is raised if there is one."""
        if fullname == "tensorflow" and self.error is not None:
            raise self.error.with_traceback(None)
        return super().find_spec(fullname, path, target)

    def load(self, module: types.ModuleType, load: Callable[[types.ModuleType], None]) -> None:
        """Loads TensorFlow, and keeps the reason if it has no virtual TPU."""
        try:
            super().load(module, load)
        except TpunbError as error:
            self.error = error
            raise
