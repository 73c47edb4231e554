"""One replica's function written out for all replicas, as one flat function.

The result is a multi-device function: every node carries its core's device. It
is made of protocol buffers alone, because making 10,000 nodes in Python's graph
would take seconds.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence

from tpunb.virtual._tensorflow import AttrValue, FunctionDef, NodeDef, dtypes
from tpunb.virtual.bodies import Bodies
from tpunb.virtual.collectives import check, groups, is_broadcast, source_target_pairs
from tpunb.virtual.graphs import (
    CONTROL_FLOW,
    LOOPS,
    Library,
    Reference,
    control_inputs,
    data_inputs,
    reference,
)
from tpunb.virtual.inline import inlined
from tpunb.virtual.spread import (
    ASSIGNMENTS,
    Argument,
    Kind,
    Role,
    Spread,
    body_arguments,
    spread,
)

_RESOURCE = dtypes.resource.as_datatype_enum
_LOGICAL_CORE = "TPU_REPLICATED_CORE:"
_names = itertools.count()


@dataclasses.dataclass(frozen=True)
class Expansion:
    """A function for all replicas.

    Attributes:
        definition: The function.
        bodies: Functions that it calls, which have been made for it.
        reads: Arguments of the replica function that are variables' handles
            and that it only reads.
        diverged: Mirrored arguments whose copies a replica may set on its own.
        places: For each output of the replica function, which of the outputs of
            `definition` it is: what is returned twice is handed out once.
    """

    definition: FunctionDef
    bodies: tuple[FunctionDef, ...]
    reads: frozenset[str]
    diverged: frozenset[str]
    places: tuple[int, ...]


def expand(
    function: FunctionDef,
    arguments: Mapping[str, Argument],
    library: Library,
    cores: Sequence[Sequence[str]],
    diverged: frozenset[str] = frozenset(),
) -> Expansion:
    """Writes a replica function out for all replicas.

    Args:
        function: The traced replica function.
        arguments: How each of its arguments reaches the replicas, by name.
        library: Finds the functions that it calls.
        cores: The devices of each replica, its logical devices in order.
        diverged: Mirrored arguments whose copies differ already.

    Returns:
        The function for all replicas. Its arguments are those of the replica
        function in their order, once or once per replica as `arguments` says;
        its outputs are those of the replica function, each once per replica.
    """
    flat = inlined(function, library)
    places = _drop_repeated_outputs(flat)

    @functools.cache
    def known(name: str) -> FunctionDef:
        return inlined(library(name), library)

    found = spread(flat, arguments, known, diverged)
    name = _new_name(flat, cores)
    own_bodies = Bodies(known, name)
    writer = _Writer(flat, found, known, cores, name, own_bodies)
    outputs = [Kind.VARYING] * len(flat.signature.output_arg)
    definition = writer.write(outputs)
    bodies = (*own_bodies.made, *writer.bodies)
    return Expansion(definition, bodies, _only_read(flat, found), found.diverged, places)


def _drop_repeated_outputs(function: FunctionDef) -> tuple[int, ...]:
    """Leaves each value that is returned once; says where the others have gone."""
    sources = [function.ret[output.name] for output in function.signature.output_arg]
    once = list(dict.fromkeys(sources))
    kept = [function.signature.output_arg[sources.index(source)] for source in once]
    names = [output.name for output in kept]
    for output in [o for o in function.signature.output_arg if o.name not in names]:
        function.signature.output_arg.remove(output)
        del function.ret[output.name]
    return tuple(once.index(source) for source in sources)


def _new_name(function: FunctionDef, cores: Sequence[Sequence[str]]) -> str:
    return f"{function.signature.name}_on_{len(cores)}_replicas_{next(_names)}"


def _only_read(function: FunctionDef, found: Spread) -> frozenset[str]:
    handles = {name for name, argument in found.arguments.items() if argument.per_replica}
    for node in function.node_def:
        if node.op != "ReadVariableOp":
            handles.difference_update(source.source for source in data_inputs(node))
    return frozenset(handles)


class _Writer:
    """Writes one function out; makes further writers for lifted bodies."""

    def __init__(
        self,
        function: FunctionDef,
        found: Spread,
        library: Library,
        cores: Sequence[Sequence[str]],
        name: str,
        own_bodies: Bodies,
        path: str = "",
    ) -> None:
        self.function = function
        self.name = name
        self.own_bodies = own_bodies
        self.path = path
        self.found = found
        self.library = library
        self.cores = cores
        self.replicas = range(len(cores))
        self.bodies: list[FunctionDef] = []
        self.result = FunctionDef()
        self.nodes = {node.name: node for node in found.order}
        self.types = {a.name: a.type for a in function.signature.input_arg}
        self.everywhere = self._needed_everywhere()
        self.tensors: dict[tuple[str, str, int], str] = {}
        self.controls: dict[tuple[str, int], list[str]] = {}

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

    def _tensor(self, source: Reference, replica: int) -> str:
        """What a replica reads for a tensor of the replica function."""
        name = source.source
        argument = self.found.arguments.get(name)
        if argument is not None:
            return _argument(name, replica) if argument.per_replica else _argument(name)
        special = self.tensors.get((name, source.suffix, replica))
        if special is not None:
            return special
        return _instance(name, self._home(name, replica)) + source.suffix

    def _waits(self, node: NodeDef, replica: int) -> list[str]:
        """The control inputs of a node's instance."""
        waits: dict[str, None] = {}
        for name in control_inputs(node):
            special = self.controls.get((name, replica))
            if special is None and self._per_replica(name):
                special = [_instance(name, replica)]
            elif special is None and replica and self.found.kinds[name] is Kind.PLAIN:
                # Only the first core reads this variable: nothing to wait for here.
                special = []
            elif special is None:
                special = [_instance(name, 0)]
            waits.update(dict.fromkeys(special))
        return [f"^{name}" for name in waits]

    # Writing.

    def write(self, outputs: Sequence[Kind]) -> FunctionDef:
        """Writes the function; `VARYING` outputs are returned once per replica."""
        self._write_signature()
        for node in self.found.order:
            self._write_node(node)
        self._write_outputs(outputs)
        self._write_effects()
        return self.result

    def _write_signature(self) -> None:
        signature = self.result.signature
        signature.name = self.name
        signature.is_stateful = True
        for argument in self.function.signature.input_arg:
            per_replica = self.found.arguments[argument.name].per_replica
            for replica in self.replicas if per_replica else (None,):
                added = signature.input_arg.add()
                added.name = _argument(argument.name, replica)
                added.type = argument.type

    def _write_node(self, node: NodeDef) -> None:
        role = self.found.roles[node.name]
        if role is Role.COLLECTIVE:
            self._write_collective(node)
        elif role is Role.UPDATE:
            self._write_update(node)
        elif role is Role.LIFTED:
            self._write_lifted(node)
        else:
            for replica in self.replicas if self._per_replica(node.name) else (0,):
                self._copy(node, replica)

    def _copy(self, node: NodeDef, replica: int) -> NodeDef:
        copy = self.result.node_def.add()
        copy.CopyFrom(node)
        copy.name = _instance(node.name, replica)
        copy.device = self._device(node, replica)
        del copy.input[:]
        copy.input.extend(self._tensor(source, replica) for source in data_inputs(node))
        copy.input.extend(self._waits(node, replica))
        if "_class" in copy.attr:
            del copy.attr["_class"]
        if node.op == "XlaSharding":
            _make_identity(copy)
        if node.op in CONTROL_FLOW:
            # Run as a kernel its body stays on the core; lowered, it would not.
            copy.attr["_lower_using_switch_merge"].b = False
        self.own_bodies.give(copy, replica, self.path + node.name)
        if self.path:
            self.own_bodies.sign(copy, self.path + copy.name)
        return copy

    def _device(self, node: NodeDef, replica: int) -> str:
        logical = self.cores[replica]
        if _LOGICAL_CORE in node.device:
            return logical[int(node.device.rpartition(_LOGICAL_CORE)[2])]
        if node.device:
            return str(node.device)
        if any(self._is_shared_resource(source.source) for source in data_inputs(node)):
            # A table or an iterator: its operations go where it is.
            return ""
        return logical[0]

    def _is_shared_resource(self, name: str) -> bool:
        argument = self.found.arguments.get(name)
        return (
            argument is not None and not argument.per_replica and self.types.get(name) == _RESOURCE
        )

    def _add(
        self,
        op: str,
        name: str,
        device: str,
        inputs: Sequence[str],
        **attributes: AttrValue,
    ) -> str:
        node = self.result.node_def.add()
        node.op = op
        node.name = name
        node.device = device
        node.input.extend(inputs)
        for key, value in attributes.items():
            node.attr[key].CopyFrom(value)
        return name

    # Cross-replica operations.

    def _write_collective(self, node: NodeDef) -> None:
        check(node, self.nodes, len(self.cores))
        write = {
            "CrossReplicaSum": self._write_sum,
            "AllToAll": self._write_exchange,
            "CollectivePermute": self._write_permutation,
        }
        write[node.op](node)

    def _write_sum(self, node: NodeDef) -> None:
        value = data_inputs(node)[0]
        joined = groups(node, self.nodes)
        for group in joined:
            first = group[0]
            name = _instance(node.name, first if len(joined) > 1 else 0)
            inputs = [self._tensor(value, replica) for replica in group]
            inputs += self._all_waits(node, group)
            device = self.cores[first][0]
            self._add("AddN", name, device, inputs, T=node.attr["T"], N=_int(len(group)))
            for replica in group:
                self.tensors[node.name, ":output:0", replica] = f"{name}:sum:0"
                self.controls[node.name, replica] = [name]

    def _write_exchange(self, node: NodeDef) -> None:
        value = data_inputs(node)[0]
        split, concat, count = (
            node.attr[key].i for key in ("split_dimension", "concat_dimension", "split_count")
        )
        kind = node.attr["T"]
        for replica in self.replicas:
            name, device = _instance(node.name, replica), self.cores[replica][0]
            axis = self._constant(f"{name}/split_dim", device, split)
            inputs = [axis, self._tensor(value, replica), *self._waits(node, replica)]
            self._add("Split", f"{name}/split", device, inputs, T=kind, num_split=_int(count))
        for group in groups(node, self.nodes):
            for place, replica in enumerate(group):
                name, device = _instance(node.name, replica), self.cores[replica][0]
                axis = self._constant(f"{name}/concat_dim", device, concat)
                parts = [f"{_instance(node.name, k)}/split:output:{place}" for k in group]
                self._add(
                    "ConcatV2",
                    name,
                    device,
                    [*parts, axis],
                    T=kind,
                    N=_int(len(parts)),
                    Tidx=_type(dtypes.int32),
                )
                self.tensors[node.name, ":output:0", replica] = f"{name}:output:0"

    def _write_permutation(self, node: NodeDef) -> None:
        value = data_inputs(node)[0]
        if is_broadcast(node, self.nodes):
            name, device = _instance(node.name, 0), self.cores[0][0]
            inputs = [self._tensor(value, 0), *self._waits(node, 0)]
            self._add("Identity", name, device, inputs, T=node.attr["T"])
            return
        origin = {target: source for source, target in source_target_pairs(node, self.nodes)}
        for replica in self.replicas:
            name, device = _instance(node.name, replica), self.cores[replica][0]
            # A core that nobody sends to gets zeros, as on a TPU.
            op = "Identity" if replica in origin else "ZerosLike"
            inputs = [self._tensor(value, origin.get(replica, replica))]
            self._add(op, name, device, inputs + self._waits(node, replica), T=node.attr["T"])
            output = ":output:0" if replica in origin else ":y:0"
            self.tensors[node.name, ":output:0", replica] = name + output

    def _all_waits(self, node: NodeDef, replicas: Sequence[int]) -> list[str]:
        waits = itertools.chain.from_iterable(self._waits(node, replica) for replica in replicas)
        return list(dict.fromkeys(waits))

    def _constant(self, name: str, device: str, value: int) -> str:
        tensor = AttrValue()
        tensor.tensor.dtype = dtypes.int32.as_datatype_enum
        tensor.tensor.tensor_shape.SetInParent()
        tensor.tensor.int_val.append(value)
        self._add("Const", name, device, [], dtype=_type(dtypes.int32), value=tensor)
        return f"{name}:output:0"

    # Updates of mirrored variables that are the same on every core.

    def _write_update(self, node: NodeDef) -> None:
        sources = data_inputs(node)
        handles = [s for s in sources if self.types.get(s.source) == _RESOURCE]
        kind = node.attr["dtype"] if "dtype" in node.attr else node.attr["T"]
        name, device = _instance(node.name, 0), self.cores[0][0]
        if node.op in ASSIGNMENTS:
            values = [self._assigned(node, name, device, kind)]
            first = 0
        else:
            self._copy(node, 0)
            values = [
                self._read(f"{name}/updated_{k}", handle, kind, [f"^{name}"])
                for k, handle in enumerate(handles)
            ]
            self.controls[node.name, 0] = [name]
            first = 1
        for replica in self.replicas[first:]:
            self.controls[node.name, replica] = [
                self._add(
                    "AssignVariableOp",
                    _instance(node.name, replica) + (f"/{k}" if k else ""),
                    self.cores[replica][0],
                    [self._tensor(handle, replica), value, *self._waits(node, replica)],
                    dtype=kind,
                )
                for k, (handle, value) in enumerate(zip(handles, values, strict=True))
            ]

    def _assigned(self, node: NodeDef, name: str, device: str, kind: AttrValue) -> str:
        """The new value of a variable, computed on the first core."""
        handle, value = data_inputs(node)
        if node.op == "AssignVariableOp":
            return self._tensor(value, 0)
        old = self._read(f"{name}/old", handle, kind, self._waits(node, 0))
        op = "AddV2" if node.op == "AssignAddVariableOp" else "Sub"
        self._add(op, f"{name}/new", device, [old, self._tensor(value, 0)], T=kind)
        return f"{name}/new:z:0"

    def _read(self, name: str, handle: Reference, kind: AttrValue, waits: Sequence[str]) -> str:
        inputs = [self._tensor(handle, 0), *waits]
        self._add("ReadVariableOp", name, self.cores[0][0], inputs, dtype=kind)
        return f"{name}:value:0"

    # Control flow in which replicas talk: one loop or branch for all of them.

    def _write_lifted(self, node: NodeDef) -> None:
        sources, lists = data_inputs(node), self.found.output_kinds[node.name]
        looped = node.op in LOOPS
        state = sources if looped else sources[1:]
        kinds = list(lists) if looped else [self.found.kind(source) for source in state]
        copy = self.result.node_def.add()
        copy.CopyFrom(node)
        copy.name = _instance(node.name, 0)
        copy.device = self.cores[0][0]
        del copy.input[:]
        if not looped:
            copy.input.append(self._agreed(node, sources[0]))
        types: list[int] = []
        for source, kind in zip(state, kinds, strict=True):
            values = self._spread_input(source, kind)
            copy.input.extend(values)
            types.extend([self._type_of(node, source, state)] * len(values))
        copy.input.extend(self._all_waits(node, self.replicas))
        _set_types(copy, types, self._output_types(node, lists, looped, types))
        for key in sorted(copy.attr):
            path = f"{self.path}{node.name}/"
            self._lift_bodies(copy.attr[key], key, path, state, kinds, lists)
        copy.attr["_lower_using_switch_merge"].b = True
        self._name_lifted_outputs(node, lists)

    def _spread_input(self, source: Reference, kind: Kind) -> list[str]:
        argument = self.found.arguments.get(source.source)
        if kind is Kind.VARYING or (argument is not None and argument.per_replica):
            return [self._tensor(source, replica) for replica in self.replicas]
        return [self._tensor(source, 0)]

    def _type_of(self, node: NodeDef, source: Reference, state: Sequence[Reference]) -> int:
        key = "T" if node.op in LOOPS else "Tin"
        return int(node.attr[key].list.type[list(state).index(source)])

    def _output_types(
        self, node: NodeDef, kinds: Sequence[Kind], looped: bool, inputs: list[int]
    ) -> list[int]:
        if looped:
            return inputs
        return [
            kind
            for kind, many in zip(node.attr["Tout"].list.type, kinds, strict=True)
            for _ in (self.replicas if many is Kind.VARYING else (0,))
        ]

    def _lift_bodies(
        self,
        value: AttrValue,
        key: str,
        path: str,
        sources: Sequence[Reference],
        kinds: Sequence[Kind],
        outputs: Sequence[Kind],
    ) -> None:
        functions = [value.func] if value.WhichOneof("value") == "func" else value.list.func
        for function in functions:
            function.name = self._lifted_body(function.name, key, path, sources, kinds, outputs)

    def _lifted_body(
        self,
        name: str,
        key: str,
        path: str,
        sources: Sequence[Reference],
        kinds: Sequence[Kind],
        outputs: Sequence[Kind],
    ) -> str:
        body = self.library(name)
        names = [argument.name for argument in body.signature.input_arg]
        arguments = body_arguments(names, sources, kinds, self.found.arguments)
        diverged = frozenset(
            inner
            for inner, source in zip(names, sources, strict=True)
            if source.source in self.found.diverged
        )
        found = spread(body, arguments, self.library, diverged)
        name = _new_name(body, self.cores)
        writer = _Writer(body, found, self.library, self.cores, name, self.own_bodies, path)
        definition = writer.write_condition() if key == "cond" else writer.write(outputs)
        self.bodies += [*writer.bodies, definition]
        return str(definition.signature.name)

    def _name_lifted_outputs(self, node: NodeDef, kinds: Sequence[Kind]) -> None:
        place = 0
        for index, kind in enumerate(kinds):
            source = reference(f"{node.name}:output:{index}")
            handle = self._is_handle_output(node, index)
            for replica in self.replicas:
                own = replica if kind is Kind.VARYING or handle else 0
                text = f"{_instance(node.name, 0)}:output:{place + own}"
                self.tensors[node.name, source.suffix, replica] = text
            place += len(self.replicas) if kind is Kind.VARYING or handle else 1
        for replica in self.replicas:
            self.controls[node.name, replica] = [_instance(node.name, 0)]

    def _is_handle_output(self, node: NodeDef, index: int) -> bool:
        if node.op not in LOOPS:
            return False
        argument = self.found.arguments.get(data_inputs(node)[index].source)
        return argument in {Argument.MIRRORED, Argument.LOCAL}

    def _agreed(self, node: NodeDef, predicate: Reference) -> str:
        """A condition that all replicas must agree on."""
        if self.found.kind(predicate) is not Kind.VARYING:
            return self._tensor(predicate, 0)
        # An `If` takes any type for true or false; a `Case` takes an index.
        kind = dtypes.as_dtype(node.attr["Tcond"].type) if "Tcond" in node.attr else dtypes.int32
        values = [self._tensor(predicate, replica) for replica in self.replicas]
        return self._assert_equal(f"{node.name}/agreed", values, kind)

    def _assert_equal(self, name: str, values: Sequence[str], kind: dtypes.DType) -> str:
        """Fails unless scalars are equal, and gives the first of them."""
        device, attribute = self.cores[0][0], _type(kind)
        first = f"{name}/first"
        self._add("Identity", first, device, [values[0]], T=attribute)
        checks = []
        for replica, value in enumerate(values[1:], 1):
            check = f"{name}/equal_{replica}"
            self._add("Equal", check, device, [f"{first}:output:0", value], T=attribute)
            message = self._text(f"{name}/message_{replica}", device, _disagreement(replica))
            self._add(
                "Assert",
                f"{name}/assert_{replica}",
                device,
                [f"{check}:z:0", message],
                T=_types([dtypes.string]),
                summarize=_int(1),
            )
            checks.append(f"^{name}/assert_{replica}")
        self._add("Identity", name, device, [f"{first}:output:0", *checks], T=attribute)
        return f"{name}:output:0"

    def _text(self, name: str, device: str, text: str) -> str:
        tensor = AttrValue()
        tensor.tensor.dtype = dtypes.string.as_datatype_enum
        tensor.tensor.tensor_shape.SetInParent()
        tensor.tensor.string_val.append(text.encode())
        self._add("Const", name, device, [], dtype=_type(dtypes.string), value=tensor)
        return f"{name}:output:0"

    def write_condition(self) -> FunctionDef:
        """Writes a loop's condition, on which all replicas must agree."""
        self._write_signature()
        for node in self.found.order:
            self._write_node(node)
        output = self.function.signature.output_arg[0]
        source = reference(self.function.ret[output.name])
        text = self._tensor(source, 0)
        if self.found.kind(source) is Kind.VARYING:
            values = [self._tensor(source, replica) for replica in self.replicas]
            text = self._assert_equal("tpunb_agreed", values, dtypes.bool)
        self.result.signature.output_arg.add().CopyFrom(output)
        self.result.ret[output.name] = text
        return self.result

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
                self.result.ret[added.name] = self._tensor(source, replica)

    def _write_effects(self) -> None:
        """Names what must run although nobody reads its result.

        Reads are among it, those that only the first core does too: once the call
        is inlined, an update after the call waits for nothing else.
        """
        number = itertools.count()
        for target in dict.fromkeys(self.function.control_ret.values()):
            done = {
                name
                for replica in self.replicas
                for name in self.controls.get(
                    (target, replica), [_instance(target, self._home(target, replica))]
                )
            }
            for name in sorted(done):
                key = f"effect_{next(number)}"
                self.result.control_ret[key] = name
                self.result.signature.control_output.append(key)


def _argument(name: str, replica: int | None = None) -> str:
    return f"arg_{name}" if replica is None else f"arg_{name}_replica_{replica}"


def _instance(name: str, replica: int) -> str:
    return f"{name}/replica_{replica}" if replica else name


def _int(value: int) -> AttrValue:
    return AttrValue(i=value)


def _type(kind: dtypes.DType) -> AttrValue:
    return AttrValue(type=kind.as_datatype_enum)


def _types(kinds: Sequence[dtypes.DType]) -> AttrValue:
    value = AttrValue()
    value.list.type.extend(kind.as_datatype_enum for kind in kinds)
    return value


def _set_types(node: NodeDef, inputs: Sequence[int], outputs: Sequence[int]) -> None:
    """Sets the types of widened control flow; its shapes are left to inference."""
    for key, types in (("T", inputs), ("Tin", inputs), ("Tout", outputs)):
        if key in node.attr:
            del node.attr[key].list.type[:]
            node.attr[key].list.type.extend(types)
    for key in ("output_shapes", "_output_shapes"):
        if key in node.attr:
            del node.attr[key].list.shape[:]
            for _ in outputs if key == "output_shapes" else ():
                node.attr[key].list.shape.add().unknown_rank = True
    for key in [key for key in node.attr if key.startswith("_num_original") or key == "_class"]:
        del node.attr[key]


def _make_identity(node: NodeDef) -> None:
    node.op = "Identity"
    for key in [key for key in node.attr if key != "T"]:
        del node.attr[key]


def _disagreement(replica: int) -> str:
    return (
        f"Replica {replica} and replica 0 disagree about a condition around a cross-replica "
        "operation. On a TPU this hangs: make the condition the same on every replica."
    )
