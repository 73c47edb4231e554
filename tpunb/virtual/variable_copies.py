"""A mirrored variable's copies: one resource while they are equal, else one for each.

The cores of a process have one memory, and a mirrored variable has one value on all of them. So
its copies share a resource, a step takes one handle in place of one for each core, and assigns
once. A function that is traced meanwhile reads the variable once for all replicas.

That holds for as long as nobody but the engine has written a copy. Nobody can list the ways to
write one: methods, operations that take a handle, optimizers, checkpoints, compiled code. So reads
are listed. Whatever else reaches for a copy's handle, TensorFlow's own code included, gives each
copy a resource of its own first, and the copies count as different from then on.

The engine writes in two ways: in a replica function, whose graph shows what it does, and here,
where TensorFlow gives all copies of a variable the same value.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import operator
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from tpunb.virtual._tensorflow import (
    TPU_VARIABLES,
    BaseResourceVariable,
    FuncGraph,
    ResourceVariable,
    TPUReplicatedVariable,
    TPUUninitializedVariable,
    auto_control_deps,
    autograph_artifact,
    context,
    distribute_values,
    enclosing_tpu_context,
    in_save_context,
    ops,
    pywrap_tfe,
)

COPIES = "_tpunb_copies"
INDEX = "_tpunb_index"
CORE = "_tpunb_core"
_FIRST = "_tpunb_first"
_CAPTURED = "_tpunb_captured"
_LAST_CREATOR = (lambda: None).__name__
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
"""TensorFlow's methods of a variable or a copy that read it and keep its handle to themselves."""
_FUNCTIONS = "tensorflow.python.eager.polymorphic_function.polymorphic_function"
GRAPHS = frozenset({_FUNCTIONS, "tensorflow.python.framework.func_graph"})
_READERS = GRAPHS | {"tensorflow.python.eager.backprop", "tensorflow.python.eager.tape"}
"""TensorFlow's modules that take a handle only to tell variables apart."""
_EXECUTE = "tensorflow.python.eager.execute"
_CALLBACKS = "tensorflow.python.ops.script_ops"
_GENERATED = "tensorflow.python.ops.gen_"
"""TensorFlow's functions for single operations, of whose arguments the runtime reads variables."""

# A Pod's workers may have resources of an earlier client.
_PROCESS = uuid.uuid4().hex[:12]
_numbers = itertools.count()
_TRIES = 20
_followers: weakref.WeakSet[Copies] = weakref.WeakSet()
"""Split copies, while functions may be called that know but the first of them."""


def leads(devices: Sequence[str]) -> list[int]:
    """For each replica the first one on the same device.

    Args:
        devices: Where each replica's copies of variables are kept.
    """
    firsts: dict[str, int] = {}
    return [firsts.setdefault(device, k) for k, device in enumerate(devices)]


@dataclasses.dataclass(frozen=True)
class Resource:
    """The resource that keeps a variable's value, as functions find it.

    Attributes:
        name: Its name in TensorFlow's runtime.
        dtype: The type of the value.
        shape: Its shape.
        handle: Its handle.
        deleter: Ends it, when neither a copy nor a function needs it any more.
    """

    name: str
    dtype: tf.DType
    shape: tf.TensorShape
    handle: Any = dataclasses.field(compare=False)
    deleter: Any = dataclasses.field(compare=False)


class _Deleter:
    """Ends a resource with the last that refers to it."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def __del__(self) -> None:
        # A Pod's workers may have ended before, and TensorFlow itself at the process's end.
        with contextlib.suppress(Exception), context.eager_mode(), tf.device(self._handle.device):
            tf.raw_ops.DestroyResourceOp(resource=self._handle, ignore_lookup_error=True)


class Watcher(Protocol):
    """An observer that is notified of variables' copies."""

    variables: set[str]
    lock: threading.RLock

    def add(self, copies: Copies) -> None:
        """Takes the copies of a variable for one, until they are split."""

    def diverge(self, variables: Collection[str]) -> None:
        """Notes that the copies of variables, whose keys are given, may differ from now on."""

    def split(self, variables: Collection[str]) -> None:
        """Gives each copy of variables a resource of its own."""


class Copies:
    """The copies of a mirrored variable.

    Args:
        key: What identifies the variable.
        copies: Its copies: one for each replica, or with model parallelism one for each logical
            device of each replica.
        watcher: Is told before they may differ, and has them split.
        shared: Whether those on one device share the first one's resource from now on.

    Attributes:
        key: What identifies the variable.
        watcher: As given.
        shared: As given.
        used: Whether there is a function that takes them for one.
        dtype: The type of their values.
        shape: The shape of each.
    """

    def __init__(self, key: str, copies: Sequence[Any], watcher: Watcher, *, shared: bool) -> None:
        self.key = key
        self.watcher = watcher
        self.shared = shared
        self.used = False
        handles = [copy._handle for copy in copies]
        devices = [handle.device for handle in handles]
        self._leads = leads(devices) if shared else list(range(len(copies)))
        # Resources live as long as a handle of them.
        self._shared = [handles[lead] for lead in self._leads]
        self._handles = list(self._shared)
        self._resources: tuple[Resource | None, ...] = ()
        self.dtype, self.shape = copies[0].dtype, copies[0].shape
        self._names = [copy._handle_name for copy in copies]
        self._copies = [weakref.ref(copy) for copy in copies]  # which refer to this

    @property
    def are_merged(self) -> bool:
        """Whether those of a process share a resource still."""
        return self.shared and not self._resources

    @property
    def are_equal(self) -> bool:
        """Whether nobody but the engine can have written them."""
        return self.key not in self.watcher.variables

    @property
    def stand_in(self) -> Any:
        """The handle by which a traced function knows the variable."""
        return self._handles[0]

    @property
    def resources(self) -> Sequence[Resource | None]:
        """Each copy's own, once they are split; None for the first of a process, which kept its."""
        return self._resources

    def handles(self) -> list[Any]:
        """A handle for each process, or for each copy once they are split."""
        if self.are_merged:
            return [self._handles[lead] for lead in sorted(set(self._leads))]
        return list(self._handles)

    def handle(self, index: int) -> Any:
        """A copy's handle, for the engine."""
        return self._handles[index]

    def first(self, index: int) -> int:
        """The copy whose resource a copy shares, or shared."""
        return self._leads[index]

    def keeps(self, index: int) -> bool:
        """Return whether a copy keeps what is shared when they are split."""
        return self.first(index) == index

    def wait_for_functions(self) -> None:
        """Does nothing: what functions still write into the first copy, `catch_up` finds there."""

    def reach(self, index: int, *, to_read: bool) -> Any:
        """A copy's handle, for anybody else."""
        if not to_read:
            self._refuse_in_callback()
            self.watcher.diverge({self.key})
        if self.are_merged and not self.keeps(index) and _is_kept():
            self.watcher.split({self.key})
        return self._handles[index]

    def _refuse_in_callback(self) -> None:
        """Refuses to split copies from within a function that goes on to take them for one."""
        if self.are_merged and self.used and is_in_callback() and running():
            raise self.used_too_late(
                "in a tf.py_function, a tf.numpy_function or a dataset's generator",
                "one value for all copies",
            )

    def used_too_late(self, where: str, begun_with: str) -> tf.errors.OpError:
        """The error of who uses a copy on its own while a function takes them for one."""
        return tf.errors.FailedPreconditionError(
            None,
            None,
            f"A copy of {self._names[0]} is used on its own for the first time while a function "
            f"runs: {where}. The function has begun with {begun_with}.\nUse a copy before the "
            "function runs: v.values[0].assign(v.values[0]).",
        )

    @contextlib.contextmanager
    def written(self) -> Iterator[None]:
        """Mark writes by TensorFlow that give all copies the same value."""
        before, _now.written = _now.written, self
        # Another thread may be about to split them.
        alone = self.watcher.lock if tf.executing_eagerly() else contextlib.nullcontext()
        try:
            with alone, _trusted():
                yield
        finally:
            _now.written = before

    def split(self) -> None:
        """Gives each copy a resource of its own, with the value that all have.

        Called again, it ends what an interrupt has cut off.
        """
        if not self.are_merged:
            return
        with eagerly():
            resources = tuple(map(self._own, range(len(self._leads))))
        if self.used:
            _followers.add(self)
        pairs = zip(self._handles, resources, strict=True)
        self._handles = [shared if own is None else own.handle for shared, own in pairs]
        self._resources = resources

    def catch_up(self) -> None:
        """Waits for what other threads run, which may have updated the first copies alone."""
        for _ in range(_TRIES):
            wait_for_running()
            self._copy_first()
            if not running() and self._are_level():
                return  # else what began meanwhile has updated copies between two of them

    def _are_level(self) -> bool:
        """Return whether split copies hold the same, to the last bit."""
        with eagerly():
            values = [
                np.asarray(tf.raw_ops.ReadVariableOp(resource=one, dtype=self.dtype))
                for one in self._handles
            ]
        if self.dtype == tf.string:
            return all(np.array_equal(one, values[0]) for one in values)
        return all(one.tobytes() == values[0].tobytes() for one in values)

    def _copy_first(self) -> None:
        """Gives split copies the value of the first again."""
        with self.watcher.lock, eagerly():
            for index, own in enumerate(self._resources):
                if own is not None:
                    value = self._shared_value(index)
                    tf.raw_ops.AssignVariableOp(resource=own.handle, value=value)

    def _shared_value(self, index: int) -> tf.Tensor:
        """What a copy shares with others, also after they were split."""
        return tf.raw_ops.ReadVariableOp(resource=self._shared[index], dtype=self.dtype)

    def _own(self, index: int) -> Resource | None:
        """A resource with the value that a copy shares; None for one that keeps what is shared."""
        if self.keeps(index):
            return None
        shared, name = self._shared[index], f"{_PROCESS}_{next(_numbers)}"
        with tf.device(shared.device):
            handle = tf.raw_ops.VarHandleOp(dtype=self.dtype, shape=self.shape, shared_name=name)
            value = self._shared_value(index)
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)
        handle._handle_data = self.stand_in._handle_data
        handle._name, handle._unique_id = self._names[index], name
        # What saves a model finds the variable by these.
        handle._parent_trackable = self._copies[index]
        handle._distributed_container = shared._distributed_container
        if self.used:
            setattr(handle, _FIRST, shared)
        return Resource(name, self.dtype, self.shape, handle, _Deleter(handle))


# Who reaches for a copy.


class _Now(threading.local):
    """The state of this thread: nested reads, and the copies it gives one value."""

    reads = 0
    written: Copies | None = None


_now = _Now()


def are_written_alike(copies: Copies) -> bool:
    """Return whether TensorFlow is giving all these copies the same value, in this thread."""
    return _now.written is copies


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
    """Leave whatever graph is being built, a model's that is saved too."""
    with tf.init_scope(), context.eager_mode():
        yield


@contextlib.contextmanager
def _trusted() -> Iterator[None]:
    """Allow access to copies that reads them, or gives all of them the same value."""
    _now.reads += 1
    try:
        yield
    finally:
        _now.reads -= 1


def running() -> dict[int, Any]:
    """The threads that run a function of TensorFlow's now, apart from this one: their frames."""
    mine, frames = threading.get_ident(), sys._current_frames().items()
    return {
        thread: frame
        for thread, frame in frames
        if thread != mine and frame.f_globals.get("__name__") == _EXECUTE
    }


def wait_for_running() -> None:
    """Waits until what other threads run now has ended."""
    begun = running()
    while any(sys._current_frames().get(one) is frame for one, frame in begun.items()):
        time.sleep(0.001)


def is_in_callback() -> bool:
    """Return whether TensorFlow's runtime has called the Python code that asks."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals.get("__name__") == _CALLBACKS:
            return True
    return False


def _is_kept() -> bool:
    """Return whether what reads a copy now keeps its handle: a graph, or a tape."""
    if not tf.executing_eagerly():
        return not in_save_context()
    return not pywrap_tfe.TFE_Py_TapeSetIsEmpty()


def module_of(frame: Any) -> str:
    """Return the module of code that takes a handle."""
    while frame.f_code.co_name == "handle":
        frame = frame.f_back  # a property of what holds the variable, which hands it on
    return str(frame.f_globals.get("__name__"))


def _reads(frame: Any) -> bool:
    """Return whether code that takes a handle only reads."""
    module = module_of(frame)
    return _now.reads > 0 or module in _READERS or module.startswith(_GENERATED)


def _reading(read: Callable[..., Any]) -> Callable[..., Any]:
    """A method of TensorFlow's that is listed as one that reads."""

    @functools.wraps(read)
    def method(*args: Any, **kwargs: Any) -> Any:
        with _trusted():
            return read(*args, **kwargs)

    return autograph_artifact(method)  # type: ignore[no-any-return]


def copies_of(variable: Any) -> Copies | None:
    """The copies of a variable, of which one is given; None of what nobody watches."""
    if isinstance(variable, TPUReplicatedVariable):
        variable = variable._vars[0]
    return getattr(variable, COPIES, None)


def handle_of(copy: Any) -> Any:
    """A copy's handle, for the engine, or that of any other variable."""
    copies = copies_of(copy)
    return copy.handle if copies is None else copies.handle(getattr(copy, INDEX))


def replica_of(handle: Any) -> int:
    """The replica whose copy of a variable a handle is; 0 for any other tensor."""
    return getattr(handle, INDEX, 0)


def is_one_value(values: Any) -> bool:
    """Return whether the copies of a variable are given one value for all, now and later.

    Args:
        values: Tensors, variables and values of the replicas, in a nest.
    """
    distributed = distribute_values.DistributedValues
    given = [one for one in tf.nest.flatten(values) if isinstance(one, distributed)]
    return all(_is_one(one) for one in given)


def _is_one(value: Any) -> bool:
    parts = value.values
    if not isinstance(value, tf.Variable):
        return all(part is parts[0] for part in parts)
    copies = copies_of(parts[0])
    # A graph would go on to take its copies when they differ.
    return tf.executing_eagerly() and copies is not None and copies.are_equal


# Watching them.


def watch_copies(variable: Any, cores: Sequence[str], watcher: Watcher, creator: Any) -> None:
    """Sees who uses a copy of a new variable on its own, and merges the copies if they can be.

    Args:
        variable: A variable with a copy for each replica.
        cores: Where each copy says that it is; it may be kept elsewhere.
        watcher: Is told before a copy may be written, or has to have its own resource.
        creator: What created each copy.
    """
    copies = [
        part
        for value in variable.values
        for part in (value._vars if isinstance(value, TPUReplicatedVariable) else [value])
    ]
    known = all(isinstance(copy, BaseResourceVariable) for copy in copies)
    eager = ops.executing_eagerly_outside_functions()
    watched = None
    if known and eager and type(variable) in TPU_VARIABLES and variable._is_mirrored():
        watched = _watched(variable, copies, watcher, is_trusted=is_tensorflows(creator))
    elif len({id(getattr(copy, "_handle", copy)) for copy in copies}) < len(copies):
        raise AssertionError(f"The copies of {variable.name} share what they must not.")
    for index, copy in enumerate(copies):
        if not isinstance(copy, BaseResourceVariable):
            continue
        if watched is None or watched.keeps(index):
            setattr(copy._handle, INDEX, index)
        setattr(copy, CORE, cores[index])
        kind: Any = type(copy)
        if watched is not None:
            hide_handle(copy, watched, index)
            copy.__class__ = guarded(kind)
        else:
            copy.__class__ = on_core(kind)
    if type(variable) in TPU_VARIABLES:
        variable.__class__ = of_copies(type(variable))  # type: ignore[arg-type]


def hide_handle(copy: Any, copies: Copies, index: int) -> None:
    """Has whoever asks a copy for its handle ask all copies."""
    setattr(copy, COPIES, copies)
    setattr(copy, INDEX, index)
    vars(copy).pop("_handle")


def _watched(variable: Any, copies: Sequence[Any], watcher: Watcher, *, is_trusted: bool) -> Copies:
    plain = tf.executing_eagerly() and all(type(copy) is ResourceVariable for copy in copies)
    several = len({copy._handle.device for copy in copies}) < len(copies)
    # A user's creator may have given each its own value.
    equal = is_trusted or not plain or _hold_one_value(copies)
    watched = Copies(unique_key(variable), copies, watcher, shared=plain and several and equal)
    if watched.shared:
        watcher.add(watched)
    if not equal:
        watcher.diverge({watched.key})
    return watched


def unique_key(variable: Any) -> str:
    """Gives a variable a key of its own: TensorFlow's begins again where one is gone."""
    variable._handle_id += f"_{next(_numbers)}"
    return str(variable._handle_id)


def _hold_one_value(copies: Sequence[Any]) -> bool:
    first, *others = (copy.numpy() for copy in copies)
    return all(np.array_equal(first, other) for other in others)


def is_tensorflows(creator: Any) -> bool:
    """Return whether a variable creator is TensorFlow's last, with no user's behind it."""
    return getattr(creator, "__name__", "") == _LAST_CREATOR


def copy_of(first: Any, creator: Any, options: Mapping[str, Any], *, rows: bool) -> Any | None:
    """A further copy of a variable, which shares the resource of the first one beside it.

    It takes a fifth of the time of one with a resource, which would go when they are merged.

    Args:
        first: The copy that was created on the same device.
        creator: What would create a copy.
        options: What it would be given.
        rows: Whether each replica has its own value, and they may be rows of one resource.

    Returns:
        The copy, or None where it cannot share.
    """
    if type(first) is not ResourceVariable or not tf.executing_eagerly():
        return None
    if not is_tensorflows(creator):
        return None  # a user's is to hear of each
    mirrored = options.get("synchronization") in _MIRRORED
    if not (rows or mirrored) or options.get("caching_device"):
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


def classes_on_cores() -> list[type]:
    """The classes of variables and copies that say which core they are on."""
    kinds = ResourceVariable, TPUUninitializedVariable
    return [*map(on_core, kinds), *map(guarded, kinds), *map(of_copies, TPU_VARIABLES)]


@functools.cache
def on_core(kind: Any) -> type:
    """A class of copies that say that they are on their core, and are kept elsewhere."""

    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        value, core = kind._read_variable_op(self, *args, **kwargs), getattr(self, CORE)
        if not tf.executing_eagerly() or value.backing_device == core:
            return value
        with tf.device(core):
            return tf.identity(value)

    return subclass(
        kind, {"device": property(operator.attrgetter(CORE)), "_read_variable_op": read}
    )


@functools.cache
def guarded(kind: Any) -> type:
    """A class of copies whose handle nobody gets unseen."""
    located: Any = on_core(kind)

    def handle(self: Any) -> Any:
        copies: Copies = getattr(self, COPIES)
        return copies.reach(getattr(self, INDEX), to_read=_reads(sys._getframe(1)))

    def device(self: Any) -> str:
        asking: Any = sys._getframe(1)
        if asking.f_globals["__name__"].startswith("tpunb."):  # a notebook's names of devices
            asking = asking.f_back
        if asking.f_globals is vars(ops):
            # What is to be beside a copy, an optimizer's slot for one, goes where it is kept.
            return str(handle_of(self).device)
        return str(getattr(self, CORE))

    def container(self: Any) -> Any:
        return handle_of(self)._distributed_container

    def assign(self: Any, *args: Any, **kwargs: Any) -> Any:
        asking = sys._getframe(1)
        # Variables that a function makes when it first runs: TensorFlow gives copies one value.
        first = asking.f_code.co_name == "initialize_variables"
        if not first or asking.f_globals.get("__name__") != _FUNCTIONS:
            return located.assign(self, *args, **kwargs)
        with _trusted():
            return located.assign(self, *args, **kwargs)

    methods = {
        **{name: _reading(getattr(located, name)) for name in _READS if hasattr(located, name)},
        "_handle": property(handle),
        "handle": property(handle),
        "assign": assign,
        "device": property(device),
        "graph": property(_reading(located.graph.fget)),
        "_distributed_container": property(container),
    }
    return subclass(located, methods)


@functools.cache
def of_copies(kind: Any) -> type:
    """A class of variables that are, outside of a replica function, where their first copy is."""

    def device(self: Any) -> str:
        if enclosing_tpu_context() is not None:
            return str(kind.device.fget(self))
        return str(self._get_on_device_or_primary().device)

    def update(self: Any, update_fn: Any, value: Any, **kwargs: Any) -> Any:
        copies = copies_of(self._primary)
        if copies is None:
            return kind._update_cross_replica(self, update_fn, value, **kwargs)
        if not is_one_value(value):
            copies.watcher.diverge({copies.key})
        with copies.written():
            return kind._update_cross_replica(self, update_fn, value, **kwargs)

    def saveables(self: Any) -> Any:
        factories = kind._gather_saveables_for_checkpoint(self)
        return {name: _restoring(self, factory) for name, factory in factories.items()}

    methods = {
        **{name: _reading(getattr(kind, name)) for name in _READS if hasattr(kind, name)},
        "device": property(device),
        "_update_cross_replica": update,
        "_gather_saveables_for_checkpoint": saveables,
    }
    return subclass(kind, methods)


def _restoring(variable: Any, factory: Callable[..., Any]) -> Callable[..., Any]:
    """Make TensorFlow's object that saves and restores a variable, all copies alike."""
    copies = copies_of(variable._primary)

    def make(*args: Any, **kwargs: Any) -> Any:
        saveable = factory(*args, **kwargs)
        restore = saveable.restore

        def restore_all(*args: Any, **kwargs: Any) -> Any:
            with contextlib.nullcontext() if copies is None else copies.written():
                return restore(*args, **kwargs)

        saveable.restore = restore_all
        return saveable

    return make


def subclass(kind: Any, methods: Mapping[str, Any]) -> type:
    """A class of TensorFlow's with some methods replaced, and its name."""
    names = {"__doc__": kind.__doc__, "__module__": kind.__module__, **methods}
    metaclass: Callable[..., type] = type(kind)
    return metaclass(kind.__name__, (kind,), names)


# The order of what a graph does.


@auto_control_deps.register_acd_resource_resolver  # type: ignore[untyped-decorator]
def _uses_first_too(op: Any, reads: Any, writes: Any) -> bool:
    """Has what uses a split copy in a graph come after and before what uses the first.

    Functions that were traced before the copies were split take the first's handle alone, and
    automatic control dependencies know of nothing else.

    Returns:
        Whether more is used than was known.
    """
    if not _followers:
        return False
    found = False
    for touched, known in ((reads, (reads, writes)), (writes, (writes,))):
        firsts = [getattr(outermost(one), _FIRST, None) for one in touched]
        # Where the first is not used there is nothing to wait for.
        held = _captured(op.graph).by_outermost if any(map(tf.is_tensor, firsts)) else {}
        more = [held[id(first)] for first in firsts if id(first) in held]
        more = [one for one in more if not any(one in seen for seen in known)]
        touched.update(more)
        found |= bool(more)
    return found


class _Captured:
    """What a graph captures: pairs of a tensor around it and the one in it that stands for it."""

    def __init__(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        self.count = len(pairs)
        self._pairs = pairs
        self.outer = {id(inner): outer for outer, inner in pairs}

    @functools.cached_property
    def by_outermost(self) -> Mapping[int, Any]:
        """The tensors in the graph, by the ids of those that they stand for."""
        return {id(outermost(outer)): inner for outer, inner in self._pairs}


def _captured(graph: Any) -> _Captured:
    pairs = graph.captures
    known: _Captured | None = getattr(graph, _CAPTURED, None)
    if known is None or known.count != len(pairs):
        known = _Captured(pairs)
        setattr(graph, _CAPTURED, known)
    return known


def outermost(tensor: Any) -> Any:
    """Return a tensor as it was before graphs captured it."""
    while isinstance(graph := getattr(tensor, "graph", None), FuncGraph):
        known = _captured(graph).outer
        if id(tensor) not in known:
            return tensor
        tensor = known[id(tensor)]
    return tensor
