"""A function that runs once a module is imported, now or later."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec


@contextlib.contextmanager
def after_import(name: str, then: Callable[[types.ModuleType], None]) -> Iterator[None]:
    """Within a block, call a function with a module that is imported, or as soon as it is.

    Args:
        name: The module's full name.
        then: The function.
    """
    if (module := sys.modules.get(name)) is not None:
        then(module)
        yield
        return
    finder = _Finder(name, then)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    """A finder before all others that finds one module as they would, and takes part in loading."""

    def __init__(self, name: str, then: Callable[[types.ModuleType], None]) -> None:
        self._name, self._then = name, then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's spec from the other finders; None for other modules."""
        del path, target
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)  # the other finders answer, and the next import is theirs
        spec = importlib.util.find_spec(fullname)
        loader = spec.loader if spec is not None else None
        if loader is not None:
            load = loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                load(module)
                self._then(module)

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
