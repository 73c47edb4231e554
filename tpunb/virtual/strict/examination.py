"""A traced replica function, looked at as a TPU's compiler would."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import linecache
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tpunb.errors import MemoryLimitError, TpuWarning
from tpunb.errors.code_problems import Problem, SourceLine, refusal
from tpunb.errors.explain import explain
from tpunb.virtual.graph.function_def import body_sizes, known_sizes
from tpunb.virtual.graph.rewrite import inlined
from tpunb.virtual.graph.traced_function import TracedFunction
from tpunb.virtual.strict.arguments import foreign_types, out_of_scope_variables, parameters
from tpunb.virtual.strict.diagnostics import Diagnostic, Unknown
from tpunb.virtual.strict.host import on_host
from tpunb.virtual.strict.known_ops import KnownLoops
from tpunb.virtual.strict.lint import lint
from tpunb.virtual.strict.lowering import lower
from tpunb.virtual.strict.memory import beyond_a_core, beyond_the_machine
from tpunb.virtual.strict.source_lines import SourceLines
from tpunb.virtual.strictness import RULES, Strictness

_REFUSES = {rule.name: rule.refuses for rule in RULES}
_observer: contextvars.ContextVar[Callable[[TracedFunction], None] | None] = contextvars.ContextVar(
    "tpunb_observer", default=None
)
_written: contextvars.ContextVar[bool] = contextvars.ContextVar("tpunb_written", default=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Located:
    """A diagnostic with the lines of the user's code that led to it.

    Attributes:
        diagnostic: What was found.
        places: The lines, innermost first; empty where none is known.
    """

    diagnostic: Diagnostic
    places: tuple[SourceLine, ...]

    @property
    def refuses(self) -> bool:
        """Whether a TPU refuses it, or may."""
        return _REFUSES.get(self.diagnostic.rule, False)


@dataclasses.dataclass(frozen=True)
class Examination:
    """What is known of a replica function before it runs.

    Attributes:
        graph: The traced graph.
        places: Where its nodes came from.
        diagnostics: What a TPU refuses or does otherwise, in the order of the code.
        traced: The function.
    """

    graph: Any
    places: SourceLines
    diagnostics: tuple[Located, ...]
    traced: TracedFunction

    def located(self, diagnostic: Diagnostic) -> Located:
        """A diagnostic with its place."""
        return _located(diagnostic, self.places)


def _located(diagnostic: Diagnostic, places: SourceLines) -> Located:
    return Located(diagnostic, tuple(places.own(diagnostic.node)) if diagnostic.node else ())


@contextlib.contextmanager
def observed() -> Iterator[list[Examination]]:
    """Collects the examinations of what is traced inside, where nothing is refused."""
    found: list[Examination] = []
    with observing(lambda traced: found.append(examine(traced))):
        yield found


@contextlib.contextmanager
def observing(
    observer: Callable[[TracedFunction], None], *, written: bool = True
) -> Iterator[None]:
    """Passes the replica functions that are traced inside to an observer; none is refused or run.

    Args:
        observer: Is called with each while the graph around it is being built.
        written: Whether they are written out for all replicas, as what may run later has to be.
    """
    tokens = _observer.set(observer), _written.set(written)
    try:
        yield
    finally:
        _observer.reset(tokens[0])
        _written.reset(tokens[1])


def is_observed() -> bool:
    """Whether what is traced now is examined only, and will not run."""
    return _observer.get() is not None


def is_written() -> bool:
    """Whether what is traced now has to be written out for all replicas."""
    return _written.get()


def enforce(traced: TracedFunction, strictness: Strictness) -> None:
    """Examines a replica function that is about to run.

    Args:
        traced: The function.
        strictness: The rules that hold.

    Raises:
        tf.errors.InvalidArgumentError: A TPU refuses it.
    """
    observer = _observer.get()
    if observer is not None:
        observer(traced)
        return
    if not strictness.any:
        return
    found = examine(traced, lambda one: strictness.holds(_rule(one)), trusting=True)
    for located in found.diagnostics:
        if _REFUSES[_rule(located.diagnostic)]:
            raise _error(located)
        _warn(located)


def spare_the_machine(traced: TracedFunction, replicas: int, repeated: frozenset[str]) -> None:
    """Refuses what this machine's memory cannot hold.

    Args:
        traced: The function, which is about to run here.
        replicas: How many replicas run it.
        repeated: The nodes of which each has its own.

    Raises:
        MemoryLimitError: A tensor does not fit.
    """
    found = beyond_the_machine(traced.made, replicas, repeated)
    if found is None or is_observed():
        return
    made, reason = found
    at = "".join(f"\n{_shown(place)}" for place in SourceLines(traced.atomic).own(made.node)[:1])
    raise MemoryLimitError(
        f"{reason}{at}", fix="Make the batch smaller, or connect to a TPU of fewer cores."
    )


def _rule(diagnostic: Diagnostic) -> str:
    """The rule that a diagnostic falls under when it is about to run."""
    if diagnostic.rule == "unsupported-op" and tf.config.get_soft_device_placement():
        return "host-op"
    return diagnostic.rule


def examine(
    traced: TracedFunction,
    wanted: Callable[[Diagnostic], bool] = lambda _: True,
    *,
    trusting: bool = False,
) -> Examination:
    """Looks a replica function over.

    Args:
        traced: The function.
        wanted: Which diagnostics to keep.
        trusting: Whether to leave the compiler out where it cannot refuse.
    """
    library, definition = traced.library, traced.definition
    found = [
        *statically_found(traced),
        *beyond_a_core(traced.made, traced.variables, traced.memory, traced.cores),
    ]
    diagnostics = [diagnostic for diagnostic in found if wanted(diagnostic)]
    # Neither a type that cannot be compiled nor a tensor that the compiler might make.
    sure = any(diagnostic.rule in {"unsupported-type", "memory"} for diagnostic in found) or (
        trusting and _compiles_surely(traced)
    )
    refused = None
    if not sure:
        with contextlib.suppress(Unknown):
            host = on_host(traced.graph, definition, library, found)
            given = parameters(traced, definition)
            refused = lower(definition, given, library, host)
    if refused is not None and wanted(refused) and not _says_again(refused, found):
        diagnostics.append(refused)
    places = SourceLines(traced.atomic)
    located = [_located(diagnostic, places) for diagnostic in diagnostics]
    return Examination(traced.graph, places, tuple(once_a_line(located)), traced)


def _compiles_surely(traced: TracedFunction) -> bool:
    """Whether the compiler need not be asked."""
    library = functools.cache(lambda name: inlined(traced.library(name), traced.library))
    sizes = known_sizes(traced.graph, traced.definition)
    inside = body_sizes(traced.graph, library)
    return KnownLoops(traced.definition, library, sizes, inside).compiles()


def statically_found(traced: TracedFunction) -> list[Diagnostic]:
    """What is found without a compiler, and without counting memory."""
    return [
        *foreign_types(traced, traced.definition),
        *out_of_scope_variables(traced, traced.definition),
        *lint(traced.definition, traced.library, traced.graph.name),
    ]


def _says_again(refused: Diagnostic, found: list[Diagnostic]) -> bool:
    """Whether what the compiler reports was found already."""
    reported = {diagnostic.rule for diagnostic in found}
    return refused.rule in reported or (
        refused.rule == "bounded-shape" and "dynamic-shape" in reported
    )


def once_a_line(located: list[Located]) -> Iterator[Located]:
    """One diagnostic of a kind for a line of code: what says most."""
    kept: dict[object, Located] = {}
    for item in located:
        key = (item.diagnostic.rule, item.places[:1] or item.diagnostic.node)
        before = kept.get(key)
        if before is None or _says_little(before.diagnostic):
            kept[key] = item
    yield from kept.values()


def _says_little(diagnostic: Diagnostic) -> bool:
    return diagnostic.op in {"Const", "Identity", "Cast"} or diagnostic.reason.endswith(
        "do not have."
    )


def _error(located: Located) -> tf.errors.OpError:
    """The error that a TPU's compiler raises, with the place, the cause and the fix."""
    diagnostic = located.diagnostic
    at = "".join(f"\n{_shown(place)}" for place in reversed(located.places))
    known = explain(diagnostic.message)
    problem = Problem(
        diagnostic.rule, None, "", diagnostic.reason, diagnostic.fix, known.code if known else None
    )
    text = refusal(diagnostic.message, at, problem)
    if diagnostic.rule == "memory":
        return tf.errors.ResourceExhaustedError(None, None, text)
    return tf.errors.InvalidArgumentError(None, None, text)


def _shown(place: SourceLine) -> str:
    code = linecache.getline(place.file, place.line).strip()
    line = f'  File "{place.file}", line {place.line}'
    return f"{line}\n    {code}" if code else line


_warned: dict[Any, Any] = {}


def _warn(located: Located) -> None:
    """Warns once of each line."""
    diagnostic = located.diagnostic
    place = located.places[0] if located.places else SourceLine("<unknown>", 0)
    warnings.warn_explicit(
        f"{diagnostic.reason} {diagnostic.fix}",
        TpuWarning,
        place.file,
        place.line,
        registry=_warned,
    )
