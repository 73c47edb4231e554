"""Compiles a function for TPUs that need not be there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any, overload

from tpunb._util.deadline import Deadline
from tpunb._util.freed_memory import giving_back
from tpunb.compiler import libtpu
from tpunb.compiler.prepare import Prepared, prepare
from tpunb.compiler.program import CompileError, TpuProgram
from tpunb.compiler.progress import LOWERING, TRACING, told
from tpunb.compiler.several import merged
from tpunb.compiler.table import TpuPrograms
from tpunb.compiler.topologies import Target, target
from tpunb.compiler.verdict import Settings, program_for
from tpunb.virtual.check import (
    chooser,
    current,
    refuse_other_strategies,
    trace_for,
)
from tpunb.virtual.graph.traced_function import TracedFunction
from tpunb.virtual.keras_models import layer_names, model_step
from tpunb.virtual.strict import xla

__all__ = [
    "Function",
    "compile",
    "compile_traced",
    "cores_of",
    "deadline_for",
    "function_for",
    "targets",
]

_SECONDS = 300.0
"""How long compiling for one type may take where nothing else is said."""


@dataclasses.dataclass(frozen=True)
class Function:
    """A function whose replica functions are traced and lowered.

    Attributes:
        prepared: One for each call of `strategy.run` in it.
        replicas: On how many it was traced.
        partitions: Cores of a replica.
        examples: The global batch there.
    """

    prepared: tuple[Prepared, ...]
    replicas: int
    partitions: int = 1
    examples: int | None = None

    def on(self, wanted: Target, settings: Settings) -> TpuProgram:
        """Compiles it for one TPU type, with the same batch on each replica."""
        examples = self.examples
        if examples is not None and wanted.replicas != self.replicas:
            examples = -(-examples // self.replicas) * wanted.replicas
        programs = [program_for(one, wanted, settings, examples) for one in self.prepared]
        return merged(programs)


@overload
def compile(
    fn: Any,
    *args: Any,
    tpu: str | None = None,
    strategy: Any = None,
    speed: bool = False,
    timeout: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> TpuProgram: ...
@overload
def compile(
    fn: Any,
    *args: Any,
    tpu: Sequence[str],
    strategy: Any = None,
    speed: bool = False,
    timeout: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> TpuPrograms: ...
@giving_back()
def compile(
    fn: Any,
    *args: Any,
    tpu: str | Sequence[str] | None = None,
    strategy: Any = None,
    speed: bool = False,
    timeout: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> TpuProgram | TpuPrograms:
    """Compiles a function with the TPU's own compiler; no TPU is needed, and nothing is run.

    The function is traced, as for its first call: Python code in it runs, and variables
    that it makes are made.

    Args:
        fn: A replica function, such as one would give to `strategy.run`; a function that
            calls `strategy.run` itself; a compiled Keras model, for its train step, or
            its method `evaluate` or `predict`.
        *args: Its arguments: tensors, arrays, `tf.TensorSpec`s and nests of these, of one
            replica's size for a replica function. A model takes its global batch: its
            parts, or a dataset.
        tpu: A TPU type such as `"v5e-8"`, or several; by default the strategy's. The batch
            of a replica is the same on each.
        strategy: A virtual TPU's strategy; by default the one whose scope is entered, or
            that of the open connection. A function that needs none can do without.
        speed: Whether to estimate the time, which takes the compiler ten times as long.
        timeout: Seconds that all of it may take; by default 300 for each type.
        progress: Is called with what is done next; by default a notebook's cell shows it.

    Returns:
        What became of it; for several types a table of that.

    Raises:
        CompilerUnavailableError: The compiler is not installed, or not for this machine.
        CompileError: The strategy is not a virtual TPU's, or it is not known which TPU type
            is meant.
        AcceleratorTypeError: There is no such type.
        Exception: What the function raises when it is traced.
    """
    libtpu.start()
    strategy = strategy or current()
    kinds = targets(tpu, strategy)
    with told(progress) as say:
        settings = Settings(chooser(fn), deadline_for(kinds, timeout), speed, progress=say)
        function = function_for(fn, args, strategy, settings)
        programs = _for_each(function, kinds, settings)
    return programs[0] if tpu is None or isinstance(tpu, str) else TpuPrograms(programs)


def compile_traced(
    traced: Sequence[TracedFunction],
    kinds: Sequence[Target],
    settings: Settings,
    *,
    layers: Collection[str] = (),
    examples: int | None = None,
    strategy: Any = None,
) -> list[TpuProgram]:
    """Compiles replica functions that were traced elsewhere, as those of a cell.

    Args:
        traced: What `examination.observing` was passed, in one trace.
        kinds: What to compile for; see `targets`.
        settings: How.
        layers: The names of Keras layers.
        examples: The global batch.
        strategy: Whose replicas they are.
    """
    libtpu.require()
    settings.progress(LOWERING)
    replicas, partitions = cores_of(strategy)
    prepared = tuple(prepare(one, settings.choose, settings.deadline, layers) for one in traced)
    return _for_each(Function(prepared, replicas, partitions, examples), kinds, settings)


def targets(tpu: str | Sequence[str] | None, strategy: Any = None) -> list[Target]:
    """What to compile for: types by name, or by default a strategy's.

    Raises:
        CompileError: It is not known which type is meant.
        AcceleratorTypeError: There is no such type.
    """
    own = _type_of(strategy)
    if tpu is None and own is None:
        raise CompileError(
            "It is not known what TPU type to compile for: a number of cores is none.",
            fix="Name one: tpu='v5e-8'; or connect to one.",
        )
    names = [own] if tpu is None else [tpu] if isinstance(tpu, str) else list(tpu)
    replicas, partitions = cores_of(strategy)
    return [target(name, replicas if name == own else None, partitions) for name in names if name]


def deadline_for(kinds: Sequence[Target], timeout: float | None) -> Deadline:
    """When compiling for some types has to be done, which begins now."""
    return Deadline(_SECONDS * len(kinds) if timeout is None else timeout)


def function_for(fn: Any, args: Sequence[Any], strategy: Any, settings: Settings) -> Function:
    """Traces and lowers a function; see `compile` for the arguments and errors."""
    settings.progress(TRACING)
    xla.start()
    layers = layer_names(fn)
    examples = None
    if step := model_step(fn, args, strategy, CompileError, "tpunb.compile"):
        data = step.data if isinstance(step.data, tuple) else (step.data,)
        fn, args, strategy, examples = step.replica_function, data, step.strategy, step.examples
    if strategy is not None:
        refuse_other_strategies(strategy)
    replicas, partitions = cores_of(strategy)
    traced = trace_for(fn, args, strategy, lambda one: one)
    settings.progress(LOWERING)
    prepared = tuple(prepare(one, settings.choose, settings.deadline, layers) for one in traced)
    examples = examples or _examples(traced, replicas)
    return Function(prepared, replicas, partitions, examples)


def _for_each(function: Function, kinds: Sequence[Target], settings: Settings) -> list[TpuProgram]:
    return [function.on(kind, settings) for kind in kinds]


def _type_of(strategy: Any) -> str | None:
    """The TPU type of a virtual TPU; None for a plain number of cores."""
    resolver = getattr(getattr(strategy, "extended", None), "_tpu_cluster_resolver", None)
    kind = getattr(resolver, "accelerator", None)
    return kind.name if kind is not None and kind.hbm_bytes else None


def cores_of(strategy: Any) -> tuple[int, int]:
    """The replicas of a strategy, and the cores of each."""
    devices = getattr(getattr(strategy, "extended", None), "_tpu_devices", None)
    return (1, 1) if devices is None else (int(devices.shape[0]), int(devices.shape[1]))


def _examples(traced: Sequence[TracedFunction], replicas: int) -> int | None:
    """The global batch: the first size of the first tensor that is passed in."""
    for one in traced:
        for tensor in one.graph.inputs[1 if hasattr(one.graph, "tracing") else 0 :]:
            numeric = tensor.dtype.is_floating or tensor.dtype.is_integer
            if numeric and tensor.shape.rank and tensor.shape[0]:
                return int(tensor.shape[0]) * replicas
    return None
