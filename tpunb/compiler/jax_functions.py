"""Functions and Keras models of JAX: the user's JAX exports them, ours compiles what it exports.

The two need not be of one release: what `jax.export` writes is stable. It is a program for TPUs
that need not be there, over as many devices as the shardings of the arguments have. JAX is taken
from where the user has imported it, and imported nowhere.

The modules of Flax and of Equinox are no functions of arrays, and their own `jit`s turn them into
some. What a TPU compiles is the `jax.jit` in these.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import math
import re
import sys
import traceback
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tpunb.compiler import libtpu
from tpunb.compiler.fingerprint import Fingerprint
from tpunb.compiler.frameworks import JAX, TENSORFLOW, frameworks_in, frameworks_of
from tpunb.compiler.jax_chip import LoweredFor, asks_in_vain
from tpunb.compiler.libtpu import MARK, Prepared, unmarked
from tpunb.compiler.program import CompileError, TpuProgram
from tpunb.compiler.topologies import Target
from tpunb.compiler.verdict import LOWERING, TRACING, Settings, program_for
from tpunb.errors.code_problems import Choose, Problem, SourceLine, is_library, is_of_this_package
from tpunb.errors.explain import explain
from tpunb.virtual.keras_internals import (
    build_for,
    build_for_inputs,
    is_model,
    is_of_jax,
    jax_state,
    layer_names,
    model_of,
)

_TRANSFORM = re.compile(r"(\w+)\((.*)\)")
_CALLS = frozenset({"jit", "pjit"})
_CONTROL = re.compile(
    r"while|cond|(?:body|cond)_pred|body|branch_\d+_fun|closed_call|checkpoint"
    r"|rematted_computation|shard_map|custom_\w+_call|pallas_call|.*->.*"
)
"""What JAX itself puts into an operation's name, beside the user's scopes; an einsum its axes."""

_CALLBACK = re.compile(r"\b(?:pure|io|debug)_callback\b|\bdebug_print\b")

_VARIABLES = ("trainable_variables", "non_trainable_variables")
_STATES = {
    "fit": (*_VARIABLES, "optimizer_variables", "metrics_variables"),
    "evaluate": (*_VARIABLES, "metrics_variables"),
    "predict": _VARIABLES,
}
_STEPS = {"fit": "train_step", "evaluate": "test_step", "predict": "predict_step"}
_OF_A_BATCH = {"train_on_batch": "fit", "test_on_batch": "evaluate", "predict_on_batch": "predict"}


def is_keras_model(fn: Any) -> bool:
    """Return whether this is a Keras model with the JAX backend, or a method of one."""
    model = model_of(fn)
    return model is not None and is_of_jax(model)


def chosen(
    fn: Any, args: Sequence[Any], strategy: Any = None, named: Mapping[str, Any] | None = None
) -> tuple[str, str]:
    """Return the framework that compiles a function, and a note if the other could do so as well.

    Args:
        fn: The function.
        args: Its arguments.
        strategy: The strategy of TensorFlow's that is in use, if there is one.
        named: Its arguments by name.
    """
    named = named or {}
    jax: Any = sys.modules.get("jax")
    if jax is None:
        return TENSORFLOW, ""
    if is_keras_model(fn) or (hasattr(fn, "trace") and hasattr(fn, "lower")):
        return JAX, ""
    kinds = (jax.Array, jax.ShapeDtypeStruct)
    leaves = _leaves([*args, *named.values()])
    has_tensorflow = sys.modules.get("tensorflow") is not None
    if not has_tensorflow or any(isinstance(leaf, kinds) for leaf in leaves):
        return JAX, ""
    if model_of(fn) is not None or TENSORFLOW in frameworks_in(map(type, leaves)):
        return TENSORFLOW, ""
    reached = frameworks_of(fn)
    if len(reached) == 1:
        return next(iter(reached)), ""
    if not _can_trace(functools.partial(fn, **named) if named else fn, args):
        return TENSORFLOW, ""
    if not reached and strategy is not None:
        return TENSORFLOW, _EITHER_BY_TENSORFLOW
    return JAX, "" if reached else _EITHER_BY_JAX


_EITHER_BY_JAX = (
    "JAX and TensorFlow can both trace this function: JAX did. For TensorFlow, pass tf.TensorSpec "
    "arguments."
)
_EITHER_BY_TENSORFLOW = (
    "JAX and TensorFlow can both trace this function: TensorFlow did, as it is connected. For JAX, "
    "pass jax.ShapeDtypeStruct arguments."
)


def _can_trace(fn: Any, args: Sequence[Any]) -> bool:
    """Return whether JAX traces a call; operations of TensorFlow's in it go into a spare graph."""

    def trace(jitted: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        return jitted.trace(*args, **named)

    with sys.modules["tensorflow"].Graph().as_default():
        try:
            _at_the_jit(fn, args, trace)
        except Exception:  # whatever the function raises
            return False
    return True


def with_named(fn: Any, named: Mapping[str, Any], framework: str) -> Any:
    """A function with arguments that are given by name; JAX's traces them like the others.

    Args:
        fn: The function.
        named: The arguments.
        framework: The one that compiles it.

    Raises:
        CompileError: It is a model, whose step takes none.
    """
    if model_of(fn) is not None:
        raise CompileError(
            f"A model's step takes no argument by name: {', '.join(named)}.",
            fix="Pass a model its batch alone: tpunb.compile(model, x, y).",
        )
    plain = isinstance(fn, (types.FunctionType, types.MethodType)) and not hasattr(fn, "lower")
    if plain and framework == JAX:
        fn = sys.modules["jax"].jit(fn)
    return functools.partial(fn, **named)


def function_for(fn: Any, args: Sequence[Any], strategy: None, settings: Settings) -> JaxFunction:
    """Return a function of JAX for any TPU type; see `tpunb.compile` for the arguments and errors.

    It is traced and exported when it is compiled for the first of the types.
    """
    del strategy
    layers = layer_names(fn)
    if is_keras_model(fn):
        sizes = [one.shape[0] for one in _leaves(_batch(args)) if one.shape]

        def model_for(wanted: Target) -> tuple[Prepared, int]:
            return _export(settings, layers, *_model_step(fn, args, wanted.replicas))

        return JaxFunction(model_for, settings, sizes[0] if sizes else None, by_cores=True)
    if unknown := next((shape for shape in map(np.shape, _leaves(args)) if None in shape), None):
        raise CompileError(
            f"An argument's shape {unknown} has no size.",
            fix="Give it a number; tpunb.largest_batch finds the largest.",
        )
    export = functools.partial(_export, settings, layers)
    return JaxFunction(lambda _: _at_the_jit(fn, args, export), settings)


def _leaves(nest: Any) -> list[Any]:
    found: list[Any] = sys.modules["jax"].tree_util.tree_leaves(nest)
    return found


def devices_of(fn: Any, args: Sequence[Any], wanted: Target) -> int:
    """Return the number of devices in the mesh of a function's arguments."""

    def counted(jitted: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        export = importlib.import_module("jax.export").export(jitted, platforms=["tpu"])
        return export(*args, **named).nr_devices

    with LoweredFor(wanted):
        return int(_at_the_jit(fn, args, counted))


def any_batch(fn: Any, args: Sequence[Any]) -> tuple[int | None, Callable[..., list[Any]]]:
    """The global batch in the arguments (None where it is open), and what makes them with another.

    It is the first size of a model's first array, and of a function's last argument; of a
    function, arguments are resized of which it is the first size of all arrays. They keep their
    shardings, unless what makes them is given one as well.

    Raises:
        CompileError: None of them has one.
    """
    jax: Any = sys.modules["jax"]
    whole = is_keras_model(fn)
    data = _batch(args, may_be_open=True) if whole else ()
    given = list(args) if not whole else list(data) if isinstance(data, tuple) else [data]
    shapes = [one.shape for one in _leaves(given[0] if whole else given[-1:]) if np.shape(one)]
    if not shapes:
        raise CompileError("None of the arguments has a batch.", fix="Pass it as the last one.")
    before = shapes[0][0]

    def has_batch(value: Any) -> bool:
        return bool(np.shape(value)[:1] == (before,))

    def with_batch(size: int, sharding: Any = None) -> list[Any]:
        def resized(value: Any) -> Any:
            if not has_batch(value):
                return value
            own = getattr(value, "sharding", None)
            named = own if isinstance(own, jax.sharding.NamedSharding) else None
            shape = (size, *value.shape[1:])
            return jax.ShapeDtypeStruct(shape, value.dtype, sharding=sharding or named)

        return [
            jax.tree_util.tree_map(resized, one)
            if whole or all(map(has_batch, _leaves(one)))
            else one
            for one in given
        ]

    return before, with_batch


class JaxFunction:
    """A function of JAX, or a model, that is exported for TPU types.

    A model is exported for each number of cores; the arguments of a function have theirs. A
    function whose kernels ask for the chip is also exported for each family of TPU types.

    Args:
        export: Traces it, and returns the request for libtpu and the number of devices.
        settings: Whose progress tells of tracing.
        examples: A model's global batch; None for a function.
        by_cores: Whether it differs by the number of cores, as a model does.
    """

    def __init__(
        self,
        export: Callable[[Target], tuple[Prepared, int]],
        settings: Settings,
        examples: int | None = None,
        *,
        by_cores: bool = False,
    ) -> None:
        self._export, self._settings, self._examples = export, settings, examples
        self._by_cores = by_cores
        self._exported: dict[tuple[int, str], tuple[Prepared, int]] = {}

    def _exported_for(self, wanted: Target) -> tuple[Prepared, int]:
        """The request for libtpu and the number of devices."""
        cores = wanted.replicas if self._by_cores else 0
        any_chip, this_chip = (cores, ""), (cores, wanted.tpu.family)
        for key in (any_chip, this_chip):
            if key in self._exported:
                return self._exported[key]
        self._settings.progress(TRACING)
        with LoweredFor(wanted) as chip:
            exported = self._export(wanted)
        self._exported[this_chip if chip.was_asked else any_chip] = exported
        return exported

    def on(self, wanted: Target, settings: Settings) -> TpuProgram:
        """Compiles it for one TPU type: a function for the devices of its arguments' mesh.

        Raises:
            CompileError: The mesh is not of as many devices as the type has cores, or the batch
                cannot be cut over them.
            Exception: What the function raises when it is traced.
        """
        prepared, devices = self._exported_for(wanted)
        cores = wanted.tpu.num_devices
        if devices not in {1, cores}:
            made = "without a keras.distribution, which the model is made in"
            if self._examples is None:
                made = f"with another mesh: jax.sharding.AbstractMesh(({cores},), ('data',))"
            raise CompileError(
                f"The mesh has {devices} devices, and a {wanted.tpu.name} has {cores} cores.",
                fix=f"Choose a type with as many, or compile it {made}.",
            )
        by_data = self._examples is not None and devices == wanted.replicas
        replicas = devices if by_data else 1
        wanted = dataclasses.replace(wanted, replicas=replicas, partitions=devices // replicas)
        return program_for(prepared, wanted, settings, self._examples)


def _export(
    settings: Settings,
    layers: Collection[str],
    jitted: Any,
    args: Sequence[Any],
    named: Mapping[str, Any],
    variables: Sequence[str] = (),
) -> tuple[Prepared, int]:
    """The request for libtpu and the number of devices; `variables` names the first arguments."""
    unplaced = _Origins((), settings.choose, layers)
    try:
        traced = jitted.trace(*args, **named)
    except Exception as error:
        if asks_in_vain(error):
            return _without_a_chip(unplaced), 1
        raise
    settings.progress(LOWERING)
    export = importlib.import_module("jax.export")
    try:
        exported = export.export(jitted, platforms=["tpu"])(*args, **named)
    except Exception as error:  # JAX has many kinds
        return _not_exported(traced, error, unplaced, settings), 1
    devices = exported.nr_devices
    answer = libtpu.read_exported(exported.mlir_module_serialized, settings.deadline)
    origins = _Origins(answer.get("places", ()), settings.choose, layers)
    if "error" in answer:
        version = sys.modules["jax"].__version__
        reason = f"what JAX {version} exports cannot be read here ({_first(answer['error'])})."
        return Prepared(origins, unknown=reason), devices
    if devices == 1 < answer["mesh"]:
        raise CompileError(
            f"The function has a mesh of {answer['mesh']} devices, and its arguments have no "
            "shardings.",
            fix="Give them: jax.ShapeDtypeStruct(shape, dtype, sharding=jax.sharding."
            "NamedSharding(mesh, jax.sharding.PartitionSpec(...))).",
        )
    kept = [place for place in exported.module_kept_var_idx if place < len(variables)]
    known = [(variables[place], True) for place in kept]
    parameters = [*known, *answer["arguments"][len(known) :]]
    passed = [exported.in_avals[place] for place in exported.module_kept_var_idx]
    size = max(_bytes(passed), _bytes(exported.out_avals))
    prepared = Prepared(
        origins,
        module=answer["module"],
        jax=True,
        parameters=parameters,
        held_bytes=size,
        fingerprint=Fingerprint(answer["digest"], answer["names"]),
    )
    return prepared, devices


def _bytes(arrays: Iterable[Any]) -> int:
    """Return the bytes of arrays; types of less than a byte do not count."""
    counted = (one for one in arrays if not str(one.dtype).endswith(("int2", "int4", "e2m1fn")))
    return sum(math.prod(one.shape) * one.dtype.itemsize for one in counted)


def _not_exported(traced: Any, error: Exception, origins: _Origins, settings: Settings) -> Prepared:
    """Explain why a traced function cannot be exported: a TPU or `jax.export` refuses it."""
    if asks_in_vain(error):
        return _without_a_chip(origins)
    if found := _CALLBACK.search(str(traced.jaxpr)):
        reason = f"it calls the host ({found[0]}), which JAX does not export. Compile without."
        return Prepared(origins, unknown=reason)
    try:
        traced.lower(lowering_platforms=("tpu",))
    except Exception as refused:
        uneven = type(refused).__name__ == "IndivisibleError"
        known = explain(refused)
        problem = Problem(
            "compile",
            f"JAX cannot lower it for a TPU: {_first(str(refused))}.",
            "Take a size that the mesh divides, or another sharding."
            if uneven
            else known.fix
            if known
            else "Write it with other operations.",
            message=str(refused),
        )
        return Prepared(origins, (problem.at(lines_of(refused)).shown(settings.choose),))
    return Prepared(origins, unknown=f"JAX cannot export it: {_first(str(error))}.")


def _without_a_chip(origins: _Origins) -> Prepared:
    """Say that a kernel asks for the chip, which this release of JAX does not let us describe."""
    version = sys.modules["jax"].__version__
    reason = (
        "a Pallas kernel asks which TPU it is compiled for, and this JAX ("
        f"{version}) answers with this machine's processor. Upgrade JAX."
    )
    return Prepared(origins, unknown=reason)


def _at_the_jit(fn: Any, args: Sequence[Any], then: Callable[..., Any]) -> Any:
    """Return what `then` makes of the `jax.jit` that a call reaches, and of that one's arguments.

    Methods and partials give it what they hold. Libraries wrap it to turn their own objects into
    arrays (`flax.nnx.jit`, `equinox.filter_jit`): their `lower` is called, and `then` takes the
    place of the `jax.jit` in it. A function without one gets one.

    Raises:
        CompileError: It is made for the devices of this machine, as `jax.pmap` does it.
    """
    jax: Any = sys.modules["jax"]
    kind = type(jax.jit(_at_the_jit))
    called: Any = fn
    given = list(args)
    named: dict[str, Any] = {}
    while True:
        if isinstance(called, types.MethodType):  # also of a jax.jit in a class
            called, given = called.__func__, [called.__self__, *given]
        elif hasattr(called, "func") and hasattr(called, "keywords"):  # functools' or Equinox's
            named = {**called.keywords, **named}
            called, given = called.func, [*called.args, *given]
        else:
            break
    if isinstance(called, kind):
        return then(called, given, named)
    if not hasattr(called, "lower"):
        held, tree = jax.tree_util.tree_flatten(fn)  # of a module of Equinox or Flax, its arrays
        kinds = (jax.Array, jax.ShapeDtypeStruct, np.ndarray)
        arrays = {place: leaf for place, leaf in enumerate(held) if isinstance(leaf, kinds)}
        if not arrays:
            # A second jit of the same ufunc ends the process (jax 0.10.2).
            plain = (lambda *args: fn(*args)) if isinstance(fn, np.ufunc) else fn
            return then(jax.jit(plain), args, {})

        def call(model: Any, *args: Any) -> Any:
            leaves = [model.get(place, leaf) for place, leaf in enumerate(held)]
            return jax.tree_util.tree_unflatten(tree, leaves)(*args)

        return then(jax.jit(call), [arrays, *args], {})
    by_jax = type(called).__module__.partition(".")[0] in {"builtins", "jaxlib"}
    attributes = {} if by_jax else getattr(called, "__dict__", {})
    held = {name: value for name, value in attributes.items() if isinstance(value, kind)}
    for name, jitted in held.items():
        reached = _Reached(jitted, then)
        if not hasattr(called, "trace"):  # Equinox's: a shape is no array to it
            given, named = reached.arrays(given), reached.arrays(named)
        object.__setattr__(called, name, reached)  # its instances are frozen
        try:
            called.lower(*given, **named)
        except _ReachedError:
            return reached.result
        finally:
            object.__setattr__(called, name, jitted)
    raise CompileError(
        "The call leads to no jax.jit. jax.pmap, for one, maps over this machine's devices.",
        fix="Pass a function, or a jax.jit of one: jax.shard_map maps it over a "
        "jax.sharding.AbstractMesh of TPU cores.",
    )


class _ReachedError(Exception):
    """Ends a library's `lower` where its `jax.jit` is reached."""


class _Reached:
    """Stands for a `jax.jit` while a library lowers it; calls of other threads go through.

    Args:
        jitted: The `jax.jit`.
        then: What is made of it and of its arguments.
    """

    def __init__(self, jitted: Any, then: Callable[..., Any]) -> None:
        self._jitted, self._then = jitted, then
        self._arrays: list[tuple[np.ndarray, Any]] = []
        self.result: Any = None

    def arrays(self, nest: Any) -> Any:
        """Arguments with arrays, which take no memory, in the place of shapes."""

        def array(value: Any) -> Any:
            is_shape = isinstance(value, sys.modules["jax"].ShapeDtypeStruct)
            if not is_shape or not isinstance(value.dtype, np.dtype):
                return value
            self._arrays.append((np.broadcast_to(np.zeros((), value.dtype), value.shape), value))
            return self._arrays[-1][0]

        return sys.modules["jax"].tree_util.tree_map(array, nest)

    def lower(self, *args: Any, **named: Any) -> Any:
        shapes = {id(array): shape for array, shape in self._arrays}
        args, named = sys.modules["jax"].tree_util.tree_map(
            lambda leaf: shapes.get(id(leaf), leaf), (args, named)
        )
        self.result = self._then(self._jitted, args, named)
        raise _ReachedError

    trace = lower

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._jitted(*args, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jitted, name)


class _Origins:
    """The places in the user's code that the operations of an exported program come from.

    Args:
        places: Files and lines by the number that an operation's name ends with.
        choose: Which of the lines is shown.
        layers: The names of the layers; empty for the user's scopes.
    """

    def __init__(
        self, places: Sequence[Sequence[tuple[str, int]]], choose: Choose, layers: Collection[str]
    ) -> None:
        self._places, self._choose, self._layers = places, choose, layers
        self.line = functools.cache(self._line)
        self.layer = functools.cache(self._layer)

    def places(self, node: str) -> tuple[SourceLine, ...]:
        """The lines of the user's code that led to an operation, innermost first."""
        frames = [
            SourceLine(*place)
            for number in reversed(MARK.findall(node))
            for place in itertools.takewhile(
                lambda place: not is_of_this_package(place[0]), self._places[int(number)]
            )
        ]
        return tuple(dict.fromkeys(one for one in frames if not is_library(one.file)))

    def _line(self, node: str) -> SourceLine | None:
        chosen = self._choose(self.places(node)) if MARK.search(node) else None
        return SourceLine(*chosen) if chosen else None

    def _layer(self, node: str) -> str:
        """The innermost layer in an operation's name; where none are known, the user's scopes."""
        scopes = []
        for part in unmarked(node).partition(";")[0].split("/")[:-1]:
            while found := _TRANSFORM.fullmatch(part):
                part = "" if found[1] in _CALLS else found[2]
            if part and not _CONTROL.fullmatch(part):
                scopes.append(part)
        if self._layers:
            return next((scope for scope in reversed(scopes) if scope in self._layers), "")
        return "/".join(scopes) if MARK.search(node) else ""

    def operation(self, node: str) -> str:
        """JAX's primitive; empty for what is none of its operations."""
        return unmarked(node).partition(";")[0].rpartition("/")[2] if MARK.search(node) else ""


def _model_step(
    fn: Any, args: Sequence[Any], cores: int
) -> tuple[Any, list[Any], dict[str, Any], list[str]]:
    """A model's step as Keras compiles it, its arguments, and the names of its variables.

    Variables are on each core, and the batch is cut over them, unless `keras.distribution` says
    otherwise.
    """
    jax: Any = sys.modules["jax"]
    model, method = (fn, "fit") if is_model(fn) else (fn.__self__, fn.__name__)
    method = _OF_A_BATCH.get(method, method)
    if method not in _STEPS:
        raise CompileError(
            f"A model's {method} has no step.",
            fix="Pass the model, or its fit, evaluate or predict.",
        )
    if method != "predict" and getattr(model, "optimizer", None) is None:
        raise CompileError(
            f"The model {model.name} is not compiled.", fix="Call model.compile(...) first."
        )
    data = _batch(args)
    if method != "predict":
        build_for(model, data)
    else:
        build_for_inputs(model, data[0] if isinstance(data, tuple) else data)
    states = _STATES[method]
    values = jax_state(model, states)
    whole, part = _shardings(jax, values, cores)

    def kept(value: Any) -> Any:
        own = value.sharding
        sharding = own if len(own.device_set) > 1 else whole
        return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)

    def cut(spec: Any) -> Any:
        return jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=part(spec.shape))

    tree_map = jax.tree_util.tree_map
    state, own = tree_map(kept, values), getattr(model, _STEPS[method])
    options = {}
    if whole and method != "predict":
        options["out_shardings"] = (None, tree_map(lambda one: one.sharding, state))

    def step(state: Any, data: Any) -> Any:  # a new one: JAX keeps the traces of the model's own
        results = own(state, data)
        if method == "predict":  # as Keras has it: what is donated comes back
            results = results[0], (state[0], results[1])
        return results

    jitted = jax.jit(step, donate_argnums=0, **options)
    names = [
        getattr(one, "path", one.name)
        for name in states
        for one in (
            model.optimizer.variables if name == "optimizer_variables" else getattr(model, name)
        )
    ]
    return jitted, [state, tree_map(cut, data)], {}, names


def _shardings(jax: Any, values: Any, cores: int) -> tuple[Any, Callable[[Sequence[int]], Any]]:
    """The sharding of what is on all cores, and of a tensor of the batch by its shape."""
    named, spec = jax.sharding.NamedSharding, jax.sharding.PartitionSpec
    distribution = sys.modules["keras"].distribution.distribution()
    shardings = [one.sharding for one in _leaves(values)]
    meshes = [one.mesh for one in shardings if len(one.device_set) > 1]
    if distribution is not None and meshes:  # else it is over this machine's only device
        mesh = meshes[0]

        def axes(shape: Sequence[int]) -> Sequence[Any]:
            return tuple(distribution.get_data_layout(shape).axes)

    elif cores == 1:
        return None, lambda _: None
    else:
        mesh = jax.sharding.AbstractMesh((cores,), ("batch",))

        def axes(shape: Sequence[int]) -> Sequence[Any]:
            if shape and shape[0] % cores:
                raise CompileError(
                    f"A global batch of {shape[0]} cannot be cut over {cores} cores.",
                    fix=f"Take a multiple of {cores}, or compile for a type with one core.",
                )
            return ("batch",) if shape else ()

    return named(mesh, spec()), lambda shape: named(mesh, spec(*axes(shape)))


def _batch(args: Sequence[Any], *, may_be_open: bool = False) -> Any:
    """The shapes of a global batch, as a step takes it; the first sizes may be open (None)."""
    if not args:
        raise CompileError(
            "A model's step takes a batch.",
            fix="Pass a dataset, or the batch: tpunb.compile(model, x, y).",
        )
    jax: Any = sys.modules["jax"]
    whole = getattr(args[0], "element_spec", args[0] if len(args) == 1 else tuple(args))
    if isinstance(whole, list):  # the inputs of several, and neither inputs with targets
        whole = (whole,)

    def spec(value: Any) -> Any:
        if not hasattr(value, "dtype"):
            value = np.asarray(value)
        if any(size is None for size in value.shape) and not may_be_open:
            raise CompileError("The batch has no size.", fix="Batch with drop_remainder=True.")
        dtype = getattr(value.dtype, "as_numpy_dtype", value.dtype)  # TensorFlow's own
        return jax.ShapeDtypeStruct(tuple(value.shape), jax.dtypes.canonicalize_dtype(dtype))

    return jax.tree_util.tree_map(spec, whole)


def lines_of(error: BaseException) -> list[SourceLine]:
    """The user's lines in an error's traceback, innermost first."""
    frames = traceback.walk_tb(error.__traceback__)
    found = [SourceLine(frame.f_code.co_filename, line) for frame, line in frames]
    inside = itertools.takewhile(lambda one: not is_of_this_package(one.file), reversed(found))
    return [one for one in inside if not is_library(one.file)]


def _first(message: str) -> str:
    """The first line of an error, without its full stop."""
    return next(iter(message.strip().splitlines()), "it gives no reason").rstrip(".:")
