"""The check whether a module's `__getattr__` runs for an import statement."""

from __future__ import annotations

import dis
import sys

_IMPORT_FROM = dis.opmap["IMPORT_FROM"]


def runs_for_import() -> bool:
    """Return whether `from module import name` called the function that calls this one.

    In such a statement, Python replaces an `AttributeError` with a sentence of its own.
    """
    statement = sys._getframe(2)
    return statement.f_code.co_code[statement.f_lasti] == _IMPORT_FROM
