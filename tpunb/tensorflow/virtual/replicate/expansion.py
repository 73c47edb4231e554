"""A replica function written out for all replicas.

The result is one flat multi-device function: every node carries its core's device. It is made only
of protocol buffers, because making 10,000 nodes in Python's graph would take seconds.
"""

from __future__ import annotations

import dataclasses

from tpunb._util.internal_errors import report_internal_error
from tpunb._util.logs import NAMES, logger, timed
from tpunb.tensorflow.virtual.graph.function_def import data_inputs, new_name, returned
from tpunb.tensorflow.virtual.private_names import FunctionDef
from tpunb.tensorflow.virtual.replicate.builder import Builder
from tpunb.tensorflow.virtual.replicate.control_flow import write_nodes
from tpunb.tensorflow.virtual.replicate.function_copies import FunctionCopies
from tpunb.tensorflow.virtual.replicate.joining import join
from tpunb.tensorflow.virtual.replicate.passes import ReplicaFunction
from tpunb.tensorflow.virtual.replicate.variance import Arguments, Variance, analyze, mark_diverged
from tpunb.tensorflow.virtual.replicate.writer import write_effects, write_results

_log = logger("replicate")


@dataclasses.dataclass(frozen=True)
class Expansion:
    """A function for all replicas.

    Attributes:
        definition: The function.
        bodies: Functions that it calls, which have been made for it.
        reads: Arguments of the replica function that are variables' handles and that it only reads.
        diverged: Mirrored arguments whose copies a replica may set on its own, or whose copies
            differed already.
        must_separate: Mirrored arguments whose copies are together and must not be. The function
            is then wrong.
        output_indices: The index in `definition`'s outputs of each output of the replica function.
            A tensor that is returned twice is a single output.
        repeated: The nodes of the replica function that it contains once for each replica.
        joined: The nodes that it contains once for all replicas, on their values in one tensor.
        at_once: The number of replicas that run at a time; None for all.
    """

    definition: FunctionDef
    bodies: tuple[FunctionDef, ...]
    reads: frozenset[str]
    diverged: frozenset[str]
    must_separate: frozenset[str]
    output_indices: tuple[int, ...]
    repeated: frozenset[str]
    joined: frozenset[str] = frozenset()
    at_once: int | None = None


@timed("replicate", "write it out for all replicas")
def expand(
    function: ReplicaFunction,
    arguments: Arguments,
    *,
    name: str | None = None,
    prefix: str | None = None,
    assume_equal: bool = True,
) -> Expansion:
    """Write a replica function out for all replicas.

    Args:
        function: The replica function.
        arguments: Its arguments.
        name: The name of the result; a new name by default.
        prefix: The beginning of the names of the functions made for it; its own name by default.
        assume_equal: Whether the copies of a mirrored variable count as equal until they are known
            to differ. Otherwise the result is right for all values of the copies.

    Returns:
        The function for all replicas. Its arguments are the replica function's arguments in order,
        once or once per replica as `arguments` says. Its outputs are the replica function's
        outputs, each once per replica.
    """
    try:
        return _expanded(function, arguments, name, prefix, assume_equal=assume_equal)
    except Exception as error:
        if function.body_sizes is None:
            raise
        failure = error
    # If joined loops cannot be written, write a loop for each replica. If the program is wrong,
    # these loops raise the same error.
    unjoined = dataclasses.replace(function, body_sizes=None)
    expansion = _expanded(unjoined, arguments, name, prefix, assume_equal=assume_equal)
    report_internal_error(failure, logger("replicate"), "Loops and branches are not joined.")
    return expansion


def _expanded(
    function: ReplicaFunction,
    arguments: Arguments,
    name: str | None,
    prefix: str | None,
    *,
    assume_equal: bool,
) -> Expansion:
    flat, library = function.computed, function.inlined_library
    analysis = optimistic = analyze(flat, arguments, library)
    if not assume_equal:
        diverged = {
            name: mark_diverged(argument) if argument.is_mirrored else argument
            for name, argument in arguments.items()
        }
        analysis = analyze(flat, diverged, library)
    name = name or new_name(flat, function.cores)
    guarded = function.shapes is not None
    copies = FunctionCopies(library, name, prefix or name, guarded=guarded)
    at_once = function.at_once
    if function.sizes is not None and not guarded:
        analysis, at_once = join(flat, analysis, function)
    _log.debug("%s for %d replicas:\n%s", name, len(function.cores), analysis, extra=NAMES)
    builder = Builder(flat, analysis, function.cores, copies, name, at_once, shapes=function.shapes)
    outputs = returned(flat)
    indices = {output: index for index, output in enumerate(dict.fromkeys(outputs))}
    write_nodes(builder)
    write_results(builder, list(indices), [Variance.VARYING] * len(indices))
    write_effects(builder)
    return Expansion(
        definition=builder.result,
        bodies=(*copies.written, *builder.bodies),
        reads=_only_read(flat, arguments),
        diverged=optimistic.diverged,
        must_separate=optimistic.must_separate,
        output_indices=tuple(indices[output] for output in outputs),
        repeated=builder.repeated(),
        joined=frozenset(analysis.plans.keys() - optimistic.plans.keys()),
        at_once=at_once,
    )


def _only_read(function: FunctionDef, arguments: Arguments) -> frozenset[str]:
    handles = {name for name, argument in arguments.items() if argument.per_replica}
    for node in function.node_def:
        if node.op != "ReadVariableOp":
            handles.difference_update(source.source for source in data_inputs(node))
    return frozenset(handles)
