"""The handles by which a function for all replicas reaches their copies of variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tpunb.virtual._tensorflow import AttrValue
from tpunb.virtual.graph.function_def import Reference
from tpunb.virtual.graph.nodes import argument_name, type_of
from tpunb.virtual.replicate.variance import Argument
from tpunb.virtual.variable_copies import Resource, leads

AddNode = Callable[..., str]
"""Writes a node and gives its name: of its operation, its name, its device and its inputs."""


class Handles:
    """The handles of a function's variables.

    Args:
        arguments: The arguments of the replica function, by name.
        devices: Where each replica's copies are.
        add: Writes a node.
    """

    def __init__(
        self, arguments: Mapping[str, Argument], devices: Sequence[str], add: AddNode
    ) -> None:
        self._arguments = arguments
        self._add = add
        self._leads = leads(devices)
        self._firsts = sorted(set(self._leads))
        self._written: dict[tuple[str, int], str] = {}

    def is_merged(self, source: Reference) -> bool:
        """Whether a tensor is the handle of a copy that the replicas of a process share."""
        argument = self._arguments.get(source.source)
        return argument is not None and argument.is_merged

    def holder(self, source: Reference, replica: int) -> int:
        """The replica whose copy a replica uses: the first that shares it, or itself."""
        return self._leads[replica] if self.is_merged(source) else replica

    def holders(self, source: Reference) -> Sequence[int]:
        """The replicas whose copies there are."""
        return self._firsts if self.is_merged(source) else range(len(self._leads))

    def sharing(self, source: Reference, replica: int) -> Sequence[int]:
        """The replicas that use a replica's copy."""
        if not self.is_merged(source):
            return [replica]
        return [other for other, lead in enumerate(self._leads) if lead == replica]

    def passed(self, argument: Argument) -> Sequence[int]:
        """The replicas whose handle of a variable is an argument of the function."""
        return self._firsts if argument.merged else range(len(self._leads))

    def tensor(self, name: str, replica: int) -> str:
        """A replica's handle of a variable, whose copies are merged or have been so.

        Args:
            name: The argument that is the variable.
            replica: The replica.
        """
        resources = self._arguments[name].resources
        resource = resources[replica] if resources else None
        if resource is None:
            return argument_name(name, self._leads[replica])
        if (name, replica) not in self._written:
            self._written[name, replica] = self._find(f"{name}/of_replica_{replica}", resource)
        return self._written[name, replica]

    def _find(self, name: str, resource: Resource) -> str:
        """Writes a node that finds a resource of the runtime, which no argument is."""
        self._add(
            "VarHandleOp",
            name,
            resource.handle.device,
            [],
            dtype=type_of(resource.dtype),
            shape=AttrValue(shape=resource.shape.as_proto()),
            shared_name=AttrValue(s=resource.name.encode()),
        )
        return f"{name}:resource:0"
