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

from tpunb.errors import TpuWarning
from tpunb.virtual._tensorflow import XLAControlFlowContext, context
from tpunb.virtual.graphs import needed
from tpunb.virtual.inline import inlined
from tpunb.virtual.strict.findings import Finding
from tpunb.virtual.strict.known import compiles_surely
from tpunb.virtual.strict.lint import lint
from tpunb.virtual.strict.lowering import Unknown, lower
from tpunb.virtual.strict.places import Place, Places
from tpunb.virtual.strict.rules import RULES, Strictness
from tpunb.virtual.strict.target import Target, foreign_types, on_host, parameters, strays

__all__ = ["Examination", "Located", "enforce", "examine", "is_observed", "observed", "traced_anew"]

_REFUSES = {rule.name: rule.refuses for rule in RULES}
_observers: contextvars.ContextVar[list[Examination] | None] = contextvars.ContextVar(
    "tpunb_observers", default=None
)


@dataclasses.dataclass(frozen=True, slots=True)
class Located:
    """A finding with the lines of the user's code that led to it.

    Attributes:
        finding: What was found.
        places: The lines, innermost first; empty where none is known.
    """

    finding: Finding
    places: tuple[Place, ...]

    @property
    def refuses(self) -> bool:
        """Whether a TPU refuses it, or may."""
        return _REFUSES.get(self.finding.rule, False) or self.finding.rule == "bounded-shape"


@dataclasses.dataclass(frozen=True)
class Examination:
    """What is known of a replica function before it runs.

    Attributes:
        graph: The traced graph.
        places: Where its nodes came from.
        findings: What a TPU refuses or does otherwise, in the order of the code.
    """

    graph: Any
    places: Places
    findings: tuple[Located, ...]

    def located(self, finding: Finding) -> Located:
        """A finding with its place."""
        return _located(finding, self.places)


def _located(finding: Finding, places: Places) -> Located:
    return Located(finding, tuple(places.own(finding.node)) if finding.node else ())


@contextlib.contextmanager
def observed() -> Iterator[list[Examination]]:
    """Collects the examinations of what is traced inside, where nothing is refused."""
    found: list[Examination] = []
    token = _observers.set(found)
    try:
        yield found
    finally:
        _observers.reset(token)


class _CompilerContext(XLAControlFlowContext):  # type: ignore[misc]
    """Inside, everything is traced as for XLA, and what was traced before is traced again."""

    def RequiresUniqueFunctionRetracing(self) -> bool:
        return True


@contextlib.contextmanager
def traced_anew() -> Iterator[None]:
    """Traces functions inside as XLA has them traced, those too that were traced before.

    XLA's loops differ: their gradients keep as many values as the loop has steps.
    """
    around = _CompilerContext()
    around.Enter()
    try:
        yield
    finally:
        around.Exit()


def is_observed() -> bool:
    """Whether what is traced now is examined only, and will not run."""
    return _observers.get() is not None


def enforce(target: Target, strictness: Strictness) -> None:
    """Examines a replica function that is about to run.

    Args:
        target: The function.
        strictness: The rules that hold.

    Raises:
        tf.errors.InvalidArgumentError: A TPU refuses it.
    """
    observers = _observers.get()
    if observers is not None:
        observers.append(examine(target))
        return
    if not strictness.any:
        return
    found = examine(target, lambda one: strictness.holds(_rule(one)), trusting=True)
    for located in found.findings:
        if _REFUSES[_rule(located.finding)]:
            raise _error(located)
        _warn(located)


def _rule(finding: Finding) -> str:
    """The rule that a finding falls under when it is about to run."""
    if finding.rule == "unsupported-op" and tf.config.get_soft_device_placement():
        return "host-op"
    return finding.rule


def examine(
    target: Target, wanted: Callable[[Finding], bool] = lambda _: True, *, trusting: bool = False
) -> Examination:
    """Looks a replica function over.

    Args:
        target: The function.
        wanted: Which findings to keep.
        trusting: Whether to leave the compiler out where it cannot refuse.
    """
    library = functools.cache(context.context().get_function_def)
    definition = inlined(target.traced.cached_definition, library)
    found = [
        *foreign_types(target, definition),
        *strays(target, definition),
        *lint(definition, library, target.graph.name),
    ]
    findings = [finding for finding in found if wanted(finding)]
    kept = needed(definition)
    sure = any(finding.rule == "unsupported-type" for finding in found) or (
        trusting and compiles_surely(definition, (n for n in definition.node_def if n.name in kept))
    )
    refused = None
    if not sure:
        with contextlib.suppress(Unknown):
            host = on_host(target.graph, definition, found)
            given = parameters(target, definition)
            refused = lower(definition, given, library, target.device, host)
    if refused is not None and wanted(refused) and not _says_again(refused, found):
        findings.append(refused)
    places = Places(target.traced)
    located = [_located(finding, places) for finding in findings]
    return Examination(target.graph, places, tuple(_once_a_line(located)))


def _says_again(refused: Finding, found: list[Finding]) -> bool:
    """Whether what the compiler says was found already."""
    said = {finding.rule for finding in found}
    return refused.rule in said or (refused.rule == "bounded-shape" and "dynamic-shape" in said)


def _once_a_line(located: list[Located]) -> Iterator[Located]:
    """One finding of a kind for a line of code: what says most."""
    kept: dict[object, Located] = {}
    for item in located:
        key = (item.finding.rule, item.places[:1] or item.finding.node)
        before = kept.get(key)
        if before is None or _says_little(before.finding):
            kept[key] = item
    yield from kept.values()


def _says_little(finding: Finding) -> bool:
    return finding.op in {"Const", "Identity", "Cast"} or finding.reason.endswith("do not have.")


def _error(located: Located) -> tf.errors.OpError:
    """The error that a TPU's compiler raises, with the place, the cause and the mend."""
    finding = located.finding
    at = "".join(f"\n{_shown(place)}" for place in reversed(located.places))
    said = f"{finding.message}\n{at}\n\n{finding.reason} {finding.mend}"
    return tf.errors.InvalidArgumentError(None, None, said)


def _shown(place: Place) -> str:
    code = linecache.getline(place.file, place.line).strip()
    line = f'  File "{place.file}", line {place.line}'
    return f"{line}\n    {code}" if code else line


_warned: dict[Any, Any] = {}


def _warn(located: Located) -> None:
    """Warns once of each line."""
    finding = located.finding
    place = located.places[0] if located.places else Place("<unknown>", 0)
    warnings.warn_explicit(
        f"{finding.reason} {finding.mend}", TpuWarning, place.file, place.line, registry=_warned
    )
