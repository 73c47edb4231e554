"""Functions and Keras models of JAX: the user's JAX exports them, and tpunb's compiles the export.

The two may be of different releases, because the format of `jax.export` is stable. An export is a
program for TPUs that the machine need not have, over as many devices as the shardings of the
arguments have. JAX is used from the user's import, and never imported here.

Modules of Flax and Equinox are not functions of arrays, but their own `jit`s turn them into such
functions. A TPU compiles the `jax.jit` inside.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import importlib
import math
import re
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tpunb._util.units import byte_count
from tpunb.compiler.ask import libtpu
from tpunb.compiler.ask.compile_settings import Settings
from tpunb.compiler.ask.exported_modules import Origins, devices_of_meshes, prepared_from
from tpunb.compiler.ask.libtpu import Prepared
from tpunb.compiler.ask.topologies import Target
from tpunb.compiler.ask.verdict import LOWERING, TRACING, program_for
from tpunb.compiler.frameworks import arrays_in, is_keras_model
from tpunb.compiler.program import CompileError, TpuProgram
from tpunb.errors.code_problems import Problem, lines_of
from tpunb.errors.explain import explain
from tpunb.jax.checks.call import Call
from tpunb.jax.checks.layouts import unmatched_layouts
from tpunb.jax.checks.table import findings, sentence
from tpunb.jax.compiler.chip import asks_in_vain, lowered_for
from tpunb.machine.keras_internals import (
    OF_ONE_BATCH,
    STEPS,
    build_for,
    build_for_inputs,
    is_model,
    jax_state,
    layer_names,
    model_of,
    scans_over_batches,
)

_CALLBACK = re.compile(r"\b(?:pure|io|debug)_callback\b|\bdebug_print\b")

_VARIABLES = ("trainable_variables", "non_trainable_variables")
_STATES = {
    "fit": (*_VARIABLES, "optimizer_variables", "metrics_variables"),
    "evaluate": (*_VARIABLES, "metrics_variables"),
    "predict": _VARIABLES,
}


def can_trace(fn: Any, args: Sequence[Any]) -> bool:
    """Return whether JAX can trace a call. Its TensorFlow operations go into a spare graph."""
    with sys.modules["tensorflow"].Graph().as_default():
        try:
            traced_call(fn, args)
        except Exception:  # any error of the user's function
            return False
    return True


def traced_call(fn: Any, args: Sequence[Any]) -> Any:
    """Return a traced call of a JAX function."""
    return at_the_jit(fn, args, lambda jitted, args, named: jitted.trace(*args, **named))


def first_place(traced: Any, args: Sequence[Any]) -> int:
    """Return the place of the first own array of a call among those of the traced call.

    Arguments that `at_the_jit` adds are before the call's own, and named ones behind them.
    """
    return len(arrays_in(traced.args_info[0])) - len(arrays_in(list(args)))


def function_for(fn: Any, args: Sequence[Any], settings: Settings) -> JaxFunction:
    """Return a JAX function for any TPU type. See `tpunb.compile` for the arguments and errors.

    It is traced and exported when it is compiled for the first type.
    """
    layers = layer_names(fn)
    if is_keras_model(fn):
        sizes = [array.shape[0] for array in arrays_in(batch_of(args)) if array.shape]

        def model_for(wanted: Target) -> tuple[Prepared, int]:
            step = model_step(fn, args, wanted.replicas)
            prepared, devices = _export(settings, layers, *step)
            layouts = unmatched_layouts(Call("", None, model=model_of(fn)))
            own = (*_notes_on_many_steps(fn, args, wanted.replicas), *map(sentence, layouts))
            notes = (*prepared.notes, *own)
            return dataclasses.replace(prepared, notes=notes), devices

        return JaxFunction(model_for, settings, sizes[0] if sizes else None, by_cores=True)
    if unknown := next((shape for shape in map(np.shape, arrays_in(args)) if None in shape), None):
        raise CompileError(
            f"An argument's shape {unknown} has an open size.",
            fix="Give it a number. tpunb.largest_batch finds the largest.",
        )
    export = functools.partial(_export, settings, layers)
    return JaxFunction(lambda _: at_the_jit(fn, args, export), settings)


def mesh_of(cores: int, axis: str) -> Any:
    """Return a mesh of absent cores. XLA chooses the shardings of what a function computes.

    Since JAX 0.12, an axis is explicit unless its type is given. A function then gives shardings
    itself, or JAX raises a `ShardingTypeError`.
    """
    sharding: Any = sys.modules["jax"].sharding
    return sharding.AbstractMesh((cores,), (axis,), axis_types=(sharding.AxisType.Auto,))


def code_of_mesh(cores: int) -> str:
    """Return the code of a mesh of absent cores, for a user."""
    return (
        f'jax.sharding.AbstractMesh(({cores},), ("data",), '
        "axis_types=(jax.sharding.AxisType.Auto,))"
    )


def kinds_of(nest: Any) -> collections.Counter[tuple[Any, str]]:
    """Return the shapes and types of the arrays in a nest."""
    return collections.Counter((np.shape(one), str(one.dtype)) for one in arrays_in(nest))


def devices_of(fn: Any, args: Sequence[Any], wanted: Target, settings: Settings) -> int:
    """Return the number of devices in the meshes of a function and its arguments."""
    export = functools.partial(_export, settings, ())
    with lowered_for(wanted):
        _, devices = at_the_jit(fn, args, export)
    return int(devices)


class JaxFunction:
    """A JAX function or model that is exported for TPU types.

    A model is exported for each number of cores. A function has the number of its arguments, but
    if its kernels ask for the chip, it is exported for each family of TPU types.

    Args:
        export: Traces it, and returns the request for libtpu and the number of devices.
        settings: The settings, whose progress reports tracing.
        examples: A model's global batch; None for a function.
        by_cores: Whether the export depends on the number of cores, as for a model.
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
        """Return the request for libtpu and the number of devices."""
        cores = wanted.replicas if self._by_cores else 0
        any_chip, this_chip = (cores, ""), (cores, wanted.tpu.family)
        for key in (any_chip, this_chip):
            if key in self._exported:
                return self._exported[key]
        self._settings.progress(TRACING)
        with lowered_for(wanted) as was_asked:
            exported = self._export(wanted)
        self._exported[this_chip if was_asked() else any_chip] = exported
        return exported

    def on(self, wanted: Target, settings: Settings) -> TpuProgram:
        """Compile for one TPU type. A function uses the devices of its arguments' mesh.

        Raises:
            CompileError: The mesh has another number of devices than the type has cores, or the
                batch cannot be divided over them.
            Exception: The error that the function raises when it is traced.
        """
        prepared, devices = self._exported_for(wanted)
        cores = wanted.tpu.num_devices
        if devices not in {1, cores}:
            way = "without the keras.distribution that the model was made with"
            if self._examples is None:
                way = f"with another mesh: {code_of_mesh(cores)}"
            raise CompileError(
                f"The mesh has {devices} devices, but a {wanted.tpu.name} has {cores} cores.",
                fix=f"Choose a type with {devices} cores, or compile it {way}.",
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
    """Return the request and the number of devices. `variables` names the first arguments."""
    unplaced = Origins((), settings.choose, layers)
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
    except Exception as error:  # JAX raises many kinds
        return _not_exported(traced, error, unplaced, settings), 1
    devices = exported.nr_devices
    answer = libtpu.read_exported(exported.mlir_module_serialized, settings.deadline)
    origins = Origins(answer.get("places", ()), settings.choose, layers)
    if "error" in answer:
        reason = libtpu.why_unreadable(answer["error"], sys.modules["jax"].__version__)
        return Prepared(origins, unknown=reason), devices
    devices = devices_of_meshes(devices, answer["meshes"])
    kept = [place for place in exported.module_kept_var_idx if place < len(variables)]
    known = [(variables[place], True) for place in kept]
    parameters = [*known, *answer["arguments"][len(known) :]]
    passed = [exported.in_avals[place] for place in exported.module_kept_var_idx]
    size = max(bytes_of(passed), bytes_of(exported.out_avals))
    prepared = prepared_from(
        answer, origins, parameters=parameters, held_bytes=size, options=_options_of(traced)
    )
    given = [getattr(leaf, "sharding", None) for leaf in arrays_in((args, named))]
    results = getattr(traced, "_params", {}).get("out_shardings", ())
    call = Call(traced.fun_name, traced.jaxpr, devices, given, results)
    found = findings(call, settings.choose)
    return dataclasses.replace(prepared, notes=tuple(map(sentence, found))), devices


def _options_of(traced: Any) -> tuple[tuple[str, str], ...]:
    """Return the options of `jax.jit(compiler_options=...)`, which no public name of JAX gives."""
    options = getattr(traced, "_params", {}).get("compiler_options_kvs", ())
    return tuple((str(name), str(value)) for name, value in options)


def bytes_of(arrays: Iterable[Any]) -> int:
    """Return the bytes of arrays. Types of less than a byte do not count."""
    small = ("int2", "int4", "e2m1fn")
    counted = (array for array in arrays if not str(array.dtype).endswith(small))
    return sum(math.prod(array.shape) * array.dtype.itemsize for array in counted)


def _not_exported(traced: Any, error: Exception, origins: Origins, settings: Settings) -> Prepared:
    """Explain why a traced function cannot be exported: a TPU or `jax.export` refuses it."""
    if asks_in_vain(error):
        return _without_a_chip(origins)
    if callback := _CALLBACK.search(str(traced.jaxpr)):
        reason = f"it calls the host ({callback[0]}), which JAX cannot export. Remove the call."
        return Prepared(origins, unknown=reason)
    try:
        traced.lower(lowering_platforms=("tpu",))
    except Exception as refused:
        known = explain(refused)
        problem = Problem(
            "compile",
            f"JAX cannot lower it for a TPU: {libtpu.reason_in(str(refused))}.",
            known.fix if known else "Use other operations.",
            message=str(refused),
        )
        return Prepared(origins, (problem.at(lines_of(refused)).shown(settings.choose),))
    return Prepared(origins, unknown=f"JAX cannot export it: {libtpu.reason_in(str(error))}.")


def _without_a_chip(origins: Origins) -> Prepared:
    """Report that a kernel asks for the chip, which this release of JAX cannot describe."""
    version = sys.modules["jax"].__version__
    reason = (
        "a Pallas kernel asks which TPU it is compiled for, but this JAX ("
        f"{version}) answers with this machine's processor. Upgrade JAX."
    )
    return Prepared(origins, unknown=reason)


def at_the_jit(fn: Any, args: Sequence[Any], then: Callable[..., Any]) -> Any:
    """Return the result of `then` for the `jax.jit` that a call reaches, and for its arguments.

    Methods and partials add their own arguments. Libraries wrap a `jax.jit` to turn their own
    objects into arrays (`flax.nnx.jit`, `equinox.filter_jit`): their `lower` is called, and `then`
    replaces the `jax.jit` inside. A function without a `jax.jit` gets one.

    Raises:
        CompileError: The call is made for this machine's devices, like a `jax.pmap`.
    """
    jax: Any = sys.modules["jax"]
    kind = type(jax.jit(at_the_jit))
    called: Any = fn
    arguments = list(args)
    named: dict[str, Any] = {}
    while True:
        if isinstance(called, types.MethodType):  # also for a jax.jit in a class
            called, arguments = called.__func__, [called.__self__, *arguments]
        elif hasattr(called, "func") and hasattr(called, "keywords"):  # functools or Equinox
            named = {**called.keywords, **named}
            called, arguments = called.func, [*called.args, *arguments]
        else:
            break
    if isinstance(called, kind):
        return then(called, arguments, named)
    if not hasattr(called, "lower"):
        held, tree = jax.tree_util.tree_flatten(fn)  # the arrays of an Equinox or Flax module
        kinds = (jax.Array, jax.ShapeDtypeStruct, np.ndarray)
        arrays = {place: leaf for place, leaf in enumerate(held) if isinstance(leaf, kinds)}
        if not arrays:
            # With jax 0.10.2, a second jit of the same ufunc ends the process.
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
        reached = _ReachedJit(jitted, then)
        if not hasattr(called, "trace"):  # Equinox does not take a shape for an array
            arguments, named = reached.arrays(arguments), reached.arrays(named)
        object.__setattr__(called, name, reached)  # the object is frozen
        try:
            called.lower(*arguments, **named)
        except _ReachedError:
            return reached.result
        finally:
            object.__setattr__(called, name, jitted)
    raise CompileError(
        "The call reaches no jax.jit. For example, jax.pmap maps over this machine's devices.",
        fix="Pass a function, or a jax.jit of a function. jax.shard_map maps a function over a "
        "jax.sharding.AbstractMesh of TPU cores.",
    )


class _ReachedError(Exception):
    """The end of a library's `lower`, when its `jax.jit` is reached."""


class _ReachedJit:
    """A replacement of a `jax.jit` while a library lowers it. Other threads call the `jax.jit`.

    Args:
        jitted: The `jax.jit`.
        then: Called with the `jax.jit` and its arguments.
    """

    def __init__(self, jitted: Any, then: Callable[..., Any]) -> None:
        self._jitted, self._then = jitted, then
        self._arrays: list[tuple[np.ndarray, Any]] = []
        self.result: Any = None

    def arrays(self, nest: Any) -> Any:
        """Return the arguments with arrays, which take no memory, instead of shapes."""

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


def model_step(
    fn: Any, args: Sequence[Any], cores: int, *, in_place: bool = True
) -> tuple[Any, list[Any], dict[str, Any], list[str]]:
    """Return a model's step as Keras compiles it, its arguments, and the names of its variables.

    Each core has all variables and a part of the batch, unless `keras.distribution` says
    otherwise.

    Args:
        fn: The model, or one of its methods.
        args: Its batch.
        cores: The cores of the TPU.
        in_place: Whether the step leaves its variables where they are.
    """
    jax: Any = sys.modules["jax"]
    model, method = (fn, "fit") if is_model(fn) else (fn.__self__, fn.__name__)
    method = OF_ONE_BATCH.get(method, method)
    if method not in STEPS:
        raise CompileError(
            f"A model's {method} has no step.",
            fix="Pass the model, or its fit, evaluate or predict.",
        )
    if method != "predict" and getattr(model, "optimizer", None) is None:
        raise CompileError(
            f"The model {model.name} is not compiled.", fix="Call model.compile(...) first."
        )
    data = batch_of(args)
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
    state, own = tree_map(kept, values), getattr(model, STEPS[method])
    options = {}
    if whole and in_place and method != "predict":
        options["out_shardings"] = (None, tree_map(lambda array: array.sharding, state))

    def step(state: Any, data: Any) -> Any:  # a new function: JAX keeps the model's own traces
        results = own(state, data)
        if method == "predict":  # as in Keras, donated arrays are returned
            results = results[0], (state[0], results[1])
        return results

    jitted = jax.jit(step, donate_argnums=0, **options)
    names = [
        getattr(variable, "path", variable.name)
        for name in states
        for variable in (
            model.optimizer.variables if name == "optimizer_variables" else getattr(model, name)
        )
    ]
    return jitted, [state, tree_map(cut, data)], {}, names


def _notes_on_many_steps(fn: Any, args: Sequence[Any], cores: int) -> Iterator[str]:
    """Yield the sentence that Keras keeps several batches in memory, if it does.

    Keras up to 3.15 calls the step several times. Later releases scan over a batch of batches:
    keras-team/keras#23527.
    """
    steps = getattr(model_of(fn), "steps_per_execution", 1) or 1
    if steps < 2 or not scans_over_batches():
        return
    size = bytes_of(arrays_in(batch_of(args)))
    yield (
        f"steps_per_execution={steps}: this Keras keeps {steps} batches in the TPU's memory. The "
        f"figures are those of one step: add {byte_count((steps - 1) * size // cores)} a core."
    )


def _shardings(jax: Any, values: Any, cores: int) -> tuple[Any, Callable[[Sequence[int]], Any]]:
    """Return the sharding of arrays on all cores, and of a batch's tensor by its shape."""
    named, spec = jax.sharding.NamedSharding, jax.sharding.PartitionSpec
    distribution = sys.modules["keras"].distribution.distribution()
    shardings = [array.sharding for array in arrays_in(values)]
    meshes = [sharding.mesh for sharding in shardings if len(sharding.device_set) > 1]
    if distribution is not None and meshes:  # without meshes, it is over one device of this machine
        mesh = meshes[0]

        def axes(shape: Sequence[int]) -> Sequence[Any]:
            return tuple(distribution.get_data_layout(shape).axes)

    elif cores == 1:
        return None, lambda _: None
    else:
        mesh = mesh_of(cores, "batch")

        def axes(shape: Sequence[int]) -> Sequence[Any]:
            if shape and shape[0] % cores:
                raise CompileError(
                    f"A global batch of {shape[0]} cannot be divided over {cores} cores.",
                    fix=f"Use a multiple of {cores}, or compile for a type with one core.",
                )
            return ("batch",) if shape else ()

    return named(mesh, spec()), lambda shape: named(mesh, spec(*axes(shape)))


def batch_of(args: Sequence[Any], *, may_be_open: bool = False) -> Any:
    """Return the shapes of a global batch for a step. The first sizes may be open (None)."""
    if not args:
        raise CompileError(
            "A model's step takes a batch.",
            fix="Pass a dataset, or the batch: tpunb.compile(model, x, y).",
        )
    jax: Any = sys.modules["jax"]
    whole = getattr(args[0], "element_spec", args[0] if len(args) == 1 else tuple(args))
    if isinstance(whole, list):  # several inputs, not inputs with targets
        whole = (whole,)

    def spec(value: Any) -> Any:
        if not hasattr(value, "dtype"):
            value = np.asarray(value)
        if any(size is None for size in value.shape) and not may_be_open:
            raise CompileError("The batch has an open size.", fix="Batch with drop_remainder=True.")
        dtype = getattr(value.dtype, "as_numpy_dtype", value.dtype)  # a TensorFlow dtype
        return jax.ShapeDtypeStruct(tuple(value.shape), jax.dtypes.canonicalize_dtype(dtype))

    return jax.tree_util.tree_map(spec, whole)
