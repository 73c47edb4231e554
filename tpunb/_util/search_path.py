"""The order in which Python searches for modules, so that a user's file hides none of Python's."""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

_FRAMEWORKS = ("jax", "jaxlib", "keras", "libtpu", "numpy", "tensorflow", "tf_keras", "tpunb")


@functools.cache
def _real(folder: str) -> Path:
    return Path(folder).resolve()


_LIBRARY = {_real(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
_STANDARD = {*_LIBRARY, *(folder / "lib-dynload" for folder in _LIBRARY)}
_OWN = Path(__file__).resolve().parents[2]
_added: list[str] = []
"""The user's folders that are on the path."""


def is_taken(name: str) -> bool:
    """Return whether a module of the user cannot have a name: Python or a framework has it."""
    return name in sys.modules or name in sys.stdlib_module_names or name in _FRAMEWORKS


def add_users_folder(folder: str) -> None:
    """Let code import the modules in a user's folder.

    They come behind Python's own modules and before installed packages. Files that are named like a
    framework, such as `jax.py`, are not found.
    """
    if folder in sys.path:
        return
    standard = [place for place, each in enumerate(sys.path) if _is_standard(each)]
    sys.path.insert(max(standard, default=-1) + 1, folder)
    if not _added:
        sys.meta_path.insert(0, _Frameworks())
    _added.append(folder)


class _Frameworks:
    """Finds frameworks where the user's folders have files that are named like them."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a framework is, or None to let Python search."""
        del path
        if name not in _FRAMEWORKS or not any(Path(at, f"{name}.py").exists() for at in _added):
            return None
        others = [folder for folder in sys.path if folder not in _added]
        if spec := PathFinder.find_spec(name, others, target):
            return spec
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def path_for_child() -> list[str]:
    """Return the search path for a process of tpunb, which runs none of the user's code.

    Python's own modules come first, and the user's folders last: the working folder, and those
    that `add_users_folder` has added.
    """
    return sorted(sys.path, key=lambda folder: (not _is_standard(folder), _is_users(folder)))


def _is_standard(folder: str) -> bool:
    return bool(folder) and _real(folder) in _STANDARD


def _is_users(folder: str) -> bool:
    real = Path(folder).resolve()
    return real != _OWN and (folder in _added or real == Path.cwd())
