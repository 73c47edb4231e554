"""The examination of a traced replica function, from the view of a TPU's compiler."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import linecache
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from tpunb.errors import MemoryLimitError, TpuWarning
from tpunb.errors.code_problems import Problem, SourceLine, innermost, refusal
from tpunb.machine.keras_internals import layer_names, layer_with, model_call
from tpunb.tensorflow.virtual.graph.tensorflow_graphs import outermost_graph
from tpunb.tensorflow.virtual.graph.traced_function import SourceLines, TracedFunction
from tpunb.tensorflow.virtual.refused_errors import error_of_rule
from tpunb.tensorflow.virtual.strict.accepted_ops import compiles_for_certain
from tpunb.tensorflow.virtual.strict.collective_branches import hanging_branches
from tpunb.tensorflow.virtual.strict.core_memory import beyond_a_core, beyond_the_machine
from tpunb.tensorflow.virtual.strict.ignored_seeds import is_of_global_seed
from tpunb.tensorflow.virtual.strict.lowering import lower
from tpunb.tensorflow.virtual.strict.open_sizes import RULE, refused_for_open_sizes
from tpunb.tensorflow.virtual.strict.refused_ops import statically_found
from tpunb.tensorflow.virtual.strict.stand_ins import Unknown, on_host
from tpunb.virtual.strictness import REFUSED, Strictness

_observer: contextvars.ContextVar[Callable[[TracedFunction], None] | None] = contextvars.ContextVar(
    "tpunb_observer", default=None
)
_written: contextvars.ContextVar[bool] = contextvars.ContextVar("tpunb_written", default=True)


@dataclasses.dataclass(frozen=True)
class Examination:
    """The findings in a replica function before it runs.

    Attributes:
        graph: The traced graph, at the largest sizes of the arguments if these are known.
        lines: The source lines of its nodes.
        problems: The code that a TPU refuses or runs differently, in the order of the code.
        traced: The function.
    """

    graph: Any
    lines: SourceLines
    problems: tuple[Problem, ...]
    traced: TracedFunction

    def located(self, problem: Problem) -> Problem:
        """Return a problem with the lines that led to it."""
        return _located(problem, self.lines)


def _located(problem: Problem, lines: SourceLines) -> Problem:
    return problem.at(lines.own(problem.node)) if problem.node else problem


@contextlib.contextmanager
def observing(*, written: bool = True) -> Iterator[list[TracedFunction]]:
    """Collect the replica functions that are traced inside; none runs, and nothing is refused.

    TensorFlow traces a function again if it made variables: its first trace also writes their
    initial values, on all replicas. The first trace never runs on a TPU, so only the last trace is
    kept.

    Args:
        written: Whether the functions are written out for all replicas, which is necessary if they
            may run later.
    """
    functions: list[TracedFunction] = []
    last: Any = None

    def observe(traced: TracedFunction) -> None:
        nonlocal last
        trace = outermost_graph()
        if trace is not last:
            functions.clear()
            last = trace
        functions.append(traced)

    tokens = _observer.set(observe), _written.set(written)
    try:
        yield functions
    finally:
        _observer.reset(tokens[0])
        _written.reset(tokens[1])


def is_observed() -> bool:
    """Return True while traced functions are only examined and will not run."""
    return _observer.get() is not None


def is_written() -> bool:
    """Return True while traced functions must be written out for all replicas."""
    return _written.get()


def enforce(traced: TracedFunction, strictness: Strictness) -> None:
    """Examine a replica function that is about to run.

    Args:
        traced: The function.
        strictness: The rules that hold.

    Raises:
        tf.errors.InvalidArgumentError: A TPU refuses the function.
    """
    observer = _observer.get()
    if observer is not None:
        observer(traced)
        return
    if not strictness.any:
        return
    examination = examine(traced, lambda problem: strictness.holds(_rule(problem)), trusting=True)
    for problem in examination.problems:
        if _rule(problem) in REFUSED:
            raise _error(problem)
        _warn(problem)


def enforce_open_sizes(traced: TracedFunction, strictness: Strictness) -> None:
    """Refuse a replica function that a TPU refuses because it will run with open sizes.

    Args:
        traced: The function, traced with these sizes and examined with fixed sizes.
        strictness: The rules that hold.

    Raises:
        tf.errors.InvalidArgumentError: A TPU refuses the function.
    """
    if traced.is_padded and strictness.holds(RULE):
        for problem in _with_open_sizes(traced):
            if problem.code in REFUSED:
                raise _error(problem)


def spare_the_machine(traced: TracedFunction, replicas: int, repeated: frozenset[str]) -> None:
    """Refuse tensors that this machine's memory cannot hold.

    Args:
        traced: The function, which is about to run here.
        replicas: The number of replicas that run it.
        repeated: The nodes that each replica has for itself.

    Raises:
        MemoryLimitError: A tensor does not fit.
    """
    excess = beyond_the_machine(traced.tensors, replicas, repeated)
    if excess is None or is_observed():
        return
    tensor, reason = excess
    at = "".join(f"\n{_shown(line)}" for line in SourceLines(traced.atomic).own(tensor.node)[:1])
    raise MemoryLimitError(
        f"{reason}{at}", fix="Make the batch smaller, or connect to a TPU of fewer cores."
    )


def _rule(problem: Problem) -> str:
    """Return the rule that a problem falls under when the function is about to run."""
    if problem.code == "unsupported-op" and tf.config.get_soft_device_placement():
        return "host-op"
    return problem.code


def examine(
    traced: TracedFunction,
    is_kept: Callable[[Problem], bool] = lambda _: True,
    *,
    trusting: bool = False,
) -> Examination:
    """Examine a replica function.

    Args:
        traced: The function.
        is_kept: Returns whether to keep a problem.
        trusting: Whether to skip the compiler if it cannot refuse.
    """
    fixed = traced.fixed or traced
    findings = [
        *statically_found(fixed),
        *hanging_branches(fixed),
        *beyond_a_core(fixed.tensors, fixed.variables, fixed.memory, fixed.cores),
    ]
    problems = [problem for problem in findings if is_kept(problem)]
    # The compiler is not asked about types that it cannot compile, or about tensors that are too
    # large and that it might make.
    hopeless = any(problem.code in {"unsupported-type", "memory"} for problem in findings)
    refused = None
    if not hopeless and not (trusting and compiles_for_certain(fixed)):
        with contextlib.suppress(Unknown):
            refused = lower(fixed, on_host(fixed, findings))
    if refused is not None and is_kept(refused) and not _says_again(refused, findings):
        problems.append(refused)
    lines = SourceLines(fixed.atomic)
    located = [_located(problem, lines) for problem in problems]
    compiles = not hopeless and (refused is None or refused.code not in REFUSED)
    if compiles and traced.is_padded and is_kept(_OPEN_SIZES):
        located += filter(is_kept, _with_open_sizes(traced))
    return Examination(fixed.graph, lines, tuple(once_a_line(located)), traced)


_OPEN_SIZES = Problem(RULE, "", "")
"""Any problem of the rule."""


def _with_open_sizes(traced: TracedFunction) -> Iterator[Problem]:
    """Yield a TPU's refusals of a function because sizes of its arguments are not fixed."""
    with contextlib.suppress(Unknown):
        host = on_host(traced, statically_found(traced))
        refused = refused_for_open_sizes(traced, host)
        if refused is None or refused.code == "unchecked":
            yield from [refused] if refused is not None else []
            return
        # Otherwise the refusal comes from the sizes that are tried, and not from their being open.
        fixed = traced.fixed or traced
        with_fixed = lower(fixed, on_host(fixed, statically_found(fixed)))
        if with_fixed is None or with_fixed.code not in {*REFUSED, "unchecked"}:
            yield _located(refused, SourceLines(traced.atomic))


def _says_again(refused: Problem, findings: list[Problem]) -> bool:
    """Return whether the compiler repeats a finding."""
    reported = {problem.code for problem in findings}
    return refused.code in reported or (
        refused.code == "bounded-shape" and "dynamic-shape" in reported
    )


def once_a_line(located: list[Problem]) -> Iterator[Problem]:
    """Yield one problem of each kind for a line of code: the most informative."""
    most_informative: dict[object, Problem] = {}
    for item in located:
        key = (item.code, item.places[:1] or item.node)
        before = most_informative.get(key)
        if before is None or _says_little(before):
            most_informative[key] = item
    yield from most_informative.values()


def _says_little(problem: Problem) -> bool:
    return problem.op in {"Const", "Identity", "Cast"} or problem.reason.endswith("do not have.")


def _error(problem: Problem) -> tf.errors.OpError:
    """Return the error that a TPU's compiler raises, with the place, the cause and the fix."""
    call = model_call(sys._getframe(1))
    if call is not None and (layer := layer_with(problem.node, layer_names(call.model))):
        problem = dataclasses.replace(problem, reason=f"In the layer {layer}: {problem.reason}")
    at = "".join(f"\n{_shown(line)}" for line in reversed(problem.places))
    text = refusal(problem.message, at, problem.shown(innermost))
    is_memory = problem.code == "memory"
    error_type = tf.errors.ResourceExhaustedError if is_memory else tf.errors.InvalidArgumentError
    return error_of_rule(error_type, problem.code)(None, None, text)


def _shown(origin: SourceLine) -> str:
    code = linecache.getline(origin.file, origin.line).strip()
    line = f'  File "{origin.file}", line {origin.line}'
    return f"{line}\n    {code}" if code else line


_warned: dict[Any, Any] = {}
_reported: set[tuple[str, tuple[SourceLine, ...]]] = set()


def leave_out_of_warnings(problems: Iterable[Problem]) -> None:
    """Leave out of warnings the problems that were reported before a cell runs."""
    _reported.update(map(_key, problems))


def _key(problem: Problem) -> tuple[str, tuple[SourceLine, ...]]:
    """Return what identifies a problem: its line, but for the global seed only the function."""
    return problem.reason, () if is_of_global_seed(problem) else problem.places


def _warn(problem: Problem) -> None:
    """Warn once for each line, and of the global seed once for each function."""
    if _key(problem) in _reported:
        return
    if is_of_global_seed(problem):
        leave_out_of_warnings([problem])
    line = problem.places[0] if problem.places else SourceLine("<unknown>", 0)
    warnings.warn_explicit(
        f"{problem.reason} {problem.fix}", TpuWarning, line.file, line.line, registry=_warned
    )
