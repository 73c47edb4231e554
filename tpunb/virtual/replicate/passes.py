"""What is done to a replica function before it is written for all replicas, in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tpunb.virtual._tensorflow import FunctionDef
from tpunb.virtual.graph.function_def import Library, control_inputs, data_inputs, reference
from tpunb.virtual.graph.rewrite import Rewrite
from tpunb.virtual.graph.static_tensors import KnownSizes
from tpunb.virtual.replicate.additions import with_additions
from tpunb.virtual.replicate.constant_shapes import with_constant_shapes
from tpunb.virtual.replicate.handed_on import handed_on
from tpunb.virtual.replicate.matrix_unit import MatrixUnit


@dataclasses.dataclass(frozen=True)
class Known:
    """What the passes are told.

    Attributes:
        sizes: The shapes of the function's tensors; None where nothing is joined, and
            shapes are left as they are.
        library: Finds the functions of loops, their calls inlined; None where loops are not joined.
        unit: Rounds what a TPU's matrix unit would; None for nothing.
    """

    sizes: KnownSizes | None = None
    library: Library | None = None
    unit: MatrixUnit | None = None


@dataclasses.dataclass(frozen=True)
class Pass:
    """A function from one replica function to another that computes the same.

    Attributes:
        name: What it does.
        reason: Why, and why at its place.
        rewrite: Gives the new function, or the same if there is nothing to do. The function that
            it is given has its calls inlined, and is not changed.
    """

    name: str
    reason: str
    rewrite: Callable[[FunctionDef, Known], FunctionDef]


def _without_dead_reads(function: FunctionDef, _: Known) -> FunctionDef:
    """A function without the reads of variables whose values nothing takes.

    What assigns a variable gives its new value too, by a read that few use. What waits
    for such a read waits for what it was waiting for.
    """
    used = {source.source for node in function.node_def for source in data_inputs(node)}
    used.update(reference(text).source for text in function.ret.values())
    dead = {
        node.name
        for node in function.node_def
        if node.op == "ReadVariableOp" and node.name not in used
    }
    if not dead:
        return function
    rewrite = Rewrite(function)
    for node in function.node_def:
        if node.name in dead:
            rewrite.drop(node.name, control_inputs(node))
        else:
            rewrite.keep(node)
    return rewrite.finish()


def _handed_on(function: FunctionDef, known: Known) -> FunctionDef:
    return function if known.library is None else handed_on(function, known.library)


def _with_constant_shapes(function: FunctionDef, known: Known) -> FunctionDef:
    return function if known.sizes is None else with_constant_shapes(function, known.sizes)


def _with_additions(function: FunctionDef, known: Known) -> FunctionDef:
    return function if known.sizes is None else with_additions(function, known.sizes)


def _rounded(function: FunctionDef, known: Known) -> FunctionDef:
    return function if known.unit is None else known.unit.rounded(function)


PASSES = (
    Pass(
        "drop dead reads",
        "Each would be repeated on every replica. First: fewer nodes for the others.",
        _without_dead_reads,
    ),
    Pass(
        "read what loops hand on from before them",
        "Its shape is then known, though the loop's is not. Before the shapes, which need it.",
        _handed_on,
    ),
    Pass(
        "make known shapes constant",
        "A shape is the same on every replica, though the value that is asked for it varies.",
        _with_constant_shapes,
    ),
    Pass(
        "add in place",
        "`v.assign(v + x)` is one node in place of three. After dead reads, which read `v` too.",
        _with_additions,
    ),
    Pass(
        "round to bfloat16",
        "What a TPU's matrix unit does. Last: no other pass has to know the casts.",
        _rounded,
    ),
)
"""All passes, in their order. Inlining comes before them: the strict check needs it as well."""


def simplified(function: FunctionDef, known: Known) -> FunctionDef:
    """A replica function after all passes.

    Args:
        function: The function, its calls inlined; it is not changed.
        known: What the passes are told.
    """
    for one in PASSES:
        function = one.rewrite(function, known)
    return function
