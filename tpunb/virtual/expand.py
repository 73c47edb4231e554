"""One replica's function written out for all replicas, as one flat function.

The result is a multi-device function: every node carries its core's device. It
is made of protocol buffers alone, because making 10,000 nodes in Python's graph
would take seconds.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

from tpunb.virtual._tensorflow import FunctionDef
from tpunb.virtual.bodies import Bodies
from tpunb.virtual.graphs import Library, data_inputs
from tpunb.virtual.inline import inlined
from tpunb.virtual.nodes import new_name
from tpunb.virtual.spread import Argument, Kind, Spread, spread
from tpunb.virtual.writer import Writer


@dataclasses.dataclass(frozen=True)
class Expansion:
    """A function for all replicas.

    Attributes:
        definition: The function.
        bodies: Functions that it calls, which have been made for it.
        reads: Arguments of the replica function that are variables' handles
            and that it only reads.
        diverged: Mirrored arguments whose copies a replica may set on its own.
        places: For each output of the replica function, which of the outputs of
            `definition` it is: what is returned twice is handed out once.
    """

    definition: FunctionDef
    bodies: tuple[FunctionDef, ...]
    reads: frozenset[str]
    diverged: frozenset[str]
    places: tuple[int, ...]


def expand(
    function: FunctionDef,
    arguments: Mapping[str, Argument],
    library: Library,
    cores: Sequence[Sequence[str]],
    diverged: frozenset[str] = frozenset(),
    *,
    homes: Mapping[str, int] | None = None,
    copies: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Expansion:
    """Writes a replica function out for all replicas.

    Args:
        function: The traced replica function.
        arguments: How each of its arguments reaches the replicas, by name.
        library: Finds the functions that it calls.
        cores: The devices of each replica, its logical devices in order.
        diverged: Mirrored arguments whose copies differ already.
        homes: Arguments that are handles of variables on a logical device other
            than 0, and which.
        copies: Arguments that are handles of variables with a copy on every
            logical device, and the type of their values. After the handles of
            all replicas come those of the copies, for each replica in the order
            of its logical devices.
        shapes: The convolutions of batches of unknown size, as `unknown_sizes` finds
            them in the inlined function; None if all sizes are known.

    Returns:
        The function for all replicas. Its arguments are those of the replica
        function in their order, once or once per replica as `arguments` says;
        its outputs are those of the replica function, each once per replica.
    """
    flat = inlined(function, library)
    places = _drop_repeated_outputs(flat)

    @functools.cache
    def known(name: str) -> FunctionDef:
        return inlined(library(name), library)

    found = spread(flat, arguments, known, diverged)
    name = new_name(flat, cores)
    own_bodies = Bodies(known, name)
    writer = Writer(
        flat,
        found,
        known,
        cores,
        name,
        own_bodies,
        homes=homes or {},
        copies=copies,
        shapes=shapes,
    )
    outputs = [Kind.VARYING] * len(flat.signature.output_arg)
    definition = writer.write(outputs)
    bodies = (*own_bodies.made, *writer.bodies)
    return Expansion(definition, bodies, _only_read(flat, found), found.diverged, places)


def _drop_repeated_outputs(function: FunctionDef) -> tuple[int, ...]:
    """Leaves each value that is returned once; says where the others have gone."""
    sources = [function.ret[output.name] for output in function.signature.output_arg]
    once = list(dict.fromkeys(sources))
    kept = [function.signature.output_arg[sources.index(source)] for source in once]
    names = [output.name for output in kept]
    for output in [o for o in function.signature.output_arg if o.name not in names]:
        function.signature.output_arg.remove(output)
        del function.ret[output.name]
    return tuple(once.index(source) for source in sources)


def _only_read(function: FunctionDef, found: Spread) -> frozenset[str]:
    handles = {name for name, argument in found.arguments.items() if argument.per_replica}
    for node in function.node_def:
        if node.op != "ReadVariableOp":
            handles.difference_update(source.source for source in data_inputs(node))
    return frozenset(handles)
