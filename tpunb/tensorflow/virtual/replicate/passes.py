"""The passes over a replica function before it is written for all replicas, in order.

`ReplicaFunction.computed` makes all passes, with the reason for each pass and for its place.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tpunb.tensorflow.virtual.graph.function_def import (
    LOOPS,
    READS,
    SLICE_MASKS,
    KnownSizes,
    Library,
    Reference,
    Sizes,
    StaticTensors,
    called_functions,
    control_inputs,
    data_inputs,
    has_effects,
    in_topological_order,
    is_stateful,
    new_constant,
    reference,
)
from tpunb.tensorflow.virtual.graph.rewrite import Rewrite, inlined
from tpunb.tensorflow.virtual.private_names import (
    FunctionDef,
    NodeDef,
    dtypes,
    op_def_registry,
)
from tpunb.tensorflow.virtual.replicate.matrix_unit import MatrixUnit


@dataclasses.dataclass(frozen=True)
class ReplicaFunction:
    """A traced replica function, and the cores that it is written out for.

    Attributes:
        definition: The function, its calls inlined; it is not changed.
        library: Finds the functions that it calls.
        cores: The devices of each replica, its logical devices in order.
        shapes: The convolutions of batches of unknown size, as `unknown_sizes` finds them; None if
            all sizes are known.
        unit: Rounds as a TPU's matrix unit does; None for no rounding.
        at_once: The number of replicas that run at a time; None for all.
        sizes: The shapes of the function's tensors; None to keep the replicas' values separate.
        body_sizes: Finds the shapes of the tensors of a function of control flow; None to keep the
            replicas' control flow separate.
        most_joined: The total bytes that all joined values may take.
    """

    definition: FunctionDef
    library: Library
    cores: Sequence[Sequence[str]]
    shapes: Mapping[str, Sequence[int]] | None = None
    unit: MatrixUnit | None = None
    at_once: int | None = None
    sizes: KnownSizes | None = None
    body_sizes: Callable[[str], KnownSizes] | None = None
    most_joined: float = 0

    @functools.cached_property
    def computed(self) -> FunctionDef:
        """The function as the replicas compute it, after all passes."""
        # First: each dead read would be repeated on every replica, and the other passes see fewer
        # nodes. Inlining comes before, because the strict check needs it as well.
        function = _without_dead_reads(self.definition)
        if self.body_sizes is not None:
            # Before the shapes: a shape is known before a loop, and not after it.
            function = read_past_loops(function, self.inlined_library)
        # A shape is the same on every replica, though the value that is asked for it varies.
        function = with_constant_shapes(function, self.sizes)
        # Last: no other pass has to know the casts.
        return self.unit.rounded(function) if self.unit else function

    @functools.cached_property
    def inlined_library(self) -> Library:
        """The functions that it calls as replicas compute them, with their own calls inlined."""

        def inlined_body(name: str) -> FunctionDef:
            if self.unit:
                return self.unit.body(name, self.library)
            return inlined(self.library(name), self.library)

        return functools.cache(inlined_body)


_ASK = frozenset({"Rank", "Shape", "ShapeN", "Size"})
_SLICE = "StridedSlice"
_BROADCAST = "BroadcastGradientArgs"


def with_constant_shapes(function: FunctionDef, known: KnownSizes | None) -> FunctionDef:
    """Replace the known shapes that a function asks for with constants.

    A value that depends on a varying value counts as varying, unless it can be proved constant.
    Known shapes also tell the axes over which a gradient is summed.
    """
    constants = {} if known is None else _Constants(function, known).by_node()
    if not constants:
        return function
    rewrite = Rewrite(function)
    for node in function.node_def:
        if node.name in constants:
            for constant, replaced in _constants(node, constants[node.name]):
                rewrite.keep(constant)
                rewrite.replace({replaced: f"{constant.name}:output:0"})
        else:
            rewrite.keep(node)
    return rewrite.finish()


class _Constants:
    """The known values of nodes that ask for shapes."""

    def __init__(self, function: FunctionDef, known: KnownSizes) -> None:
        nodes = {node.name: node for node in function.node_def}
        self._order = in_topological_order(function.node_def)
        self._statics = StaticTensors(function, nodes, known)
        self._outputs: dict[str, list[Any]] = {}

    def by_node(self) -> Mapping[str, Sequence[Any]]:
        """Return the value of each output, for each such node."""
        rules = {
            **dict.fromkeys(_ASK, self._shapes),
            _SLICE: self._sliced,
            _BROADCAST: self._summed,
        }
        for node in self._order:
            values = rules[node.op](node) if node.op in rules else None
            if values is not None:
                self._outputs[node.name] = values
        return self._outputs

    def _shapes(self, node: NodeDef) -> list[Any] | None:
        """Return the shapes of a node's inputs, or their ranks or sizes; None if any is unknown."""
        shapes = [self._statics.sizes(source) for source in data_inputs(node)]
        if None in shapes:
            return None
        known: list[Sizes] = [sizes for sizes in shapes if sizes is not None]
        return [
            {"Rank": len(sizes), "Size": int(np.prod(sizes))}.get(node.op, sizes) for sizes in known
        ]

    def _sliced(self, node: NodeDef) -> list[Any] | None:
        """Return some sizes of a shape, or a single size."""
        values = self._values(node)
        masks = {key: node.attr[key].i for key in SLICE_MASKS}
        if values is None or masks["ellipsis_mask"] or masks["new_axis_mask"]:
            return None
        if any(source.source in self._outputs for source in data_inputs(node)[1:]):
            return None  # the choice of sizes may depend on sizes
        sizes, *bounds = values
        if sizes.dtype.kind != "i" or sizes.ndim != 1 or any(bound.size != 1 for bound in bounds):
            return None
        begin, end, stride = (int(bound[0]) for bound in bounds)
        if masks["shrink_axis_mask"]:
            return [sizes[begin]]
        first, last = (None if masks["begin_mask"] else begin), (None if masks["end_mask"] else end)
        return [sizes[first:last:stride]]

    def _summed(self, node: NodeDef) -> list[Any] | None:
        """Return the axes over which the gradients of two broadcast tensors are summed."""
        known = self._values(node)
        if known is None:
            return None
        rank = max(map(len, known))
        padded = [
            np.concatenate([np.ones(rank - len(sizes), sizes.dtype), sizes]) for sizes in known
        ]
        return [np.flatnonzero(sizes == 1) for sizes in padded]

    def _values(self, node: NodeDef) -> list[np.ndarray] | None:
        """Return the values of a node's inputs; None if any is unknown."""
        values = [self._value(source) for source in data_inputs(node)]
        known = [np.asarray(value) for value in values if value is not None]
        return known if len(known) == len(values) else None

    def _value(self, source: Reference) -> Any | None:
        if source.source in self._outputs:
            return self._outputs[source.source][self._statics.index(source)]
        return self._statics.value(source)


def _constants(node: NodeDef, values: Sequence[Any]) -> Iterator[tuple[NodeDef, str]]:
    """Yield constants for a node's outputs, each with the reference that it replaces."""
    outputs = op_def_registry.get(node.op).output_arg
    type_attribute = "T" if node.op in {_SLICE, _BROADCAST} else "out_type"
    dtype = (
        dtypes.as_dtype(node.attr[type_attribute].type)
        if type_attribute in node.attr
        else dtypes.int32
    )
    for index, value in enumerate(values):
        # Nodes that wait for the node wait for its first constant.
        name = f"{node.name}/known_{index}" if index else node.name
        constant = new_constant(name, np.asarray(value, dtype.as_numpy_dtype), dtype, node.device)
        constant.input.extend(f"^{name}" for name in control_inputs(node))
        # Several outputs have a name each, or are a list with one name.
        output = f"{outputs[index].name}:0" if len(outputs) > 1 else f"{outputs[0].name}:{index}"
        yield constant, f"{node.name}:{output}"


def read_past_loops(function: FunctionDef, library: Library) -> FunctionDef:
    """Read tensors that pass through a function's loops unchanged from before the loops.

    A gradient asks for the shape of a variable whose handle the loop returned.
    """
    instead: dict[str, str] = {}
    for node in function.node_def:
        bodies = map(library, called_functions(node)) if node.op in LOOPS else ()
        if node.op not in LOOPS or any(has_effects(body, library) for body in bodies):
            continue
        body = library(node.attr["body"].func.name)
        pairs = zip(body.signature.input_arg, body.signature.output_arg, strict=True)
        for index, (source, (parameter, result_)) in enumerate(
            zip(data_inputs(node), pairs, strict=True)
        ):
            if body.ret[result_.name] == parameter.name:
                instead[f"{node.name}:output:{index}"] = f"{source.source}{source.suffix}"
    if not instead:
        return function
    result = FunctionDef()
    result.CopyFrom(function)
    for node in result.node_def:
        if is_stateful(node) and node.op not in READS:
            continue  # the loop must have ended before anything is written
        for index, text in enumerate(node.input):
            node.input[index] = _before(text, instead)
    for name, text in function.ret.items():
        result.ret[name] = _before(text, instead)
    return result


def _before(text: str, instead: dict[str, str]) -> str:
    """Return the value that was passed on, possibly through several loops."""
    while text in instead:
        text = instead[text]
    return text


def _without_dead_reads(function: FunctionDef) -> FunctionDef:
    """Drop a function's reads of variables whose values nothing takes.

    An assignment of a variable also returns the new value, by a read that is rarely used. Nodes
    that wait for such a read wait for the nodes that the read was waiting for.
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
