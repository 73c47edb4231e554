"""Updates by which each replica gives its copy of a variable a value of its own."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tpunb.errors.code_problems import SourceLine, is_library
from tpunb.tensorflow.virtual.copies.variable_copies import Copies
from tpunb.tensorflow.virtual.graph.function_def import (
    READS,
    Library,
    called_functions,
    data_inputs,
    only_updates,
)
from tpunb.tensorflow.virtual.graph.traced_function import SourceLines, TracedFunction
from tpunb.tensorflow.virtual.private_names import FunctionDef, NodeDef
from tpunb.tensorflow.virtual.replicate.divergence import Divergence, LocalUpdate
from tpunb.tensorflow.virtual.replicate.passes import ReplicaFunction
from tpunb.tensorflow.virtual.replicate.variance import Analysis, Arguments, Variance, analyze

_KERAS_VARIABLES = "/keras/src/backend/"
"""The folder of the code by which a Keras variable assigns to TensorFlow's."""


def note_local_updates(
    traced: TracedFunction,
    function: ReplicaFunction,
    arguments: Arguments,
    before: Collection[str],
    divergence: Divergence,
) -> None:
    """Note the first update of each variable whose copies may differ because of a function.

    Updates of variables whose copies rightly differ are not noted.

    Args:
        traced: The function as it was traced.
        function: The function, which has been written out for all replicas.
        arguments: The way in which its arguments reach the replicas.
        before: The keys of the variables whose copies could differ before.
        divergence: The strategy's record of copies.
    """
    new = divergence.variables.difference(before)
    names = {argument.key: name for name, argument in arguments.items() if argument.key in new}
    if not names:
        return
    analysis = analyze(function.computed, arguments, function.inlined_library)
    lines = SourceLines(traced.atomic)
    for key, name in names.items():
        copies = divergence.copies(key)
        equal = {n.name for n in analysis.order if _sets_all_alike(n, name, analysis)}
        path = _update(function.computed, name, function.inlined_library, equal)
        if copies is not None and path and not _rightly_differ(copies, lines.frames(path)):
            divergence.updates[key] = LocalUpdate(copies.name, tuple(lines.own(path)))


def _rightly_differ(copies: Copies, frames: Sequence[SourceLine]) -> bool:
    """Return whether each replica is meant to have its own value of a variable.

    Libraries keep such values: Keras's batch normalization its moving statistics, and its random
    layers their states.

    Args:
        copies: The copies of the variable.
        frames: The calls that led to the update, innermost first.
    """
    if copies.is_trainable:
        return False
    files = (frame.file for frame in frames if _KERAS_VARIABLES not in frame.file)
    return is_library(next(files, ""))


def _sets_all_alike(node: NodeDef, argument: str, analysis: Analysis) -> bool:
    """Return whether a node sets all copies of the variable that is an argument to one value."""
    values = [source for source in data_inputs(node) if source.source != argument]
    return only_updates(node) and all(
        analysis.variance(value) is Variance.INVARIANT for value in values
    )


def _update(
    function: FunctionDef, argument: str, library: Library, equal: Collection[str] = ()
) -> str:
    """Return the path of the first node that may set the variable that is an argument.

    Args:
        function: The function.
        argument: The name of the argument.
        library: Finds the functions of its loops and branches.
        equal: The nodes that set all copies alike.
    """
    for node in function.node_def:
        if node.op in READS or node.name in equal:
            continue
        for index, source in enumerate(data_inputs(node)):
            if source.source != argument:
                continue
            bodies = list(map(library, called_functions(node)))
            if not bodies:
                return str(node.name)
            for body in bodies:
                inner = index - len(data_inputs(node)) + len(body.signature.input_arg)
                if path := _update(body, body.signature.input_arg[inner].name, library):
                    return f"{node.name}/{path}"
    return ""
