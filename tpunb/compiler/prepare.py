"""From a traced replica function to a module for libtpu, or to what forbids it before."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence

import tensorflow as tf

from tpunb._util.deadline import Deadline
from tpunb.compiler.memory import Parameters
from tpunb.compiler.origins import Choose, Origins
from tpunb.errors.code_problems import Problem
from tpunb.virtual.check import problem_of
from tpunb.virtual.graph.traced_function import TracedFunction
from tpunb.virtual.strict.arguments import parameters
from tpunb.virtual.strict.diagnostics import Diagnostic, Unknown
from tpunb.virtual.strict.examination import Located, once_a_line, statically_found
from tpunb.virtual.strict.host import on_host
from tpunb.virtual.strict.lowering import Lowered, lower_for_tpu
from tpunb.virtual.strict.stand_ins import ANY_SIZE

__all__ = ["Prepared", "prepare"]

# What TensorFlow refuses before its compiler is asked. Of memory, sizes that depend on data
# and 64-bit types libtpu says more.
_BEFORE = frozenset({"unsupported-op", "unsupported-type", "list-size", "scope"})

# TensorFlow lowers them by the type of the device, and TPUs differ from what is compiled here.
# Sources: approx_topk_op.cc and where_op.cc in TensorFlow's compiler/tf2xla/kernels.
_LOWERED_AS_ON_A_CPU: Mapping[str, str] = {
    "ApproxTopK": "An approximate top-k was compiled as an exact one: a TPU takes less time.",
    "Where": "Where a condition holds was compiled as sums and a scatter: a TPU sorts for it.",
}


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A replica function that libtpu can be asked about, or cannot.

    Attributes:
        origins: Where its operations came from.
        errors: What a TPU refuses before its compiler is asked.
        unknown: Why the compiler cannot be asked; empty where it can.
        module: A serialized `HloModuleProto`; empty where there is none.
        parameters: The module's arguments.
        notes: What a reader has to know of the figures.
    """

    origins: Origins
    errors: tuple[Problem, ...] = ()
    unknown: str = ""
    module: bytes = b""
    parameters: Parameters = ()
    notes: tuple[str, ...] = ()


def prepare(
    traced: TracedFunction, choose: Choose, deadline: Deadline, layers: Collection[str] = ()
) -> Prepared:
    """Lowers a replica function.

    Args:
        traced: The function.
        choose: Which of the lines that led to an error is shown.
        deadline: When it has to be done.
        layers: The names of Keras layers.
    """
    origins = Origins(traced, choose, layers)
    found = statically_found(traced)
    if refused := [one for one in found if one.rule in _BEFORE]:
        return Prepared(origins, _problems(refused, origins, choose))
    try:
        host = on_host(traced.graph, traced.definition, traced.library, found)
        given = parameters(traced, traced.definition)
        lowered = lower_for_tpu(traced.definition, given, traced.library, host, deadline)
    except Unknown as error:
        return Prepared(origins, unknown=str(error))
    if isinstance(lowered, Diagnostic):
        if lowered.rule == "unchecked":
            return Prepared(origins, unknown=lowered.reason)
        return Prepared(origins, _problems([lowered], origins, choose))
    return Prepared(
        origins,
        module=lowered.module,
        parameters=_named(traced, lowered),
        notes=tuple(_notes(origins, lowered, bool(host))),
    )


def _problems(found: Sequence[Diagnostic], origins: Origins, choose: Choose) -> tuple[Problem, ...]:
    located = [Located(one, origins.places(one.node) if one.node else ()) for one in found]
    return tuple(dict.fromkeys(problem_of(one, choose) for one in once_a_line(located)))


def _named(traced: TracedFunction, lowered: Lowered) -> Parameters:
    """The module's arguments by the names that a reader knows."""
    tracing = getattr(traced.graph, "tracing", None)
    known = {variable.handle.ref(): variable.name for variable in _variables(traced)}
    names = [argument.name for argument in traced.definition.signature.input_arg]
    outer = {id(inner): value for value, inner in traced.graph.captures}
    found: dict[str, tuple[str, bool]] = {}
    for name, placeholder in zip(names, traced.graph.inputs, strict=True):
        if placeholder.dtype != tf.resource:
            found[name] = (placeholder.name.partition(":")[0], False)
            continue
        variable = tracing.variables.get(id(placeholder)) if tracing else None
        handle = outer.get(id(placeholder))
        own = known.get(handle.ref(), "") if handle is not None else ""
        found[name] = ((variable.name if variable else own) or name, True)
    return [found.get(name, (name, False)) for name in lowered.arguments]


def _variables(traced: TracedFunction) -> Sequence[tf.Variable]:
    return [one for one in traced.graph.variables if hasattr(one, "handle")]


def _notes(origins: Origins, lowered: Lowered, host: bool) -> Iterator[str]:
    if not lowered.sized:
        yield f"Sizes that are not known were taken as {ANY_SIZE}."
    if host:
        yield "What runs on the host (soft device placement) is not part of the program."
    for op in sorted(_LOWERED_AS_ON_A_CPU.keys() & set(origins.operations.values())):
        yield _LOWERED_AS_ON_A_CPU[op]
