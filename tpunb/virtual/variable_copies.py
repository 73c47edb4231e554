"""A variable's copies: where each says that it is, and that one is used on its own.

`v.values[1].assign(x)` writes a single copy of a mirrored variable.

Copies of such a variable are taken for equal until something sets them apart. What a replica
function does is seen in its graph; this is what is done from outside of one. Whoever takes a
copy's handle, or gives the copy to a `tf.function`, which may have been traced for another
variable, is taken to write it: what they do with it cannot be seen.

Until then they share a resource. What changes them one after the other, as a function in
`strategy.extended.update` does, and a graph that has a copy's handle, need resources of their own.
"""

from __future__ import annotations

import functools
import itertools
import operator
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import tensorflow as tf

from tpunb.virtual._tensorflow import (
    TPU_VARIABLES,
    BaseResourceVariable,
    ResourceVariable,
    TPUUninitializedVariable,
    distribute_lib,
    enclosing_tpu_context,
    in_save_context,
    ops,
)
from tpunb.virtual.merged_copies import REPLICA, MergedCopies, order

__all__ = [
    "classes_on_cores",
    "copy_of",
    "merged_copies",
    "replica_of",
    "set_apart",
    "watch_copies",
]

_SCATTER = ("add", "div", "max", "min", "mul", "nd_add", "nd_sub", "nd_update", "sub", "update")
_WRITES = ("assign", "assign_add", "assign_sub", "batch_scatter_update",
           *(f"scatter_{name}" for name in _SCATTER))  # fmt: skip
_ON_WRITE = "_tpunb_on_write"
_MERGED = "_tpunb_merged"
_CORE = "_tpunb_core"
_LAST_CREATOR = (lambda: None).__name__
_MIRRORED = frozenset({tf.VariableSynchronization.AUTO, tf.VariableSynchronization.ON_WRITE, None})
_numbers = itertools.count()


class Watcher(Protocol):
    """What is told of variables' copies."""

    def add(self, merged: MergedCopies) -> None:
        """Takes the copies of a variable for one, until they are split."""

    def diverge(self, variables: Collection[str]) -> None:
        """Notes that the copies of variables, whose keys are given, may differ from now on."""

    def split(self, variables: Collection[str]) -> None:
        """Gives each copy of variables a resource of its own."""


def watch_copies(variable: Any, cores: Sequence[str], watcher: Watcher) -> None:
    """Merges the copies of a variable if it can be, and sees who uses one of them on its own.

    Args:
        variable: A variable with a copy for each replica.
        cores: Where each copy says that it is; it may be kept elsewhere.
        watcher: Is told before one copy is written, or has to be apart.
    """
    merged = _merge(variable, watcher)
    on_write = functools.partial(watcher.diverge, {getattr(variable, "_handle_id", "")})
    for replica, (copy, core) in enumerate(zip(variable.values, cores, strict=False)):
        if not isinstance(copy, BaseResourceVariable):
            continue
        if merged is None or merged.is_first(replica):
            setattr(copy._handle, REPLICA, replica)
        setattr(copy, _CORE, core)
        if type(copy) is ResourceVariable:
            setattr(copy, _ON_WRITE, on_write)
            setattr(copy, _MERGED, merged)
            setattr(copy, REPLICA, replica)
            copy.__class__ = _watched()
        else:
            copy.__class__ = _on_core(type(copy))  # type: ignore[arg-type]
    if type(variable) in TPU_VARIABLES:
        variable.__class__ = _of_copies(type(variable))  # type: ignore[arg-type]


def copy_of(first: Any, creator: Any, options: Mapping[str, Any]) -> Any | None:
    """A further copy of a mirrored variable, which shares the resource of the first one beside it.

    It takes a fifth of the time of one with a resource, which would go when they are merged.

    Args:
        first: The copy that was created on the same device.
        creator: What would create a copy. Behind TensorFlow's last there is none of a user's,
            who is to hear of each.
        options: What it would be given.

    Returns:
        The copy, or None where it cannot share.
    """
    if type(first) is not ResourceVariable or not tf.executing_eagerly():
        return None
    if getattr(creator, "__name__", "") != _LAST_CREATOR:
        return None
    if options.get("synchronization") not in _MIRRORED or options.get("caching_device"):
        return None
    name = ops.name_from_scope_name(options["name"])
    copy = object.__new__(ResourceVariable)
    BaseResourceVariable.__init__(
        copy,
        trainable=first.trainable,
        shape=first.shape,
        dtype=first.dtype,
        handle=first._handle,
        constraint=first.constraint,
        synchronization=first.synchronization,
        aggregation=first.aggregation,
        distribute_strategy=first._distribute_strategy,
        unique_id=f"{name}_{ops.uid()}",
        handle_name=name,
        in_graph_mode=False,
        validate_shape=first._validate_shape,
    )
    return copy


def _merge(variable: Any, watcher: Watcher) -> MergedCopies | None:
    """Has the copies of a new variable share one resource; None if they have to be apart."""
    copies = variable.values
    if not _can_be_merged(variable):
        if len({id(getattr(copy, "_handle", copy)) for copy in copies}) < len(copies):
            raise AssertionError(f"The copies of {variable.name} share what they must not.")
        return None
    # TensorFlow's own begins again where a variable is gone.
    variable._handle_id += f"_{next(_numbers)}"
    split = functools.partial(watcher.split, {variable._handle_id})
    merged = MergedCopies(variable._handle_id, copies, split)
    watcher.add(merged)
    return merged


def _can_be_merged(variable: Any) -> bool:
    copies = variable.values
    if type(variable) not in TPU_VARIABLES or not variable._is_mirrored():
        return False
    if not tf.executing_eagerly() or any(type(copy) is not ResourceVariable for copy in copies):
        return False
    return len({copy._handle.device for copy in copies}) < len(copies)


def merged_copies(copy: Any) -> MergedCopies | None:
    """What the copies of a variable are to each other, of which one is given.

    None if they have been apart from the first.
    """
    return getattr(copy, _MERGED, None)


def set_apart(copy: Any) -> None:
    """Has the copies of a variable, of which one is given, differ from now on."""
    getattr(copy, _ON_WRITE)()


def replica_of(handle: Any) -> int:
    """The replica whose copy of a variable a handle is; 0 for any other tensor."""
    return getattr(handle, REPLICA, 0)


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
        **{name: _watching_write(getattr(ResourceVariable, name)) for name in writes},
        "handle": property(_watching_handle(ResourceVariable.handle.fget)),
        "__tf_tracing_type__": _watching_type(ResourceVariable.__tf_tracing_type__),
    }
    return _subclass(_on_core(ResourceVariable), methods)


@functools.cache
def _on_core(kind: Any) -> type:
    """A class of copies that say that they are on their core, and are kept elsewhere."""

    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        value, core = kind._read_variable_op(self, *args, **kwargs), getattr(self, _CORE)
        if not tf.executing_eagerly():
            _order(self)
            return value
        if value.backing_device == core:
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

    def update(self: Any, update_fn: Any, value: Any, **kwargs: Any) -> Any:
        merged = merged_copies(self._primary)
        if merged is None or not tf.executing_eagerly():
            return kind._update_cross_replica(self, update_fn, value, **kwargs)
        with merged.changed_once():
            return kind._update_cross_replica(self, update_fn, value, **kwargs)

    return _subclass(kind, {"device": property(device), "_update_cross_replica": update})


def _subclass(kind: Any, methods: Mapping[str, Any]) -> type:
    names = {"__doc__": kind.__doc__, "__module__": kind.__module__, **methods}
    metaclass: Callable[..., type] = type(kind)
    return metaclass(kind.__name__, (kind,), names)


def _watching_write(write: Callable[..., Any]) -> Callable[..., Any]:
    """A method that writes a copy, and tells of it before."""

    @functools.wraps(write)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if distribute_lib.get_update_replica_id() is not None:
            _split_unless_changed_once(self)
        elif not _is_by_library(_caller()):
            getattr(self, _ON_WRITE)()
        result = write(self, *args, **kwargs)
        _order(self)
        return result

    return _left_by_autograph(method)


def _watching_handle(get: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The handle of a copy; whoever has it can write the copy, unless it is TensorFlow."""

    @functools.wraps(get)
    def handle(self: Any) -> Any:
        caller = _caller()
        if distribute_lib.get_update_replica_id() is not None:
            # By its handle TPUStrategy changes a copy, and by methods of the copy reads it.
            if caller != BaseResourceVariable.__module__:
                _split_unless_changed_once(self)
        elif not _is_by_library(caller):
            getattr(self, _ON_WRITE)()
        if not tf.executing_eagerly() and not in_save_context():
            _split_in_graph(self)
            _order(self)
        return get(self)

    return _left_by_autograph(handle)


def _watching_type(get: Callable[..., Any]) -> Callable[..., Any]:
    """What a function that takes a copy as an argument knows of it."""

    @functools.wraps(get)
    def tracing_type(self: Any, *args: Any, **kwargs: Any) -> Any:
        if distribute_lib.get_update_replica_id() is None:
            getattr(self, _ON_WRITE)()
        return get(self, *args, **kwargs)

    return _left_by_autograph(tracing_type)


def _left_by_autograph(method: Callable[..., Any]) -> Callable[..., Any]:
    method.autograph_info__ = {}  # type: ignore[attr-defined]  # AutoGraph leaves it as it is
    return method


def _caller() -> str:
    """The module that calls the method which asks."""
    return str(sys._getframe(2).f_globals.get("__name__"))


def _split_unless_changed_once(copy: Any) -> None:
    """Splits copies of which each is changed after the other, as by an optimizer's update."""
    merged = merged_copies(copy)
    if merged is not None and not merged.is_changed_once:
        merged.request_split()


def _split_in_graph(copy: Any) -> None:
    """Splits copies of which another than the first is used in a graph, which keeps its handle."""
    merged = merged_copies(copy)
    if merged is not None and not merged.is_first(getattr(copy, REPLICA)):
        merged.request_split()


def _order(copy: Any) -> None:
    """Orders a use of a split copy in a graph after and before functions that know but the first.

    They were traced before the copies were split, and take the first's handle alone.
    """
    merged, replica = merged_copies(copy), getattr(copy, REPLICA, 0)
    if merged is None or merged.are_merged or not merged.used or merged.is_first(replica):
        return
    if not tf.executing_eagerly() and enclosing_tpu_context() is None and not in_save_context():
        order([merged.lead(replica), copy._handle])


def _is_by_library(caller: str) -> bool:
    """Whether TensorFlow or we take all copies, one after the other, and no user's code one."""
    return caller.startswith(("tensorflow.", "tpunb.")) and ".autograph." not in caller
