"""The words for what differs between the replicas: of values, arguments and nodes."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from tpunb.virtual._tensorflow import FunctionDef, NodeDef
from tpunb.virtual.graph.function_def import Reference
from tpunb.virtual.graph.static_tensors import StaticTensors
from tpunb.virtual.replicate.joined_forms import Form, Plan
from tpunb.virtual.variable_copies import Resource


class Variance(enum.IntEnum):
    """How much a value differs between replicas, from the least to the most.

    Attributes:
        CHEAP_INVARIANT: The same on every replica and cheap: each core that needs it
            computes it for itself, unless nodes on one device do for all what each would.
        INVARIANT: The same on every replica, and expensive or the result of a
            collective: computed once and broadcast.
        VARYING: Every replica has its own.
    """

    CHEAP_INVARIANT = 0
    INVARIANT = 1
    VARYING = 2


class Passing(enum.Enum):
    """How an argument of a replica function reaches the replicas.

    Attributes:
        SHARED: One value for all.
        INVARIANT: One value for all, which is the result of a collective.
        VARYING: A value for each replica.
        STACKED: One tensor of a value for each replica, by default along a new axis 0.
        MIRRORED: A handle for each replica of a variable that is kept in sync.
        LOCAL: A handle for each replica of a variable that is its own.
    """

    SHARED = enum.auto()
    INVARIANT = enum.auto()
    VARYING = enum.auto()
    STACKED = enum.auto()
    MIRRORED = enum.auto()
    LOCAL = enum.auto()


_VARIANCES = {
    Passing.SHARED: Variance.CHEAP_INVARIANT,
    Passing.INVARIANT: Variance.INVARIANT,
    Passing.VARYING: Variance.VARYING,
    Passing.STACKED: Variance.VARYING,
    Passing.MIRRORED: Variance.CHEAP_INVARIANT,
    Passing.LOCAL: Variance.VARYING,
}
_PASSINGS = {
    Variance.CHEAP_INVARIANT: Passing.SHARED,
    Variance.INVARIANT: Passing.INVARIANT,
    Variance.VARYING: Passing.VARYING,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a replica function.

    Attributes:
        passing: How it reaches the replicas.
        key: What identifies a mirrored variable for as long as it lives; else empty.
        home: The logical device that holds a variable.
        copy_type: The type of a variable's value where every logical device has a copy
            of it, as protocol buffers number it; else None. After the handles of all
            replicas come those of the copies, for each replica in the order of its
            logical devices.
        diverged: Whether the copies of a mirrored variable may differ between replicas.
        merged: Whether its copies in one process share a resource, or did when the function
            was traced: then there is a handle for each process.
        resources: What the copies are kept in since they were split; None for those whose
            handle is passed.
        form: Of one tensor of all replicas' values.
    """

    passing: Passing
    key: str = ""
    home: int = 0
    copy_type: int | None = None
    diverged: bool = False
    merged: bool = False
    resources: Sequence[Resource | None] = ()
    form: Form = Form.STACKED

    @property
    def is_mirrored(self) -> bool:
        """Whether it is a variable that is kept in sync."""
        return self.passing is Passing.MIRRORED

    @property
    def is_stacked(self) -> bool:
        """Whether it is one tensor of all replicas' values."""
        return self.passing is Passing.STACKED

    @property
    def is_component(self) -> bool:
        """Whether it is a handle for each replica of its component of a variable."""
        return self.passing in {Passing.MIRRORED, Passing.LOCAL}

    @property
    def per_replica(self) -> bool:
        """Whether there are as many values as replicas."""
        return self.passing is Passing.VARYING or self.is_component

    @property
    def is_merged(self) -> bool:
        """Whether its copies in one process share a resource."""
        return self.merged and not self.resources

    @property
    def variance(self) -> Variance:
        """How much its value, or that of its variable, differs between replicas."""
        return Variance.VARYING if self.diverged else _VARIANCES[self.passing]


def mark_diverged(argument: Argument) -> Argument:
    """A mirrored variable whose copies may differ."""
    return dataclasses.replace(argument, diverged=True)


def body_arguments(
    names: Sequence[str],
    sources: Sequence[Reference],
    variances: Sequence[Variance],
    arguments: Mapping[str, Argument],
) -> dict[str, Argument]:
    """How the inputs of lifted control flow reach its body.

    Args:
        names: The body's arguments.
        sources: Where each comes from in the function around it.
        variances: How much each differs between replicas.
        arguments: The arguments of the function around it.

    Returns:
        The arguments of the body, by name.
    """
    inner = {}
    for name, source, variance in zip(names, sources, variances, strict=True):
        outer = arguments.get(source.source)
        if outer is not None and outer.is_component:
            # The function around the body updates the copies on other logical devices, and
            # hands over a handle for each resource.
            inner[name] = dataclasses.replace(
                outer, copy_type=None, merged=outer.is_merged, resources=()
            )
        else:
            inner[name] = Argument(_PASSINGS[variance])
    return inner


class Role(enum.Enum):
    """What becomes of a node when the function is written for all replicas.

    Attributes:
        COMPUTE: It is copied for each replica, or for the first if all share its value.
        UPDATE: It updates every copy of a variable with one value, computed once.
        COLLECTIVE: It is wired between the replicas.
        LIFTED: It is control flow containing collectives, and runs once for all replicas.
        JOINED: One node does it on the values of all replicas, joined in one tensor.
    """

    COMPUTE = enum.auto()
    UPDATE = enum.auto()
    COLLECTIVE = enum.auto()
    LIFTED = enum.auto()
    JOINED = enum.auto()


@dataclasses.dataclass(frozen=True)
class Analysis:
    """What is known of each node of a replica function.

    Attributes:
        order: The nodes, each after its inputs.
        variances: How much a node's outputs differ, by its name.
        output_variances: The same for each output of a lifted node, and of a loop or a branch
            that goes the same way on every replica.
        roles: What becomes of a node, by its name.
        arguments: The function's arguments; those whose copies a replica may set on
            its own have diverged.
        plans: How joined nodes do it, by their names.
        statics: What is known of the function's tensors, if nodes are joined.
        apart: The names of merged arguments that each replica changes for itself.
    """

    order: Sequence[NodeDef]
    variances: Mapping[str, Variance]
    output_variances: Mapping[str, Sequence[Variance]]
    roles: Mapping[str, Role]
    arguments: Mapping[str, Argument]
    plans: Mapping[str, Plan] = dataclasses.field(default_factory=dict)
    statics: StaticTensors | None = None
    apart: AbstractSet[str] = frozenset()

    @property
    def diverged(self) -> frozenset[str]:
        """The names of the mirrored arguments whose copies may differ."""
        return frozenset(n for n, argument in self.arguments.items() if argument.diverged)

    @property
    def split(self) -> frozenset[str]:
        """The names of merged arguments whose copies may not share a resource."""
        return frozenset(self.apart | {n for n in self.diverged if self.arguments[n].is_merged})

    def variance(self, source: Reference) -> Variance:
        """How much a tensor differs between replicas."""
        name = source.source
        if name in self.output_variances:
            return self.output_variances[name][source.index]
        if name in self.variances:
            return self.variances[name]
        return self.arguments[name].variance

    def is_stacked(self, source: Reference) -> bool:
        """Whether a tensor is an argument that is one tensor of all replicas' values."""
        argument = self.arguments.get(source.source)
        return argument is not None and argument.is_stacked


@dataclasses.dataclass(frozen=True)
class Body:
    """How a function of a loop or a branch does for all replicas what it does on each.

    Attributes:
        function: The function of one replica.
        analysis: What of it varies, with the plans of its nodes.
        gives: The form of each of its results.
    """

    function: FunctionDef
    analysis: Analysis
    gives: Sequence[Form]
