"""Writes a replica function out for all replicas, node by node."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from tpunb.virtual._tensorflow import AttrValue, FunctionDef, NodeDef, dtypes
from tpunb.virtual.bodies import Bodies
from tpunb.virtual.empty import guard
from tpunb.virtual.exchange import write_collective
from tpunb.virtual.graphs import (
    CONTROL_FLOW,
    Library,
    Reference,
    control_inputs,
    data_inputs,
    reference,
)
from tpunb.virtual.lifted import write_lifted
from tpunb.virtual.nodes import argument_name, instance, int32_tensor, new_name, type_of
from tpunb.virtual.sharding import assigned_device, logical_core
from tpunb.virtual.spread import Argument, Kind, Role, Spread
from tpunb.virtual.updates import copied, write_update

_RESOURCE = dtypes.resource.as_datatype_enum


class Writer:
    """Writes one function out; makes further writers for lifted bodies.

    Args:
        function: The function of one replica, its calls inlined.
        found: What of it varies between the replicas.
        library: Finds the functions of control flow.
        cores: The devices of each replica, its logical devices in order.
        name: The name of the function for all replicas.
        own_bodies: Makes the functions that replicas call for themselves.
        homes: Arguments whose variables are on a logical device other than 0.
        copies: Arguments whose variables have a copy on every logical device,
            and the type of their values.
        path: The names of the nodes around a body, as a prefix.
        shapes: The convolutions of unknown batches; None if all sizes are known.

    Attributes:
        result: The function for all replicas, as far as it is written.
        bodies: The functions that were lifted out of control flow.
        tensors: What a replica reads in place of a tensor, where that is not
            its own copy of the node.
        controls: What waits for a node on a replica have to wait for, likewise.
    """

    def __init__(
        self,
        function: FunctionDef,
        found: Spread,
        library: Library,
        cores: Sequence[Sequence[str]],
        name: str,
        own_bodies: Bodies,
        *,
        homes: Mapping[str, int],
        copies: Mapping[str, int] | None = None,
        path: str = "",
        shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self.function = function
        self.name = name
        self.homes = homes
        self.copies = copies or {}
        self.shapes = shapes
        self.own_bodies = own_bodies
        self.path = path
        self.found = found
        self.library = library
        self.cores = cores
        self.replicas = range(len(cores))
        self._processes = [core[0].partition("/device:")[0] for core in cores]
        self.bodies: list[FunctionDef] = []
        self.result = FunctionDef()
        self.nodes = {node.name: node for node in found.order}
        self.types = {a.name: a.type for a in function.signature.input_arg}
        self.everywhere = self._needed_everywhere()
        self.tensors: dict[tuple[str, str, int], str] = {}
        self.controls: dict[tuple[str, int], list[str]] = {}
        self._handed_on: dict[tuple[str, str], str] = {}

    def inside(
        self, body: FunctionDef, found: Spread, homes: Mapping[str, int], path: str
    ) -> Writer:
        """A writer for a body that is lifted out of this function's control flow."""
        name = new_name(body, self.cores)
        return Writer(
            body, found, self.library, self.cores, name, self.own_bodies, homes=homes, path=path
        )

    # What stands where.

    def _needed_everywhere(self) -> set[str]:
        """Plain nodes whose value each core computes for itself."""
        everywhere = {
            source.source
            for source in map(reference, self.function.ret.values())
            if self.found.kinds.get(source.source) is Kind.PLAIN
        }
        for node in reversed(self.found.order):
            if self.found.roles[node.name] is Role.COMPUTE and (
                self.found.kinds[node.name] is Kind.VARYING or node.name in everywhere
            ):
                sources = [source.source for source in data_inputs(node)]
            elif self.found.roles[node.name] in {Role.LIFTED, Role.COLLECTIVE}:
                sources = [
                    source.source
                    for source in data_inputs(node)
                    if self.found.kind(source) is Kind.VARYING
                ]
            else:
                continue
            everywhere.update(name for name in sources if self.found.kinds.get(name) is Kind.PLAIN)
        return everywhere

    def _per_replica(self, name: str) -> bool:
        """Whether a node stands in the result once per replica."""
        return self.found.kinds[name] is Kind.VARYING or name in self.everywhere

    def _home(self, name: str, replica: int) -> int:
        return replica if self._per_replica(name) else 0

    def tensor(self, source: Reference, replica: int) -> str:
        """What a replica reads for a tensor of the replica function."""
        name = source.source
        argument = self.found.arguments.get(name)
        if argument is not None:
            return argument_name(name, replica) if argument.per_replica else argument_name(name)
        special = self.tensors.get((name, source.suffix, replica))
        if special is not None:
            return special
        return instance(name, self._home(name, replica)) + source.suffix

    def waits(self, node: NodeDef, replica: int) -> list[str]:
        """The control inputs of a node's instance."""
        waits: dict[str, None] = {}
        for name in control_inputs(node):
            special = self.controls.get((name, replica))
            if special is None and self._per_replica(name):
                special = [instance(name, replica)]
            elif special is None and replica and self.found.kinds[name] is Kind.PLAIN:
                # Only the first core reads this variable: nothing to wait for here.
                special = []
            elif special is None:
                special = [instance(name, 0)]
            waits.update(dict.fromkeys(special))
        return [f"^{name}" for name in waits]

    # Writing.

    def write(self, outputs: Sequence[Kind]) -> FunctionDef:
        """Writes the function; `VARYING` outputs are returned once per replica."""
        self.write_signature()
        for node in self.found.order:
            self.write_node(node)
        self._write_outputs(outputs)
        self._write_effects()
        return self.result

    def write_signature(self) -> None:
        """Writes the arguments, once or once for each replica."""
        signature = self.result.signature
        signature.name = self.name
        signature.is_stateful = True
        for argument in self.function.signature.input_arg:
            per_replica = self.found.arguments[argument.name].per_replica
            for replica in self.replicas if per_replica else (None,):
                added = signature.input_arg.add()
                added.name = argument_name(argument.name, replica)
                added.type = argument.type
            if argument.name not in self.copies:
                continue
            for replica, core in itertools.product(self.replicas, self.further_cores()):
                added = signature.input_arg.add()
                added.name = argument_name(argument.name, replica, core)
                added.type = argument.type

    def further_cores(self) -> range:
        """The logical devices of a replica after the first."""
        return range(1, len(self.cores[0]))

    def write_node(self, node: NodeDef) -> None:
        """Writes what becomes of a node of the replica function."""
        role = self.found.roles[node.name]
        if role is Role.COLLECTIVE:
            write_collective(self, node)
        elif role is Role.UPDATE:
            write_update(self, node)
        elif role is Role.LIFTED:
            write_lifted(self, node)
        else:
            for replica in self.replicas if self._per_replica(node.name) else (0,):
                self.copy(node, replica)

    def copy(self, node: NodeDef, replica: int) -> NodeDef:
        """Writes a node as it was traced, for one replica."""
        copy = self.result.node_def.add()
        copy.CopyFrom(node)
        copy.name = instance(node.name, replica)
        copy.device = self._device(node, replica)
        del copy.input[:]
        copy.input.extend(self.tensor(source, replica) for source in data_inputs(node))
        copy.input.extend(self.waits(node, replica))
        if "_class" in copy.attr:
            del copy.attr["_class"]
        if node.op in CONTROL_FLOW:
            # Run as a kernel its body stays on the core; lowered, it would not. That
            # is wanted where it uses what is on several devices.
            copy.attr["_lower_using_switch_merge"].b = self._is_on_two_devices(node)
        self.own_bodies.give(copy, replica, self.path + node.name)
        if self.path:
            self.own_bodies.sign(copy, self.path + copy.name)
        if self.shapes is not None:
            guard(self, copy, node.name, replica)
        return copy

    def _device(self, node: NodeDef, replica: int) -> str:
        logical = self.cores[replica]
        sources = data_inputs(node)
        if self.homes:
            for source in sources:
                if source.source in self.homes:
                    # A variable's operations go where it is, whatever the user asks for.
                    return logical[self.homes[source.source]]
        core = logical_core(node.device)
        if core is None:
            core = assigned_device(node)
        if core is not None:
            return logical[core]
        if node.device:
            return str(node.device)
        if any(self._is_shared_resource(source.source) for source in sources):
            # A table or an iterator: its operations go where it is.
            return ""
        return logical[0]

    def device_of(self, handle: Reference, replica: int) -> str:
        """The device of a variable's component."""
        return self.cores[replica][self.homes.get(handle.source, 0)]

    def _is_on_two_devices(self, node: NodeDef) -> bool:
        """Whether a node takes resources of the host and of a core, or of two cores."""
        resources = [s.source for s in data_inputs(node) if self.types.get(s.source) == _RESOURCE]
        places = {(self._is_shared_resource(name), self.homes.get(name, 0)) for name in resources}
        return len(places) > 1

    def _is_shared_resource(self, name: str) -> bool:
        argument = self.found.arguments.get(name)
        return (
            argument is not None and not argument.per_replica and self.types.get(name) == _RESOURCE
        )

    def add(
        self,
        op: str,
        name: str,
        device: str,
        inputs: Sequence[str],
        **attributes: AttrValue,
    ) -> str:
        """Writes a new node and gives its name."""
        node = self.result.node_def.add()
        node.op = op
        node.name = name
        node.device = device
        node.input.extend(inputs)
        for key, value in attributes.items():
            node.attr[key].CopyFrom(value)
        return name

    def handed_on(self, tensor: str, kind: AttrValue, replica: int, source: int = 0) -> str:
        """One core's value as another replica takes it.

        To each process it is sent once, to the first core there that takes it.

        Args:
            tensor: The value.
            kind: Its type.
            replica: Who takes it.
            source: The replica that has it.
        """
        process = self._processes[replica]
        if process == self._processes[source]:
            return tensor
        if (tensor, process) not in self._handed_on:
            node, _, output = tensor.partition(":")
            name = f"{node}/{output.replace(':', '_')}/for_replica_{replica}"
            self.add("Identity", name, self.cores[replica][0], [tensor], T=kind)
            self._handed_on[tensor, process] = f"{name}:output:0"
        return self._handed_on[tensor, process]

    def all_waits(self, node: NodeDef, replicas: Sequence[int]) -> list[str]:
        """The control inputs of a node that stands for several replicas."""
        waits = itertools.chain.from_iterable(self.waits(node, replica) for replica in replicas)
        return list(dict.fromkeys(waits))

    def constant(self, name: str, device: str, value: int) -> str:
        """Writes a constant of type int32 and gives its tensor."""
        kind = type_of(dtypes.int32)
        self.add("Const", name, device, [], dtype=kind, value=int32_tensor(value))
        return f"{name}:output:0"

    def text(self, name: str, device: str, text: str) -> str:
        """Writes a constant text and gives its tensor."""
        tensor = AttrValue()
        tensor.tensor.dtype = dtypes.string.as_datatype_enum
        tensor.tensor.tensor_shape.SetInParent()
        tensor.tensor.string_val.append(text.encode())
        self.add("Const", name, device, [], dtype=type_of(dtypes.string), value=tensor)
        return f"{name}:output:0"

    # The end of a function.

    def _write_outputs(self, kinds: Sequence[Kind]) -> None:
        for index, (output, kind) in enumerate(
            zip(self.function.signature.output_arg, kinds, strict=True)
        ):
            source = reference(self.function.ret[output.name])
            argument = self.found.arguments.get(source.source)
            many = kind is Kind.VARYING or argument in {Argument.MIRRORED, Argument.LOCAL}
            for replica in self.replicas if many else (0,):
                added = self.result.signature.output_arg.add()
                added.name = f"output_{index}_{replica}"
                added.type = output.type
                self.result.ret[added.name] = self.tensor(source, replica)

    def _write_effects(self) -> None:
        """Names what must run although nobody reads its result.

        Reads are among it, those that only the first core does too: once the call
        is inlined, an update after the call waits for nothing else.
        """
        effects = [
            name
            for target in dict.fromkeys(self.function.control_ret.values())
            for name in sorted({n for r in self.replicas for n in self.ends(target, r)})
        ]
        effects += [name for argument in sorted(self.copies) for name in copied(self, argument)]
        for number, name in enumerate(effects):
            self.result.control_ret[f"effect_{number}"] = name
            self.result.signature.control_output.append(f"effect_{number}")

    def ends(self, name: str, replica: int) -> list[str]:
        """The nodes after which a replica is done with a node."""
        return self.controls.get((name, replica), [instance(name, self._home(name, replica))])
