"""Distinguishes the user's code, which may change at any time, from an installed library's."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from pathlib import PurePath
from types import CodeType, ModuleType

_INSTALLED = ("site-packages", "dist-packages")
# Also when they are installed editable, or built in a folder of their own.
_LIBRARIES = frozenset({"IPython", "keras", "numpy", "tensorflow", "tf_keras", "tpunb"})
_STANDARD = tuple(
    os.path.normcase(path) + os.sep
    for path in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
)
_OWN = os.path.normcase(str(PurePath(__file__).parents[1])) + os.sep


@functools.lru_cache(maxsize=8192)  # asked of every module that is loaded
def _is_users_file(path: str) -> bool:
    """Returns whether a file is the user's; a path that is not a file's comes from a notebook."""
    found = PurePath(path)
    if not found.is_absolute():
        return not path.startswith("<frozen ")
    if not set(_INSTALLED).isdisjoint(found.parts):
        return False
    return not os.path.normcase(path).startswith((*_STANDARD, _OWN))


def is_users_code(code: CodeType) -> bool:
    """Returns whether a function's code is the user's, by its file."""
    return _is_users_file(code.co_filename)


def is_users_module(module: ModuleType) -> bool:
    """Returns whether a module is the user's: neither installed nor of the standard library."""
    names = vars(module)
    top = str(names.get("__name__")).partition(".")[0]
    if top in _LIBRARIES:
        return False
    file = names.get("__file__")
    if isinstance(file, str):
        return _is_users_file(file)
    paths = [str(path) for path in names.get("__path__", ())]  # of a namespace package
    return top not in sys.stdlib_module_names and all(map(_is_users_file, paths))


def is_users_class(kind: type) -> bool:
    """Returns whether a class is the user's, by its module."""
    name = kind.__module__
    if name == "__main__":
        return True
    module = sys.modules.get(name) if isinstance(name, str) else None
    return module is None or is_users_module(module)
