"""One replica's function written out for all replicas, as one flat function.

The result is a multi-device function: every node carries its core's device. It
is made of protocol buffers alone, because making 10,000 nodes in Python's graph
would take seconds.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

from tpunb._util.logs import logger, timed
from tpunb.virtual._tensorflow import FunctionDef
from tpunb.virtual.graph.function_def import Library, data_inputs, returned
from tpunb.virtual.graph.nodes import new_name
from tpunb.virtual.graph.rewrite import inlined
from tpunb.virtual.replicate.builder import Builder, Setting
from tpunb.virtual.replicate.function_copies import FunctionCopies
from tpunb.virtual.replicate.joining import Joining, join
from tpunb.virtual.replicate.matrix_unit import MatrixUnit
from tpunb.virtual.replicate.passes import Known, simplified
from tpunb.virtual.replicate.variance import Argument, analyze, mark_diverged
from tpunb.virtual.replicate.writer import write_function

Arguments = Mapping[str, Argument]
"""The arguments of a replica function, by name."""


@dataclasses.dataclass(frozen=True)
class ReplicaFunction:
    """A traced replica function, and the cores that it is written out for.

    Attributes:
        definition: The function, its calls inlined; it is not changed.
        library: Finds the functions that it calls.
        cores: The devices of each replica, its logical devices in order.
        shapes: The convolutions of batches of unknown size, as `unknown_sizes` finds
            them; None if all sizes are known.
        unit: Rounds what a TPU's matrix unit would; None for nothing.
        at_once: How many replicas of a process run at a time; None for all.
        joining: What is known for computing all replicas' values in one node; None to
            leave each replica its own.
    """

    definition: FunctionDef
    library: Library
    cores: Sequence[Sequence[str]]
    shapes: Mapping[str, Sequence[int]] | None = None
    unit: MatrixUnit | None = None
    at_once: int | None = None
    joining: Joining | None = None

    @functools.cached_property
    def computed(self) -> FunctionDef:
        """The function as the replicas compute it."""
        if self.joining is None:
            return simplified(self.definition, Known(unit=self.unit))
        loops = self.inlined_library if self.joining.body_sizes is not None else None
        return simplified(self.definition, Known(self.joining.sizes, loops, self.unit))

    @functools.cached_property
    def inlined_library(self) -> Library:
        """Finds the functions that it calls as replicas compute them, the calls in them inlined."""

        def found(name: str) -> FunctionDef:
            if self.unit:
                return self.unit.body(name, self.library)
            return inlined(self.library(name), self.library)

        return functools.cache(found)


@dataclasses.dataclass(frozen=True)
class Expansion:
    """A function for all replicas.

    Attributes:
        definition: The function.
        bodies: Functions that it calls, which have been made for it.
        reads: Arguments of the replica function that are variables' handles
            and that it only reads.
        diverged: Mirrored arguments whose copies a replica may set on its own, or whose
            copies differed already.
        split: Mirrored arguments whose copies share a resource and must not: what was
            written is wrong.
        places: For each output of the replica function, which of the outputs of
            `definition` it is: what is returned twice is an output once.
        repeated: The nodes of the replica function that stand in it once a replica.
        joined: Those that stand in it once for all, on their values in one tensor.
    """

    definition: FunctionDef
    bodies: tuple[FunctionDef, ...]
    reads: frozenset[str]
    diverged: frozenset[str]
    split: frozenset[str]
    places: tuple[int, ...]
    repeated: frozenset[str]
    joined: frozenset[str] = frozenset()


@timed("replicate", "write it out for all replicas")
def expand(
    function: ReplicaFunction,
    arguments: Arguments,
    *,
    name: str | None = None,
    prefix: str | None = None,
    assume_equal: bool = True,
) -> Expansion:
    """Writes a replica function out for all replicas.

    Args:
        function: The replica function.
        arguments: Its arguments.
        name: The name of the result; a new one by default.
        prefix: How the names of the functions made for it begin; by default with its own.
        assume_equal: Whether the copies of a mirrored variable count as equal until they
            are known to differ; if not, the result is right whatever they hold.

    Returns:
        The function for all replicas. Its arguments are those of the replica
        function in their order, once or once per replica as `arguments` says;
        its outputs are those of the replica function, each once per replica.
    """
    found = functools.partial(_expanded, arguments, name, prefix, assume_equal)
    try:
        return found(function)
    except Exception:
        joining = function.joining
        if joining is None or joining.body_sizes is None:
            raise
        # Whatever goes wrong with joined loops goes well with those of each replica, or fails too.
        logger("replicate").debug("Loops and branches are not joined.", exc_info=True)
    joining = dataclasses.replace(joining, body_sizes=None)
    return found(dataclasses.replace(function, joining=joining))


def _expanded(
    arguments: Arguments,
    name: str | None,
    prefix: str | None,
    assume_equal: bool,
    function: ReplicaFunction,
) -> Expansion:
    """Writes a replica function out for all replicas, as `expand` says."""
    flat, library = function.computed, function.inlined_library
    analysis = found = analyze(flat, arguments, library)
    if not assume_equal:
        analysis = analyze(flat, _all_diverged(arguments), library)
    name = name or new_name(flat, function.cores)
    guarded = function.shapes is not None
    functions = FunctionCopies(library, name, prefix or name, guarded=guarded)
    if function.joining is not None and not guarded:
        analysis = join(flat, analysis, function.cores, function.joining, library)
    setting = Setting(function.cores, library, functions, function.at_once)
    builder = Builder(flat, analysis, setting, name, shapes=function.shapes)
    outputs = returned(flat)
    places = {output: place for place, output in enumerate(dict.fromkeys(outputs))}
    return Expansion(
        definition=write_function(builder, list(places)),
        bodies=(*functions.made, *builder.lifted),
        reads=_only_read(flat, arguments),
        diverged=found.diverged,
        split=found.split,
        places=tuple(places[output] for output in outputs),
        repeated=builder.repeated(),
        joined=frozenset(analysis.plans),
    )


def _all_diverged(arguments: Arguments) -> Arguments:
    return {
        name: mark_diverged(argument) if argument.is_mirrored else argument
        for name, argument in arguments.items()
    }


def _only_read(function: FunctionDef, arguments: Arguments) -> frozenset[str]:
    handles = {name for name, argument in arguments.items() if argument.per_replica}
    for node in function.node_def:
        if node.op != "ReadVariableOp":
            handles.difference_update(source.source for source in data_inputs(node))
    return frozenset(handles)
