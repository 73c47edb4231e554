"""Notices that a single copy of a mirrored variable is written: `v.values[1].assign(x)`.

Copies of such a variable are taken for equal until something sets them apart. What a replica
function does is seen in its graph; this is what is done from outside of one. Whoever takes a
copy's handle, or gives the copy to a `tf.function`, which may have been traced for another
variable, is taken to write it: what they do with it cannot be seen.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from tpunb.virtual._tensorflow import ResourceVariable, distribute_lib

__all__ = ["watch_copies"]

_SCATTER = ("add", "div", "max", "min", "mul", "nd_add", "nd_sub", "nd_update", "sub", "update")
_WRITES = ("assign", "assign_add", "assign_sub", "batch_scatter_update",
           *(f"scatter_{name}" for name in _SCATTER))  # fmt: skip
_ON_WRITE = "_tpunb_on_write"


def watch_copies(variable: Any, on_write: Callable[[set[str]], None]) -> None:
    """Has a function called before one copy of a variable is written on its own.

    Args:
        variable: A variable with a copy for each replica.
        on_write: Takes the key of the variable, alone.
    """
    on_write_of_this = functools.partial(on_write, {getattr(variable, "_handle_id", "")})
    for copy in variable.values:
        if type(copy) is ResourceVariable:
            setattr(copy, _ON_WRITE, on_write_of_this)
            copy.__class__ = _watched()


@functools.cache
def _watched() -> type:
    """TensorFlow's class of variables, whose methods see who calls them."""
    writes = [name for name in _WRITES if hasattr(ResourceVariable, name)]
    methods = {
        **{name: _watching(getattr(ResourceVariable, name), _is_by_library) for name in writes},
        "handle": property(_watching(ResourceVariable.handle.fget, _is_by_library)),
        "__tf_tracing_type__": _watching(ResourceVariable.__tf_tracing_type__, lambda _: False),
    }
    names = {"__doc__": ResourceVariable.__doc__, "__module__": ResourceVariable.__module__}
    metaclass: Callable[..., type] = type(ResourceVariable)
    return metaclass(ResourceVariable.__name__, (ResourceVariable,), {**names, **methods})


def _watching(write: Callable[..., Any], is_harmless: Callable[[str], bool]) -> Callable[..., Any]:
    """A method that tells of its calls, but for those by modules that do no harm."""

    @functools.wraps(write)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        caller = str(sys._getframe(1).f_globals.get("__name__"))
        if distribute_lib.get_update_replica_id() is None and not is_harmless(caller):
            getattr(self, _ON_WRITE)()
        return write(self, *args, **kwargs)

    method.autograph_info__ = {}  # type: ignore[attr-defined]  # AutoGraph leaves it as it is
    return method


def _is_by_library(caller: str) -> bool:
    """Whether TensorFlow or we take all copies, one after the other, and no user's code one."""
    return caller.startswith(("tensorflow.", "tpunb.")) and ".autograph." not in caller
