"""The scalar constants by which a replica function scales its loss or gradients, and edits of them.

A number of replicas or of examples that Python computed is such a constant. The graph does not say
what it means. An edit shows what changes with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from tpunb.virtual._tensorflow import EagerTensor, FunctionDef, NodeDef, dtypes, tensor_util
from tpunb.virtual.graph.function_def import KnownSizes, data_inputs, new_constant

_DIVIDES = frozenset({"RealDiv", "Div", "DivNoNan"})
_SCALES = frozenset({"Mul"}) | _DIVIDES
_MOST_AXES = 3
"""A loss, or the losses of a batch or of an image's lines, have at most so many axes."""


@dataclasses.dataclass(frozen=True)
class ScalarConstant:
    """A scalar that multiplies or divides tensors.

    Attributes:
        name: The constant's node, or the argument of the replica function that has its value.
        value: The value.
        dtype: The type.
        divides: Whether tensors are divided by it; otherwise they are multiplied.
        is_after: Whether it scales what is computed from gradients.
        is_of_loss: Whether it may scale a loss, because a tensor that it scales has few axes.
    """

    name: str
    value: float
    dtype: dtypes.DType
    divides: bool
    is_after: bool
    is_of_loss: bool

    @property
    def divisor(self) -> float:
        """The number by which tensors are divided; 0 if they are multiplied by zero."""
        if self.divides:
            return self.value
        return 1 / self.value if self.value else 0.0

    def with_divisor(self, divisor: float) -> float:
        """Return the value that divides by another number."""
        return divisor if self.divides else 1 / divisor


Edits = Mapping[int, float]
"""New values of constants, by the constants' places among the constants of a trace."""


def scalar_constants(
    function: FunctionDef, graph: Any, sizes: KnownSizes, gradients: Collection[str]
) -> list[ScalarConstant]:
    """Return the scalars that multiply or divide tensors.

    Args:
        function: A replica function.
        graph: Its graph.
        sizes: The known shapes of its tensors.
        gradients: The arguments from which its gradients are made.
    """
    users: dict[str, list[NodeDef]] = {}
    for node in function.node_def:
        for source in data_inputs(node):
            users.setdefault(source.source, []).append(node)
    after = _made_of(gradients, users)
    found = []
    for name, value, kind in _scalars(function, graph):
        reached = list(_reached(name, users))
        scaled = [node for node, _ in reached if node.op in _SCALES]
        if not scaled or not (kind.is_floating or len(scaled) == len(reached)):
            continue  # a whole number that is also a size or a bound of a loop stays as it is
        is_after = all(node.name in after for node in scaled)
        few = any(len(sizes.get((node.name, 0), ())) <= _MOST_AXES for node in scaled)
        divides = any(node.op in _DIVIDES and at for node, at in reached)
        found.append(ScalarConstant(name, value, kind, divides, is_after, few and not is_after))
    return found


def _made_of(names: Collection[str], users: Mapping[str, list[NodeDef]]) -> set[str]:
    """Return the nodes that depend on arguments."""
    waiting, reached = list(names), set[str]()
    while waiting:
        for node in users.get(waiting.pop(), ()):
            if node.name not in reached:
                reached.add(node.name)
                waiting.append(node.name)
    return reached


def edited(function: FunctionDef, constant: ScalarConstant, new: float) -> FunctionDef:
    """Return a function with another value of a constant."""
    result = FunctionDef()
    result.CopyFrom(function)
    value = np.asarray(new, constant.dtype.as_numpy_dtype)
    name = f"{constant.name}/edited"
    for node in result.node_def:
        for place, text in enumerate(node.input):
            if not text.startswith("^") and text.partition(":")[0] == constant.name:
                node.input[place] = f"{name}:output:0"
    result.node_def.append(new_constant(name, value, constant.dtype, ""))
    return result


def _scalars(function: FunctionDef, graph: Any) -> Iterator[tuple[str, float, dtypes.DType]]:
    for node in function.node_def:
        if node.op == "Const" and not node.attr["value"].tensor.tensor_shape.dim:
            kind = dtypes.as_dtype(node.attr["dtype"].type)
            if kind.is_floating or kind.is_integer:
                value = tensor_util.MakeNdarray(node.attr["value"].tensor)
                yield node.name, float(value), kind
    outside = {id(inner): outer for outer, inner in graph.captures}
    for argument, inner in zip(function.signature.input_arg, graph.inputs, strict=True):
        outer = outside.get(id(inner))
        if not isinstance(outer, EagerTensor) or outer.shape.rank != 0:
            continue
        if outer.dtype.is_floating or outer.dtype.is_integer:
            yield argument.name, float(outer.numpy()), outer.dtype


def _reached(name: str, users: Mapping[str, list[NodeDef]]) -> Iterator[tuple[NodeDef, int]]:
    """Yield the nodes that use a scalar, also after a cast, each with the place of the input."""
    for node in users.get(name, ()):
        if node.op in {"Cast", "Identity"}:
            yield from _reached(node.name, users)
        else:
            places = [source.source for source in data_inputs(node)]
            yield node, places.index(name)
