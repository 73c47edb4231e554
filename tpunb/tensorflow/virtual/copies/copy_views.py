"""Variables and their copies, as TensorFlow and programs see them.

`variable_copies.py` explains where copies are kept. A copy is an object of TensorFlow's class of
variables, with methods that this module overrides:

- `_READS` lists its methods that only read. They may use the handle without any effect.
- All other code that takes the handle may write with it: see `Copies.handle_for`.
- TensorFlow's kernels for eager operations read a variable by its `_handle` if that is a tensor.
  Here `_handle` is not a tensor, so that the kernels ask for the value.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb.tensorflow.virtual.copies.variable_copies import (
    COPIES,
    INDEX,
    Copies,
    Watcher,
    copies_of,
    handle_of,
    is_one_value,
    numbers,
    only_reading,
)
from tpunb.tensorflow.virtual.graph.function_def import BRANCHES
from tpunb.tensorflow.virtual.private_names import (
    TPU_VARIABLES,
    BaseResourceVariable,
    ResourceVariable,
    TPUReplicatedVariable,
    TPUUninitializedVariable,
    autograph_artifact,
    enclosing_tpu_context,
    ops,
)

CORE = "_tpunb_core"
_CREATED = "_tpunb_created"
_FIRST_VALUE = "_tpunb_first_value"
_MIRRORED = frozenset({tf.VariableSynchronization.AUTO, tf.VariableSynchronization.ON_WRITE, None})
_READS = (
    "_copy_trackable_to_cpu",
    "_export_to_saved_model_graph",
    "_read_variable_op",
    "_write_object_proto",
    "gather_nd",
    "is_initialized",
    "sparse_read",
)
"""TensorFlow's methods of a variable or a copy that only read it and do not pass its handle on."""


# Creation.


def create_copy(creator: Any, options: Mapping[str, Any], device: str, beside: Any | None) -> Any:
    """Create a copy of a variable that shares another copy's resource if possible.

    Sharing takes a fifth of the time of making a resource, which would be dropped when the copies
    are put together.

    Args:
        creator: The function that creates a copy.
        options: The creator's arguments.
        device: The device that keeps the copy.
        beside: The copy that was created before on the same device, if any.
    """
    mirrored = options.get("synchronization") in _MIRRORED
    if beside is not None and mirrored and _can_share(beside, creator, options):
        return _sharing(beside, options)
    with tf.device(device):
        if tf.executing_eagerly() or not ops.executing_eagerly_outside_functions():
            return creator(**options)
        variable, value = _created_in_function(creator, options)
    if not isinstance(variable, BaseResourceVariable):
        return variable
    # TensorFlow gives the variable its first value when the function is first called. It may write
    # this object freely, because programs see another object, which shares the resource.
    same = mirrored and beside is not None and value is not None and value is first_value(beside)
    copy = _sharing(beside if same else variable, options)
    setattr(copy, _CREATED, variable)  # the function must not lose the variable
    setattr(copy, _FIRST_VALUE, value)
    return copy


def _can_share(variable: Any, creator: Any, options: Mapping[str, Any]) -> bool:
    if not is_tensorflows(creator) or options.get("caching_device"):
        return False  # a user's creator must be called for each copy
    return tf.executing_eagerly() and type(variable) is ResourceVariable


def is_tensorflows(creator: Any) -> bool:
    """Return whether a variable creator is TensorFlow's last, with no user's creator behind it.

    `_variable_call` in TensorFlow's python/ops/variables.py, up to 2.21, begins its chain of
    creators with a lambda. It wraps each user's creator in a function with the name `getter`.
    """
    return getattr(creator, "__name__", "") == "<lambda>"


def _created_in_function(creator: Any, options: Mapping[str, Any]) -> tuple[Any, Any]:
    """Create a variable while a function is traced.

    Returns:
        The variable, and the tensor of its first value in the function's graph. The tensor is None
        if it is not known. TensorFlow 2.18 to 2.21 write an `If` that assigns the first value if
        nothing else assigns it.
    """
    graph: Any = ops.get_default_graph()
    before = len(graph.get_operations())
    # The graph of a replica function distinguishes the first value from a use of a single copy.
    with getattr(graph, "creating_variable", contextlib.nullcontext)():
        variable = creator(**options)
        if not isinstance(variable, BaseResourceVariable):
            return variable, None
        handle = graph.capture(variable._handle)
    values = [
        [tensor for tensor in op.inputs[1:] if tensor is not handle]
        for op in graph.get_operations()[before:]
        if op.type in BRANCHES and any(tensor is handle for tensor in op.inputs)
    ]
    return variable, values[0][0] if list(map(len, values)) == [1] else None


def first_value(copy: Any) -> Any:
    """Return the tensor of a copy's first value in a function's graph; None if it is not known."""
    return getattr(copy, _FIRST_VALUE, None)


def _sharing(variable: Any, options: Mapping[str, Any]) -> Any:
    """Return a new copy that shares a variable's resource."""
    name = ops.name_from_scope_name(options["name"])
    copy = object.__new__(ResourceVariable)
    BaseResourceVariable.__init__(
        copy,
        trainable=variable.trainable,
        shape=variable.shape,
        dtype=variable.dtype,
        handle=variable._handle,
        constraint=variable.constraint,
        synchronization=variable.synchronization,
        aggregation=variable.aggregation,
        distribute_strategy=variable._distribute_strategy,
        unique_id=f"{name}_{ops.uid()}",
        handle_name=name,
        in_graph_mode=False,
        validate_shape=variable._validate_shape,
    )
    return copy


def watch_copies(variable: Any, cores: Sequence[str], watcher: Watcher, creator: Any) -> None:
    """Keep the copies of a new variable together if possible, and notice the use of a single copy.

    Args:
        variable: A variable with a copy for each replica.
        cores: The device that each copy reports; the copy may be kept elsewhere.
        watcher: The strategy's record of copies.
        creator: The function that created each copy.
    """
    copies = [
        part
        for value in variable.values
        for part in (value._vars if isinstance(value, TPUReplicatedVariable) else [value])
    ]
    is_ours = type(variable) in TPU_VARIABLES
    is_known = all(isinstance(copy, BaseResourceVariable) for copy in copies)
    is_eager = ops.executing_eagerly_outside_functions()
    state: Copies | None = None
    if is_ours and is_known and is_eager and variable._is_mirrored():
        state = _mirrored(variable, copies, watcher, is_trusted=is_tensorflows(creator))
    for index, copy in enumerate(copies):
        if isinstance(copy, BaseResourceVariable):
            _see(copy, state, index, cores[index])
    if is_ours:
        variable.__class__ = of_copies(type(variable))  # type: ignore[arg-type]


def _see(copy: Any, copies: Copies | None, index: int, core: str) -> None:
    """Make a copy report its core, and give its handle only through its copies."""
    base: Any = type(copy)
    setattr(copy, CORE, core)
    setattr(copy, INDEX, index)
    if copies is None or copies.keeps(index):
        setattr(copy._handle, INDEX, index)
    if copies is None:
        copy.__class__ = on_core(base)
        return
    setattr(copy, COPIES, copies)
    handle, own = vars(copy).pop("_handle"), vars(copy)
    # Only variables that a function creates have this container.
    if "_distributed_container" in own:
        handle._distributed_container = own.pop("_distributed_container")
    copy.__class__ = guarded(base)


def _mirrored(
    variable: Any, copies: Sequence[Any], watcher: Watcher, *, is_trusted: bool
) -> Copies:
    # TensorFlow gives these variables their first values later, by methods that the copies notice.
    lazy = any(isinstance(copy, TPUUninitializedVariable) for copy in copies)
    several = len({copy._handle.device for copy in copies}) < len(copies)
    # A user's creator may have given each copy its own value.
    equal = is_trusted or lazy or _begin_with_one_value(copies)
    together = several and equal and not lazy
    state = Copies(_unique_key(variable), copies, watcher, together=together)
    watcher.add(state)
    if not equal:
        watcher.diverge({state.key})
    return state


def _unique_key(variable: Any) -> str:
    """Give a variable a unique key: TensorFlow reuses the key of a variable that is gone.

    Up to TensorFlow 2.21, its key ends in the address of the first copy: see `_handle_id` in
    python/distribute/tpu_values.py.
    """
    variable._handle_id += f"_{next(numbers)}"
    return str(variable._handle_id)


def _begin_with_one_value(copies: Sequence[Any]) -> bool:
    if not tf.executing_eagerly():
        return first_value(copies[0]) is not None and len({id(first_value(c)) for c in copies}) == 1
    first, *others = (copy.numpy() for copy in copies)
    return all(np.array_equal(first, other) for other in others)


# The classes of copies.


class _UnseenHandle:
    """A copy's `_handle`: not a tensor, but converted to a tensor it is the handle."""

    def __init__(self, copy: Any) -> None:
        self._copy = copy

    def __tf_tensor__(self, dtype: Any = None, name: Any = None) -> Any:
        return self._copy.handle

    @property
    def _id(self) -> int:
        """The number by which a function distinguishes arguments that are variables."""
        return int(self._copy.handle._id)


def classes_on_cores() -> list[type]:
    """Return the classes of variables and copies that report their core."""
    bases = ResourceVariable, TPUUninitializedVariable
    return [*map(on_core, bases), *map(guarded, bases), *map(of_copies, TPU_VARIABLES)]


@functools.cache
def on_core(base: Any) -> type:
    """Return a class of copies that report their core as their device, but are kept elsewhere."""

    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        value, core = base._read_variable_op(self, *args, **kwargs), getattr(self, CORE)
        if not tf.executing_eagerly() or value.backing_device == core:
            return value
        with tf.device(core):
            return tf.identity(value)

    def device(self: Any) -> Any:
        beside = _is_placing_beside(sys._getframe(1))
        return handle_of(self).device if beside else getattr(self, CORE)

    def deepcopy(self: Any, memo: Any) -> Any:
        with tf.device(handle_of(self).device):
            copied = base.__deepcopy__(self, memo)
        _see(copied, None, getattr(self, INDEX), getattr(self, CORE))
        return copied

    methods = {"device": property(device), "_read_variable_op": read, "__deepcopy__": deepcopy}
    return _subclass(base, methods)


def _is_placing_beside(caller: Any) -> bool:
    """Return whether TensorFlow asks for a copy's device to place something beside the copy.

    Slots of TensorFlow 1's optimizers are placed so. An operation that takes the copy and its slot
    fails if they are not on the same device, and the copy is not kept on its core. `colocate_with`
    is in TensorFlow's python/framework/ops.py, up to 2.21, and other code there asks no variable.
    """
    return bool(caller.f_globals.get("__name__") == ops.__name__)


@functools.cache
def guarded(base: Any) -> type:
    """Return a class of copies that give their handle only through `Copies.handle_for`."""
    located: Any = on_core(base)

    def handle(self: Any) -> Any:
        return getattr(self, COPIES).handle_for(getattr(self, INDEX))

    def container(self: Any) -> Any:
        return handle_of(self)._distributed_container

    methods = {
        **{name: _reading(getattr(located, name)) for name in _READS if hasattr(located, name)},
        "_handle": property(_UnseenHandle),
        "handle": property(handle),
        "graph": property(_reading(located.graph.fget)),
        "_distributed_container": property(container),
    }
    return _subclass(located, methods)


# The classes of variables.


@functools.cache
def of_copies(base: Any) -> type:
    """Return a class of variables that, outside a replica function, are on the first core."""

    def device(self: Any) -> str:
        if enclosing_tpu_context() is not None:
            return str(base.device.fget(self))
        return str(self._get_on_device_or_primary().device)

    def update(self: Any, update_fn: Any, value: Any, **kwargs: Any) -> Any:
        copies = copies_of(self._primary)
        if copies is None:
            return base._update_cross_replica(self, update_fn, value, **kwargs)
        if not is_one_value(value):
            copies.watcher.diverge({copies.key})
        with copies.given_one_value():
            return base._update_cross_replica(self, update_fn, value, **kwargs)

    def saveables(self: Any) -> Any:
        factories = base._gather_saveables_for_checkpoint(self)
        return {name: _restoring(self, factory) for name, factory in factories.items()}

    methods = {
        **{name: _reading(getattr(base, name)) for name in _READS if hasattr(base, name)},
        "device": property(device),
        "_update_cross_replica": update,
        "_gather_saveables_for_checkpoint": saveables,
    }
    return _subclass(base, methods)


def _restoring(variable: Any, factory: Callable[..., Any]) -> Callable[..., Any]:
    """Return TensorFlow's factory of a saveable, changed to restore all copies alike."""
    copies = copies_of(variable._primary)
    if copies is None:
        return factory
    state = copies

    def make(*args: Any, **kwargs: Any) -> Any:
        saveable = factory(*args, **kwargs)
        restore = saveable.restore

        def restore_all(*args: Any, **kwargs: Any) -> Any:
            with state.given_one_value():
                return restore(*args, **kwargs)

        saveable.restore = restore_all
        return saveable

    return make


def _reading(read: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that calls a reading method of TensorFlow without any effect on copies."""

    @functools.wraps(read)
    def method(*args: Any, **kwargs: Any) -> Any:
        with only_reading():
            return read(*args, **kwargs)

    return autograph_artifact(method)  # type: ignore[no-any-return]


def _subclass(base: Any, methods: Mapping[str, Any]) -> type:
    """Return a subclass of a TensorFlow class with its name and with some methods replaced."""
    names = {"__doc__": base.__doc__, "__module__": base.__module__, **methods}
    metaclass: Callable[..., type] = type(base)
    return metaclass(base.__name__, (base,), names)
