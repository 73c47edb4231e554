"""Compilation of a function for TPUs, which the machine need not have."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from tpunb import framework
from tpunb._util.freed_memory import giving_back
from tpunb.compiler.ask import libtpu, recorded_verdicts
from tpunb.compiler.ask.compile_settings import CompileOptions
from tpunb.compiler.ask.partial_answers import for_each_type
from tpunb.compiler.ask.topologies import Target, names_of, targets
from tpunb.compiler.ask.verdict import reporting
from tpunb.compiler.fit.batch_sizes import lowerer_for
from tpunb.compiler.fit.would_fit import with_what_fits
from tpunb.compiler.program import TpuProgram, TpuPrograms
from tpunb.machine.keras_internals import chooser, models_in


@overload
def compile(
    fn: Any,
    *args: Any,
    tpu: str | None = None,
    strategy: Any = None,
    speed: bool = False,
    timeout: float | None = None,
    progress: Callable[[str], None] | None = None,
    recorded: str | os.PathLike[str] | None = None,
    live_arrays: bool = True,
    **named: Any,
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
    recorded: str | os.PathLike[str] | None = None,
    live_arrays: bool = True,
    **named: Any,
) -> TpuPrograms: ...
def compile(
    fn: Any,
    *args: Any,
    tpu: str | Sequence[str] | None = None,
    strategy: Any = None,
    speed: bool = False,
    timeout: float | None = None,
    progress: Callable[[str], None] | None = None,
    recorded: str | os.PathLike[str] | None = None,
    live_arrays: bool = True,
    **named: Any,
) -> TpuProgram | TpuPrograms:
    """Compile a function with the TPU's own compiler. No TPU is needed, and nothing is run.

    The function is traced, as for its first call, so Python code in it runs and makes its
    variables. If it does not fit, alternatives are compiled too: smaller batches, more cores of
    the same family for a model, and `keras.remat` or `jax.checkpoint` around parts of it. The
    error's `fix` says which of them fit.

    Example:
        >>> import tensorflow as tf
        >>> def step(x):
        ...     return tf.matmul(x, x, transpose_b=True)
        >>> program = tpunb.compile(step, tf.TensorSpec([1024, 1024]), tpu="v5e-8")
        >>> program.ok, program.memory.peak < program.memory.available
        (True, True)

        Several types give a table: `tpunb.compile(step, batch, tpu=["v5e-8", "v6e-8"])`. In a
        test, `program.raise_if_unfit("90%")` keeps a tenth of the memory free.

    Args:
        fn: A replica function, as for `strategy.run`; a function that calls `strategy.run` itself;
            or a compiled Keras model, for its train step, or its method `evaluate` or `predict`.
            With JAX: a function, a `jax.jit` of a function, or a compiled Keras model with the
            JAX backend.
        *args: The function's arguments: tensors, arrays, `tf.TensorSpec`s and nests of these, of
            one replica's size for a replica function. A model takes its global batch: its
            parts, or a dataset. With JAX: arrays and `jax.ShapeDtypeStruct`s, whose shardings
            say on how many cores it runs (without shardings, on one). A model's batch is divided
            over all cores, unless `keras.distribution` says otherwise.
        tpu: A TPU type such as `"v5e-8"`, or several. By default, the strategy's type. The batch
            of a replica is the same on each.
        strategy: A virtual TPU's strategy. By default, the strategy whose scope is entered, or
            the open connection's. A function that needs no strategy works without one.
        speed: Whether to estimate the time, which takes the compiler ten times as long.
        timeout: The time limit in seconds for the whole call. By default, 300 for each type.
        progress: Called with each next step, and with each completed type while others are left.
            By default, a notebook's cell or a terminal shows it.
        recorded: A folder of recorded verdicts, by default the folder that the variable
            `TPUNB_RECORDED` names. It answers where the compiler is missing, and records the
            answers where the compiler is.
        live_arrays: Whether a call of JAX must fit beside the arrays that are alive on the devices
            of a virtual TPU of the same type, and that the call does not use.
        **named: The function's arguments by name. Use `functools.partial` for arguments that
            have a name of the above.

    Returns:
        The program, or a table of programs for several types.

    Raises:
        CompilerUnavailableError: The compiler is not installed, or does not exist for this
            machine. `NotRecordedError`: and the recorded verdicts do not have this program.
        CompileError: The strategy is not a virtual TPU's, no TPU type is given, or a JAX mesh has
            another number of devices than the type has cores.
        AcceleratorTypeError: The TPU type does not exist.
        Exception: The error that the function raises when it is traced.
        CompilationStopped: An interrupt ended the call when some types were done. Its `programs`
            has them.
    """
    options = CompileOptions(names_of(tpu), speed, timeout, recorded, progress, live_arrays)
    programs = compile_call(fn, args, named, options, strategy)
    return programs[0] if tpu is None or isinstance(tpu, str) else programs


@giving_back()
def compile_call(
    fn: Any,
    args: Sequence[Any],
    named: Mapping[str, Any],
    options: CompileOptions,
    strategy: Any = None,
) -> TpuPrograms:
    """Compile a call. Its named arguments may have the names of `compile`'s own arguments."""
    with recorded_verdicts.recorded_in(options.recorded), reporting(options.progress) as say:
        libtpu.start(speed=options.speed)
        how = lowerer_for(fn, args, strategy, named)
        fn = how.fn
        kinds = targets(options.tpus, how.strategy)
        settings = options.settings(chooser(fn), len(kinds), say)
        function = how.lower(how.args, settings)
        models = models_in(fn)
        jax_call = (fn, args) if how.by_jax and not models else None

        def completed(kind: Target, program: TpuProgram) -> TpuProgram:
            if not options.advice:
                return program
            if jax_call is not None and program.ok:
                return framework.jax().with_advice(
                    program, jax_call, kind, settings, live_arrays=options.live_arrays
                )
            batches = functools.partial(how.any_batch, kind, settings)
            return with_what_fits(program, kind, settings, batches, models, jax_call)

        def with_note(program: TpuProgram) -> TpuProgram:
            notes = (how.note, *program.notes) if how.note else program.notes
            return dataclasses.replace(program, notes=notes)

        return for_each_type(kinds, lambda kind: function.on(kind, settings), completed, with_note)


def with_fixes(
    program: TpuProgram,
    kind: Target,
    fn: Any,
    args: Sequence[Any],
    named: Mapping[str, Any],
    timeout: float,
) -> TpuProgram:
    """Add to a program of JAX that does not fit which changes to its call fit, as `compile` does.

    Args:
        program: The program.
        kind: The target that it was compiled for.
        fn: The function.
        args: The call's arguments.
        named: The call's arguments by name.
        timeout: The time limit in seconds.
    """
    with reporting(None) as say:
        how = lowerer_for(fn, args, None, named)
        settings = CompileOptions(timeout=timeout).settings(chooser(how.fn), 1, say)
        batches = functools.partial(how.any_batch, kind, settings)
        return with_what_fits(program, kind, settings, batches, jax_call=(how.fn, args))
