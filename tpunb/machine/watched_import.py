"""Finders that take part in the import of a framework by the notebook's own cells."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

from tpunb.errors import TpuWarning
from tpunb.machine.framework import NAMES, backend_of_keras


class WatchedImport(MetaPathFinder):
    """A finder before all other module finders, which takes part in the import of packages.

    It finds a package as Python would, and makes the package's own loader load it. If the import
    fails, or the package is not installed, the error is the same as without this finder.

    Args:
        packages: The names of the packages.
    """

    def __init__(self, *packages: str) -> None:
        self._packages = packages
        self._asking: set[str] = set()

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return a watched package's spec from the other finders; None for other modules."""
        del path, target
        if fullname not in self._packages or fullname in self._asking:  # another finder asks
            return None
        self._asking.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking.discard(fullname)
        loader: Any = getattr(spec, "loader", None)
        if hasattr(loader, "exec_module"):
            # Set on the loader itself: a wrapper would have to offer everything that loaders offer.
            load = loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                with contextlib.suppress(AttributeError):
                    del loader.exec_module  # another caller may have removed it already
                self.load(module, load)

            loader.exec_module = exec_module
        return spec

    def load(self, module: types.ModuleType, load: Callable[[types.ModuleType], None]) -> None:
        """Load a package by its loader's own function."""
        load(module)


class _OneImport(WatchedImport):
    """A finder that calls a function with a module when it is imported."""

    def __init__(self, name: str, then: Callable[[types.ModuleType], None]) -> None:
        super().__init__(name)
        self._then = then

    def load(self, module: types.ModuleType, load: Callable[[types.ModuleType], None]) -> None:
        """Load the module, and call the function."""
        load(module)
        self._then(module)


@contextlib.contextmanager
def when_imported(names: Iterable[str], then: Callable[[types.ModuleType], None]) -> Iterator[None]:
    """Call a function with modules: now, or when they are imported within a block."""
    with contextlib.ExitStack() as undo:
        for name in names:
            if (module := sys.modules.get(name)) is not None:
                then(module)
            else:
                finder = _OneImport(name, then)
                sys.meta_path.insert(0, finder)
                undo.callback(sys.meta_path.remove, finder)
        yield


class FirstImport(WatchedImport, contextlib.AbstractContextManager["FirstImport"]):
    """A finder that waits for the first import of a framework.

    The framework whose import begins first is the notebook's. Keras imports its backend first, but
    may import the other framework on the way: then the backend is the notebook's.

    Args:
        arrived: Called with the framework when it has been imported.
        frameworks: The frameworks to wait for.
        required: Whether an error in `arrived` fails this import and every further import.
            Otherwise the error becomes a warning.

    Attributes:
        chosen: The notebook's framework; None as long as it is not known.
    """

    def __init__(
        self, arrived: Callable[[str], None], *frameworks: str, required: bool = False
    ) -> None:
        super().__init__(*frameworks)
        self._arrived = arrived
        self._required = required
        self.chosen: str | None = None

    def __enter__(self) -> FirstImport:
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *exception: object) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def choose(self, framework: str) -> None:
        """Make a framework the notebook's, if that is not known yet."""
        if self.chosen is None and framework in self._packages:
            self.chosen = framework

    def load(self, module: types.ModuleType, load: Callable[[types.ModuleType], None]) -> None:
        """Load a framework. If it is the notebook's, report that, and remove this finder."""
        name = module.__name__
        self.choose(backend_of_keras())
        self.choose(name)
        try:
            load(module)
        except BaseException:
            self.chosen = None  # the notebook may go on with the other framework
            raise
        if name != self.chosen:
            return
        try:
            self._arrived(name)
        except Exception as error:
            if self._required:
                raise
            warnings.warn(
                f"{NAMES.get(name, name)} does not have the virtual TPU: "
                f"{type(error).__name__}: {error}",
                TpuWarning,
                stacklevel=2,
            )
        self.__exit__()
