"""The forms in which one tensor holds all replicas' values, and how a node takes and gives them."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tpunb.tensorflow.virtual.graph.function_def import Sizes
from tpunb.tensorflow.virtual.private_names import AttrValue, NodeDef, dtypes, op_def_registry


class Form(enum.Enum):
    """A form of the values that replicas have for one tensor.

    Attributes:
        SHARED: The single value that all replicas share.
        ROWS: The values one after the other along axis 0: R tensors [B, ...] become [R*B, ...].
        STACKED: The values along a new axis 0: R tensors [...] become [R, ...].
        INNER: The values along axis 1: R tensors [T, B, ...] become [T, R*B, ...], and R tensors
            [T] become [T, R].
        SUMMED: The sum of the values.
        LISTED: One list of tensors. Each element holds the elements of the replicas' lists as rows,
            or stacked if they have no axes.
    """

    SHARED = enum.auto()
    ROWS = enum.auto()
    STACKED = enum.auto()
    INNER = enum.auto()
    SUMMED = enum.auto()
    LISTED = enum.auto()


@dataclasses.dataclass(frozen=True)
class Take:
    """The form in which a joined node takes an input.

    Attributes:
        form: The form.
        sizes: The shape that each replica's value is reshaped to first; None for its own.
        constant: Integers that replace the input.
        dtype: The type of these integers.
    """

    form: Form
    sizes: Sizes | None = None
    constant: np.ndarray | None = None
    dtype: dtypes.DType = dtypes.int32

    def __str__(self) -> str:
        if self.constant is not None:
            return str(self.constant.tolist())
        form = self.form.name.lower()
        return form if self.sizes is None else f"{form} of {list(self.sizes)}"


SHARED = Take(Form.SHARED)
ROWS = Take(Form.ROWS)
STACKED = Take(Form.STACKED)
INNER = Take(Form.INNER)
SUMMED = Take(Form.SUMMED)
LISTED = Take(Form.LISTED)


def listed_shape(shape: np.ndarray | None, replicas: int) -> np.ndarray:
    """Return the shape of the elements of one list for all replicas."""
    if shape is None or shape.ndim != 1 or np.any(shape < 0):
        return np.asarray(-1)
    return np.asarray([replicas * shape[0], *shape[1:]] if shape.size else [replicas])


@dataclasses.dataclass(frozen=True)
class Plan:
    """The way in which one joined node replaces a node of every replica.

    Attributes:
        takes: The form in which it takes each of its inputs.
        gives: The form of each of its outputs.
        op: Its operation, if it differs from the replicas' operation.
        attributes: Attributes that differ from the replicas' attributes.
        gain: Its saving compared with a node for each replica, in nodes for each replica.
        bodies: The joined functions of a loop or a branch: a `Body` for each name.
    """

    takes: Sequence[Take]
    gives: Sequence[Form]
    op: str = ""
    attributes: Mapping[str, AttrValue] = dataclasses.field(default_factory=dict)
    gain: float = 1.0
    bodies: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        takes = ", ".join(map(str, self.takes))
        gives = ", ".join(form.name.lower() for form in self.gives)
        return f"{takes} -> {gives}" + (f", as {self.op}" if self.op else "")

    @property
    def output(self) -> str:
        """The suffix of references to the only output of another operation."""
        return f":{op_def_registry.get(self.op).output_arg[0].name}:0" if self.op else ""


@dataclasses.dataclass(frozen=True)
class Input:
    """An input of a node, as the rules see it.

    Attributes:
        sizes: The input's shape.
        dtype: The input's type.
        varies: Whether replicas have values of their own.
        value: Returns the input's value if it is a constant, or else None.
    """

    sizes: Sizes
    dtype: dtypes.DType
    varies: bool
    value: Callable[[], np.ndarray | None]

    def integers(self) -> list[int] | None:
        """Return the value as a list of integers; None if it is not known."""
        value = self.value()
        return None if value is None else [int(number) for number in np.ravel(value)]


def constant(values: int | Sequence[int] | np.ndarray, like: Input | None = None) -> Take:
    """Return integers, or a single integer, that replace an input."""
    dtype = dtypes.int32 if like is None else like.dtype
    return Take(Form.SHARED, constant=np.asarray(values, dtype.as_numpy_dtype), dtype=dtype)


@dataclasses.dataclass(frozen=True)
class KnownNode:
    """A node of the replica function, as the rules see it.

    Attributes:
        definition: The node as it was traced.
        inputs: Its inputs.
        outputs: The shapes of its outputs.
        replicas: The number of replicas.
        summed: Whether only the sum of the replicas' results is used.
    """

    definition: NodeDef
    inputs: Sequence[Input]
    outputs: Sequence[Sizes]
    replicas: int
    summed: bool = False

    def rows(self, sizes: Sizes) -> Sizes:
        """Return the shape of all replicas' values of a shape one after the other."""
        return (self.replicas * sizes[0], *sizes[1:])

    def stacked(self, sizes: Sizes) -> Sizes:
        """Return the shape of all replicas' values of a shape along a new axis."""
        return (self.replicas, *sizes)

    def plan(
        self,
        takes: Sequence[Take],
        gives: Form,
        op: str = "",
        attributes: Mapping[str, AttrValue] | None = None,
        gain: float = 1.0,
    ) -> Plan:
        """Return a plan by which all outputs have one form."""
        return Plan(takes, [gives] * len(self.outputs), op, attributes or {}, gain)


Rule = Callable[[KnownNode], Plan | None]
"""Returns a plan for a node that does the work of all replicas' nodes; None if it cannot."""

REAL = frozenset(
    {dtypes.bool, dtypes.bfloat16, dtypes.float16, dtypes.float32, dtypes.float64}
    | {dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64}
    | {dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64}
)
"""The types of tensors that are joined. `tests/joining` tries the rules with all of them."""


@dataclasses.dataclass(frozen=True)
class JoiningRule:
    """A rule, and the nodes of an operation for which it holds.

    Attributes:
        rule: The rule.
        attributes: The attributes that may have any value, unless the rule itself checks them. All
            others must have the operation's default.
        varying: The indices of the inputs that may vary; None for any.
    """

    rule: Rule
    attributes: frozenset[str]
    varying: Collection[int] | None

    def applies_to(self, node: NodeDef, types: Iterable[dtypes.DType]) -> bool:
        """Return whether the rule is for a node."""
        definition = op_def_registry.get(node.op)
        defaults = {attribute.name: attribute for attribute in definition.attr}
        arguments = (*definition.input_arg, *definition.output_arg)
        counts = {argument.number_attr for argument in arguments}
        return REAL.issuperset(types) and all(
            name in self.attributes | counts | _UNIMPORTANT
            or (name in defaults and defaults[name].type == "type")
            or (name in defaults and defaults[name].default_value == value)
            for name, value in node.attr.items()
        )

    def plan(self, node: KnownNode) -> Plan | None:
        """Return the plan for a node for which the rule holds, or None."""
        if self.varying is not None:
            varying = {index for index, tensor in enumerate(node.inputs) if tensor.varies}
            if not varying.issubset(self.varying):
                return None
        return self.rule(node)


_UNIMPORTANT = frozenset({"_class", "_has_manual_control_dependencies", "_output_shapes"})
"""Attributes that do not affect what a node computes."""


def rules_for(
    rule: Rule, operations: str, attributes: str = "", varying: Collection[int] | None = None
) -> dict[str, JoiningRule]:
    """Return a rule for some operations.

    Args:
        rule: The rule.
        operations: The operations' names, separated by spaces.
        attributes: The attributes that may have any value, separated by spaces.
        varying: The indices of the inputs that may vary; None for any.
    """
    joining_rule = JoiningRule(rule, frozenset(attributes.split()), varying)
    return dict.fromkeys(operations.split(), joining_rule)
