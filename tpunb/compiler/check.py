"""`tpunb.check`: the rules of the virtual TPU, and what the TPU's own compiler says."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from tpunb._util.deadline import Deadline
from tpunb._util.freed_memory import giving_back
from tpunb.compiler import libtpu
from tpunb.compiler.prepare import prepare
from tpunb.compiler.program import CompileError, CompilerUnavailableError, merged
from tpunb.compiler.topologies import targets
from tpunb.compiler.verdict import Settings, program_for, reporting
from tpunb.errors.code_problems import Choose
from tpunb.tpu.defaults import DEFAULT_TPU
from tpunb.virtual.check import CheckReport, examined
from tpunb.virtual.keras_internals import chooser, model_of
from tpunb.virtual.keras_models import strategy_of
from tpunb.virtual.strategy import current
from tpunb.virtual.strict.examination import Examination
from tpunb.virtual.untouched import untouched

_SECONDS = 60.0
_BETTER_KNOWN = frozenset({"memory", "x64-op", "compile"})
"""What the compiler knows better than a rule does."""

_FRAGILE = frozenset({"dynamic-shape", "bounded-shape"})
"""Sizes that depend on data: what the compiler refuses or crashes on most often."""


@giving_back()
def check(fn: Callable[..., Any], *args: Any, strategy: Any = None) -> CheckReport:
    """Checks whether a function would compile for a TPU, and run well on it.

    The function is traced, as for its first call: Python code in it runs. No step is
    computed, and what tracing makes is not kept: models, optimizers, variables and
    functions are as before. Where the TPU's own compiler is installed, it is asked, for a
    minute at most.

    Args:
        fn: A replica function, such as one would give to `strategy.run`, or a
            function that calls `strategy.run` itself, a `tf.function` or not; a compiled
            Keras model, for its train step, or its method `evaluate` or `predict`.
        *args: Its arguments: tensors, arrays, per-replica values, `tf.TensorSpec`s,
            nests of these, and Python values. A `tf.data.Dataset` stands for
            a batch of it.
        strategy: A virtual TPU's strategy; by default the one whose scope is
            entered, or that of the open connection. A function that needs none
            can do without: the compiler is then asked for a v5e-8.

    Returns:
        The report; its `compiler` says whether the compiler was asked.

    Raises:
        CheckError: The strategy is not a virtual TPU's.
        Exception: What the function raises when it is traced.
    """
    strategy = strategy or current()
    if strategy is None and (model := model_of(fn)) is not None:
        strategy = strategy_of(model)
    with untouched(fn, args), reporting(None) as say:
        found, examinations = examined(fn, args, strategy)
        return with_verdict(found, examinations, strategy, chooser(fn), say)


def with_verdict(
    found: CheckReport,
    examinations: Sequence[Examination],
    strategy: Any,
    choose: Choose,
    progress: Callable[[str], None] = lambda _: None,
) -> CheckReport:
    """A report with what the TPU's own compiler says, where it can be asked.

    Args:
        found: What the rules say.
        examinations: Of the replica functions.
        strategy: Whose they are; None for a function that needs none.
        choose: Which of the lines that led to an error is shown.
        progress: Is called with what is done next.
    """
    if not examinations:
        return found
    try:
        libtpu.require()
        target = targets(None if strategy is not None else DEFAULT_TPU, strategy)[0]
        settings = Settings(choose, Deadline(_SECONDS), details=False, progress=progress)
        bounded = target.replicas > 1
        prepared = [prepare(one.traced, settings, bounded=bounded) for one in examinations]
        program = merged([program_for(one, target, settings) for one in prepared])
    except (CompilerUnavailableError, CompileError) as error:
        return dataclasses.replace(found, compiler=_not_asked(error.message))
    if program.unknown:
        # It most likely crashed on these.
        fragile = [one for one in found.warnings if one.code in _FRAGILE and program.crashed]
        warnings = tuple(one for one in found.warnings if one not in fragile)
        return CheckReport((*found.errors, *fragile), warnings, _not_asked(program.unknown))
    # Without a size the compiler knows nothing of memory.
    better = _BETTER_KNOWN - {"memory"} if program.unsized else _BETTER_KNOWN
    kept = [one for one in found.errors if one.code not in better]
    known = {(one.code, one.line) for one in kept}
    # Of a refusal the rule may know the better place.
    ruled = [*found.errors, *found.warnings]
    added = [
        next((rule for rule in ruled if rule.code == one.code), one)
        for one in program.errors
        if (one.code, one.line) not in known
    ]
    refused = any(one.code in _FRAGILE for one in added)
    warnings = tuple(one for one in found.warnings if not (refused and one.code in _FRAGILE))
    said = f"The TPU's own compiler: {program.headline}"
    return CheckReport((*kept, *added), warnings, said)


def _not_asked(reason: str) -> str:
    return f"The TPU's own compiler was not asked, or gave no answer: {reason}"
