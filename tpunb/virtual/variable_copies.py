"""A variable's copies: where each says that it is, and that one is written on its own.

`v.values[1].assign(x)` writes a single copy of a mirrored variable.

Copies of such a variable are taken for equal until something sets them apart. What a replica
function does is seen in its graph; this is what is done from outside of one. Whoever takes a
copy's handle, or gives the copy to a `tf.function`, which may have been traced for another
variable, is taken to write it: what they do with it cannot be seen.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tpunb.virtual._tensorflow import (
    TPU_VARIABLES,
    BaseResourceVariable,
    ResourceVariable,
    TPUUninitializedVariable,
    distribute_lib,
    enclosing_tpu_context,
)

__all__ = ["classes_on_cores", "replica_of", "watch_copies"]

_SCATTER = ("add", "div", "max", "min", "mul", "nd_add", "nd_sub", "nd_update", "sub", "update")
_WRITES = ("assign", "assign_add", "assign_sub", "batch_scatter_update",
           *(f"scatter_{name}" for name in _SCATTER))  # fmt: skip
_ON_WRITE = "_tpunb_on_write"
_CORE = "_tpunb_core"
_REPLICA = "_tpunb_replica"


def watch_copies(variable: Any, cores: Sequence[str], on_write: Callable[[set[str]], None]) -> None:
    """Has a function called before one copy of a variable is written on its own.

    Args:
        variable: A variable with a copy for each replica.
        cores: Where each copy says that it is; it may be kept elsewhere.
        on_write: Takes the key of the variable, alone.
    """
    on_write_of_this = functools.partial(on_write, {getattr(variable, "_handle_id", "")})
    for replica, (copy, core) in enumerate(zip(variable.values, cores, strict=False)):
        if not isinstance(copy, BaseResourceVariable):
            continue
        setattr(copy._handle, _REPLICA, replica)
        setattr(copy, _CORE, core)
        if type(copy) is ResourceVariable:
            setattr(copy, _ON_WRITE, on_write_of_this)
            copy.__class__ = _watched()
        else:
            copy.__class__ = _on_core(type(copy))  # type: ignore[arg-type]
    if type(variable) in TPU_VARIABLES:
        variable.__class__ = _of_copies(type(variable))  # type: ignore[arg-type]


def replica_of(handle: Any) -> int:
    """The replica whose copy of a variable a handle is; 0 for any other tensor."""
    return getattr(handle, _REPLICA, 0)


def classes_on_cores() -> list[type]:
    """The classes of variables and copies that say which core they are on."""
    return [
        *map(_on_core, (ResourceVariable, TPUUninitializedVariable)),
        *map(_of_copies, TPU_VARIABLES),
    ]


@functools.cache
def _watched() -> type:
    """TensorFlow's class of variables, whose methods see who calls them."""
    writes = [name for name in _WRITES if hasattr(ResourceVariable, name)]
    methods = {
        **{name: _watching(getattr(ResourceVariable, name), _is_by_library) for name in writes},
        "handle": property(_watching(ResourceVariable.handle.fget, _is_by_library)),
        "__tf_tracing_type__": _watching(ResourceVariable.__tf_tracing_type__, lambda _: False),
    }
    return _subclass(_on_core(ResourceVariable), methods)


@functools.cache
def _on_core(kind: Any) -> type:
    """A class of copies that say that they are on their core, and are kept elsewhere."""

    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        value, core = kind._read_variable_op(self, *args, **kwargs), getattr(self, _CORE)
        if not tf.executing_eagerly() or value.backing_device == core:
            return value
        with tf.device(core):
            return tf.identity(value)

    return _subclass(
        kind, {"device": property(operator.attrgetter(_CORE)), "_read_variable_op": read}
    )


@functools.cache
def _of_copies(kind: Any) -> type:
    """A class of variables that are, outside of a replica function, where their first copy is."""

    def device(self: Any) -> str:
        if enclosing_tpu_context() is not None:
            return str(kind.device.fget(self))
        return str(self._get_on_device_or_primary().device)

    return _subclass(kind, {"device": property(device)})


def _subclass(kind: Any, methods: Mapping[str, Any]) -> type:
    names = {"__doc__": kind.__doc__, "__module__": kind.__module__, **methods}
    metaclass: Callable[..., type] = type(kind)
    return metaclass(kind.__name__, (kind,), names)


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
