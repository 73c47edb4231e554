"""The distinction of the user's code, which may change at any time, from installed libraries."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from pathlib import PurePath
from types import CodeType, ModuleType

_INSTALLED = ("site-packages", "dist-packages")
# They count as libraries even if they are installed editable or built in their own folder.
_LIBRARIES = frozenset({"IPython", "keras", "numpy", "tensorflow", "tf_keras", "tpunb"})
_STANDARD = tuple(
    os.path.normcase(path) + os.sep
    for path in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
)
_OWN = os.path.normcase(str(PurePath(__file__).parents[1])) + os.sep


@functools.lru_cache(maxsize=8192)  # called for every loaded module
def is_users_file(path: str) -> bool:
    """Return whether a file is the user's. A path that is not a file's comes from a notebook."""
    file = PurePath(path)
    if not file.is_absolute():
        return not path.startswith("<frozen ")
    if not set(_INSTALLED).isdisjoint(file.parts):
        return False
    return not os.path.normcase(path).startswith((*_STANDARD, _OWN))


def is_users_code(code: CodeType) -> bool:
    """Return whether a function's code is the user's, by its file."""
    return is_users_file(code.co_filename)


def is_users_module(module: ModuleType) -> bool:
    """Return whether a module is the user's: not installed and not in the standard library."""
    names = vars(module)
    top = str(names.get("__name__")).partition(".")[0]
    if top in _LIBRARIES:
        return False
    file = names.get("__file__")
    if isinstance(file, str):
        return is_users_file(file)
    paths = [str(path) for path in names.get("__path__", ())]  # a namespace package has these
    return top not in sys.stdlib_module_names and all(map(is_users_file, paths))


def is_users_class(kind: type) -> bool:
    """Return whether a class is the user's, by its module."""
    name = kind.__module__
    if name == "__main__":
        return True
    module = sys.modules.get(name) if isinstance(name, str) else None
    return module is None or is_users_module(module)
