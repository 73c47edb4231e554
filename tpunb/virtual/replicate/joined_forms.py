"""The forms in which values of all replicas are one tensor, and how a node takes and gives them."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tpunb.virtual._tensorflow import AttrValue, NodeDef, dtypes, op_def_registry
from tpunb.virtual.graph.function_def import Sizes


class Form(enum.Enum):
    """A form of the values that replicas have for one tensor.

    Attributes:
        SHARED: The one value that all have.
        ROWS: The values one after the other along axis 0: of R times [B, ...], [R*B, ...].
        STACKED: The values along a new axis 0: of R times [...], [R, ...].
        INNER: The values along axis 1: of R times [T, B, ...], [T, R*B, ...], and of [T], [T, R].
        SUMMED: Their sum.
        LISTED: One list of tensors, each of which is those of the replicas' lists as rows, or
            stacked if they have no axes.
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
        form: In which form.
        sizes: The shape that each replica's value is given before; None for its own.
        constant: Integers that are taken in place of the input.
        kind: Their type.
    """

    form: Form
    sizes: Sizes | None = None
    constant: np.ndarray | None = None
    kind: dtypes.DType = dtypes.int32


SHARED = Take(Form.SHARED)
ROWS = Take(Form.ROWS)
STACKED = Take(Form.STACKED)
INNER = Take(Form.INNER)
SUMMED = Take(Form.SUMMED)
LISTED = Take(Form.LISTED)

FRESH = frozenset({"EmptyTensorList", "TensorListReserve"})
"""What makes lists without elements."""


def listed_shape(shape: np.ndarray | None, replicas: int) -> np.ndarray:
    """The shape of the elements of one list for all replicas."""
    if shape is None or shape.ndim != 1 or np.any(shape < 0):
        return np.asarray(-1)
    return np.asarray([replicas * shape[0], *shape[1:]] if shape.size else [replicas])


@dataclasses.dataclass(frozen=True)
class Plan:
    """The way one joined node replaces a node of every replica.

    Attributes:
        takes: How it takes each of its inputs.
        gives: The form of each of its outputs.
        op: Its operation, if that is another than the replicas'.
        attributes: Attributes that differ from the replicas'.
        gain: What it saves against a node for each replica, in nodes for each replica.
        bodies: How the functions of a loop or a branch do it: for each name a `Body`.
    """

    takes: Sequence[Take]
    gives: Sequence[Form]
    op: str = ""
    attributes: Mapping[str, AttrValue] = dataclasses.field(default_factory=dict)
    gain: float = 1.0
    bodies: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def output(self) -> str:
        """The suffix of references to the only output of another operation."""
        return f":{op_def_registry.get(self.op).output_arg[0].name}:0" if self.op else ""


@dataclasses.dataclass(frozen=True)
class Input:
    """An input of a node, as the rules see it.

    Attributes:
        sizes: Its shape.
        dtype: Its type.
        varies: Whether replicas have values of their own.
        value: Gives its value, if it is a constant; else None.
    """

    sizes: Sizes
    dtype: dtypes.DType
    varies: bool
    value: Callable[[], np.ndarray | None]

    def integers(self) -> list[int] | None:
        """Its value as a list of integers; None if it is not known."""
        value = self.value()
        return None if value is None else [int(one) for one in np.ravel(value)]


def constant(values: int | Sequence[int] | np.ndarray, like: Input | None = None) -> Take:
    """Integers, or one alone, in place of an input."""
    kind = dtypes.int32 if like is None else like.dtype
    return Take(Form.SHARED, constant=np.asarray(values, kind.as_numpy_dtype), kind=kind)


@dataclasses.dataclass(frozen=True)
class Seen:
    """A node of the replica function, as the rules see it.

    Attributes:
        node: The node.
        inputs: Its inputs.
        outputs: The shapes of what it gives.
        replicas: How many replicas there are.
        summed: Whether only the sum of what the replicas give is used.
    """

    node: NodeDef
    inputs: Sequence[Input]
    outputs: Sequence[Sizes]
    replicas: int
    summed: bool = False

    def rows(self, sizes: Sizes) -> Sizes:
        """The shape of all replicas' values of a shape one after the other."""
        return (self.replicas * sizes[0], *sizes[1:])

    def stacked(self, sizes: Sizes) -> Sizes:
        """The shape of all replicas' values of a shape along a new axis."""
        return (self.replicas, *sizes)

    def plan(
        self,
        takes: Sequence[Take],
        gives: Form,
        op: str = "",
        attributes: Mapping[str, AttrValue] | None = None,
        gain: float = 1.0,
    ) -> Plan:
        """A plan by which all outputs have one form."""
        return Plan(takes, [gives] * len(self.outputs), op, attributes or {}, gain)


Rule = Callable[[Seen], Plan | None]
"""Finds how a node does what it does for all replicas; None if it cannot."""

REAL = frozenset(
    {dtypes.bool, dtypes.bfloat16, dtypes.float16, dtypes.float32, dtypes.float64}
    | {dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64}
    | {dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64}
)
"""The types of tensors that are joined. `tests/joining` tries the rules with all of them."""


@dataclasses.dataclass(frozen=True)
class Holding:
    """A rule, and for which nodes of an operation it holds.

    Attributes:
        rule: The rule.
        attributes: The attributes that may have any value, as far as the rule itself does not
            look at them; others have the operation's default.
        varying: The places of the inputs that may vary; None for any.
    """

    rule: Rule
    attributes: frozenset[str]
    varying: Collection[int] | None

    def holds(self, node: NodeDef, kinds: Iterable[dtypes.DType]) -> bool:
        """Return whether the rule is for a node."""
        definition = op_def_registry.get(node.op)
        defaults = {one.name: one for one in definition.attr}
        arguments = (*definition.input_arg, *definition.output_arg)
        counts = {one.number_attr for one in arguments}
        return REAL.issuperset(kinds) and all(
            name in self.attributes | counts | _UNIMPORTANT
            or (name in defaults and defaults[name].type == "type")
            or (name in defaults and defaults[name].default_value == value)
            for name, value in node.attr.items()
        )

    def plan(self, seen: Seen) -> Plan | None:
        """The plan for a node for which it holds; None if there is none."""
        if self.varying is not None:
            varying = {place for place, one in enumerate(seen.inputs) if one.varies}
            if not varying.issubset(self.varying):
                return None
        return self.rule(seen)


_UNIMPORTANT = frozenset({"_class", "_has_manual_control_dependencies", "_output_shapes"})
"""Attributes that say nothing of what a node computes."""


def holding(
    rule: Rule, operations: str, attributes: str = "", varying: Collection[int] | None = None
) -> dict[str, Holding]:
    """A rule for some operations.

    Args:
        rule: The rule.
        operations: Their names, in one text.
        attributes: Those of their attributes whose every value it is for, in one text.
        varying: The places of the inputs that may vary; None for any.
    """
    one = Holding(rule, frozenset(attributes.split()), varying)
    return dict.fromkeys(operations.split(), one)
