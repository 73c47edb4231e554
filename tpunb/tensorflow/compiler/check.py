"""`tpunb.check`: the rules of the virtual TPU, and the verdict of the TPU's own compiler."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from tpunb._util.deadline import Deadline
from tpunb._util.freed_memory import giving_back
from tpunb.compiler.ask import libtpu
from tpunb.compiler.ask.compile_settings import Settings
from tpunb.compiler.ask.topologies import targets
from tpunb.compiler.ask.verdict import program_for, reporting
from tpunb.compiler.frameworks import refuse_jax
from tpunb.compiler.program import CompileError, CompilerUnavailableError, merged
from tpunb.errors.code_problems import Choose
from tpunb.machine.keras_internals import chooser
from tpunb.tensorflow.checks.keras_models import strategy_for
from tpunb.tensorflow.checks.rule_check import CheckError, CheckReport, examined
from tpunb.tensorflow.checks.untouched import untouched
from tpunb.tensorflow.compiler.prepare import prepare
from tpunb.tensorflow.virtual.strict.examination import Examination
from tpunb.tpu.default_tpu import DEFAULT_TPU

_COMPILER = "The TPU's own compiler"
_SECONDS = 60.0
_BETTER_KNOWN = frozenset({"memory", "x64-op", "compile"})
"""The rules that the compiler knows better than the virtual TPU."""

_FRAGILE = frozenset({"dynamic-shape", "bounded-shape"})
"""The rules about sizes that depend on data, the usual reason of refusals and crashes."""


@giving_back()
def check(fn: Callable[..., Any], *args: Any, strategy: Any = None) -> CheckReport:
    """Check whether a function would compile for a TPU and run well on it.

    The function is traced, as for its first call, so Python code in it runs. No step is computed,
    and the results of tracing are not kept: models, optimizers, variables and functions do not
    change. The TPU's own compiler, if it is installed, is asked for a minute at most.

    Example:
        >>> import tensorflow as tf
        >>> def step(x):
        ...     return tf.range(tf.cast(x[0], tf.int32))  # as long as its data say
        >>> report = tpunb.check(step, tf.TensorSpec([4]))
        >>> report.ok, [problem.code for problem in report.errors]
        (False, ['constant-size'])

        In a test, `report.raise_if_refused()` raises the error.

    Args:
        fn: A replica function, as for `strategy.run`, or a function that calls `strategy.run`
            itself; both may be `tf.function`s. Or a compiled Keras model, for its train step, or
            its method `evaluate` or `predict`.
        *args: The function's arguments: tensors, arrays, per-replica values, `tf.TensorSpec`s,
            nests of these, and Python values. A `tf.data.Dataset` is
            replaced by one of its batches.
        strategy: A virtual TPU's strategy. By default, the strategy whose scope is entered, or
            the open connection's. A function that needs no strategy works without one; the
            compiler is then asked for a v5e-8.

    Returns:
        The report. Its `compiler` says whether the compiler was asked.

    Raises:
        CheckError: The strategy is not a virtual TPU's, or the function is JAX's.
        Exception: The error that the function raises when it is traced.
    """
    refuse_jax("tpunb.check", fn, args, CheckError)
    strategy = strategy_for(fn, strategy)
    with untouched(fn, args), reporting(None) as say:
        report, examinations = examined(fn, args, strategy)
        return with_verdict(report, examinations, strategy, chooser(fn), say)


def with_verdict(
    report: CheckReport,
    examinations: Sequence[Examination],
    strategy: Any,
    choose: Choose,
    progress: Callable[[str], None] = lambda _: None,
) -> CheckReport:
    """Return a report completed with the verdict of the TPU's own compiler, if it can be asked.

    Args:
        report: The report of the rules.
        examinations: The examinations of the replica functions.
        strategy: Their strategy; None for a function that needs none.
        choose: Chooses the line to show, from the lines that led to an error.
        progress: Called with each next step.
    """
    if not examinations:
        return report
    try:
        libtpu.require()
        target = targets([] if strategy is not None else [DEFAULT_TPU], strategy)[0]
        settings = Settings(choose, Deadline(_SECONDS), details=False, progress=progress)
        bounded = target.replicas > 1
        prepared = [prepare(each.traced, settings, bounded=bounded) for each in examinations]
        program = merged([program_for(function, target, settings) for function in prepared])
    except (CompilerUnavailableError, CompileError) as error:
        reason = " ".join(filter(None, [error.message, error.fix]))
        return dataclasses.replace(report, compiler=f"{_COMPILER} was not asked: {reason}")
    if program.unknown:
        # Sizes that depend on data are the most likely reason of a crash.
        fragile = [w for w in report.warnings if w.code in _FRAGILE and program.crashed]
        warnings = tuple(w for w in report.warnings if w not in fragile)
        verdict = f"{_COMPILER} gave no answer: {program.unknown}"
        return CheckReport((*report.errors, *fragile), warnings, verdict)
    # Without a size, the compiler knows nothing about memory.
    better = _BETTER_KNOWN - {"memory"} if program.unsized else _BETTER_KNOWN
    kept = [error for error in report.errors if error.code not in better]
    known = {(error.code, error.line) for error in kept}
    # A rule may know the place of a refusal better than the compiler.
    ruled = [*report.errors, *report.warnings]
    added = [
        next((rule for rule in ruled if rule.code == error.code), error)
        for error in program.errors
        if (error.code, error.line) not in known
    ]
    refused = any(error.code in _FRAGILE for error in added)
    warnings = tuple(w for w in report.warnings if not (refused and w.code in _FRAGILE))
    verdict = f"{_COMPILER}: {program.headline}"
    return CheckReport((*kept, *added), warnings, verdict)
