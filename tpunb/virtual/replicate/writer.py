"""One replica's function written out for all replicas, as one flat function.

The result is a multi-device function: every node carries its core's device. It
is made of protocol buffers alone, because making 10,000 nodes in Python's graph
would take seconds.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from tpunb._util.logs import logger, timed
from tpunb.virtual._tensorflow import FunctionDef, NodeDef, dtypes
from tpunb.virtual.graph.function_def import (
    ASSIGNMENTS,
    LOOPS,
    READS,
    Reference,
    Returned,
    add_constant,
    control_inputs,
    data_inputs,
    instance,
    integer,
    is_stateful,
    new_name,
    reference,
    returned,
    set_types,
    type_of,
    types_of,
)
from tpunb.virtual.replicate.builder import Builder
from tpunb.virtual.replicate.function_copies import FunctionCopies
from tpunb.virtual.replicate.joined_forms import Plan
from tpunb.virtual.replicate.joining import join
from tpunb.virtual.replicate.passes import ReplicaFunction
from tpunb.virtual.replicate.variance import (
    Arguments,
    Body,
    Role,
    Variance,
    analyze,
    body_arguments,
    mark_diverged,
)
from tpunb.virtual.replicate.workarounds import keep_from_folding
from tpunb.virtual.replicate.write_nodes import (
    write_collective,
    write_copies,
    write_last_values,
    write_update,
)

_ANYTIME = -1
"""The part of what waits for no replica: constants and reads, which need no memory."""

_LITTLE = 2**24
"""A part for which all replicas together need no more bytes takes no turns."""


def take_turns(builder: Builder) -> None:
    """Makes the replicas' nodes, which are written, wait for those of earlier replicas.

    Args:
        builder: Has written the nodes of a function, or of a body.
    """
    pairs = list(_followers(builder.processes, builder.at_once))
    if not pairs:
        return
    parts = _Parts(builder)
    written = {node.name: node for node in builder.result.node_def}
    for part, starts in parts.starts.items():
        if parts.bytes[part] * len(builder.cores) <= _LITTLE:
            continue
        for earlier, later in pairs:
            ended = f"tpunb_turn_{part}_ended/replica_{earlier}"
            began = f"tpunb_turn_{part}/replica_{later}"
            waits = [f"^{instance(name, earlier)}" for name in parts.ends[part]]
            builder.add("NoOp", ended, builder.cores[earlier][0], waits)
            builder.add("NoOp", began, builder.cores[later][0], [f"^{ended}"])
            for name in starts:
                written[instance(name, later)].input.append(f"^{began}")


def _followers(processes: Sequence[str], at_once: int | None) -> Iterator[tuple[int, int]]:
    """Pairs of replicas, of which the second waits for the first.

    Args:
        processes: The process of each replica.
        at_once: How many replicas of a process run at a time; None for all.
    """
    if at_once is None:
        return
    inside: dict[str, list[int]] = defaultdict(list)
    for replica, process in enumerate(processes):
        inside[process].append(replica)
    for replicas in inside.values():
        yield from zip(replicas, replicas[at_once:], strict=False)


class _Parts:
    """A replica function in parts that end where the replicas meet.

    A part may depend on earlier ones of any replica, and on the same of its own replica
    only: whatever the order of the replicas, none waits for itself.

    Attributes:
        starts: For each part the nodes that wait for nothing else in it.
        ends: For each part the nodes that nothing else in it waits for.
        bytes: For each part how much memory a replica's own nodes take at the most.
    """

    def __init__(self, builder: Builder) -> None:
        self.starts: dict[int, list[str]] = defaultdict(list)
        self.ends: dict[int, dict[str, None]] = defaultdict(dict)
        self.bytes: dict[int, float] = defaultdict(float)
        self._builder = builder
        self._parts: dict[str, int] = {}
        self._inside: set[str] = set()
        for node in builder.analysis.order:
            if builder.runs(node):
                self._visit(node)

    def _visit(self, node: NodeDef) -> None:
        builder = self._builder
        own = self._is_own(node.name)
        sources = [source.source for source in data_inputs(node)] + control_inputs(node)
        sources = [name for name in sources if name in self._parts]
        part = max(map(self._after, sources), default=_ANYTIME)
        if own and builder.analysis.variances[node.name] is Variance.VARYING:
            part = max(part, 0)
        self._parts[node.name] = part
        if not own or part == _ANYTIME:
            return
        self.bytes[part] += self._bytes(node)
        before = [name for name in sources if name in self._inside and self._parts[name] == part]
        if not before:
            if builder.analysis.variances[node.name] is not Variance.VARYING:
                return
            self.starts[part].append(node.name)
        self._inside.add(node.name)
        for name in before:
            self.ends[part].pop(name, None)
        self.ends[part][node.name] = None

    def _bytes(self, node: NodeDef) -> float:
        """How much memory a node takes at the most, as far as that is known."""
        statics = self._builder.analysis.statics
        if statics is None or (is_stateful(node) and node.op not in READS | ASSIGNMENTS):
            return math.inf
        return statics.bytes_of(node)

    def _is_own(self, name: str) -> bool:
        """Whether every replica has a node of its own, which is no meeting of them."""
        builder = self._builder
        return builder.analysis.roles[name] is Role.COMPUTE and builder.is_repeated(name)

    def _after(self, name: str) -> int:
        """The first part that what follows a node can be in."""
        part = self._parts[name]
        return part if part == _ANYTIME or self._is_own(name) else part + 1


def write_results(
    builder: Builder, results: Sequence[Returned], variances: Sequence[Variance]
) -> None:
    """Writes what the function returns: once per replica what is `VARYING`."""
    for index, (result, variance) in enumerate(zip(results, variances, strict=True)):
        argument = builder.analysis.arguments.get(result.source.source)
        component = argument is not None and argument.is_component
        many = variance is Variance.VARYING or component
        for replica in builder.handles.holders(result.source) if many else (0,):
            added = builder.result.signature.output_arg.add()
            added.name = f"output_{index}_{replica}"
            added.type = result.type
            builder.result.ret[added.name] = builder.tensor(result.source, replica)


def write_effects(builder: Builder) -> None:
    """Names what must run although its result is not read.

    Reads are among it, even those that only the first core makes: once the call
    is inlined, an update after the call waits for nothing else.
    """
    targets = dict.fromkeys(builder.function.control_ret.values())
    effects = dict.fromkeys(name for target in targets for name in builder.ends(target, 0))
    # What is returned from the first core alone may have waited for the others as well.
    returned = {reference(text).source for text in builder.function.ret.values()}
    targets.update(dict.fromkeys(sorted(returned & builder.once)))
    for replica in builder.replicas[1:]:
        ends = {name for target in targets for name in builder.ends(target, replica)}
        effects.update(dict.fromkeys(_end(builder, replica, sorted(ends - effects.keys()))))
    for name, argument in sorted(builder.analysis.arguments.items()):
        if argument.copy_type is not None:
            copied = write_last_values(builder, name, argument.copy_type)
            effects.update(dict.fromkeys(copied))
    for number, name in enumerate(effects):
        builder.result.control_ret[f"effect_{number}"] = name
        builder.result.signature.control_output.append(f"effect_{number}")


def _end(builder: Builder, replica: int, ends: Sequence[str]) -> Sequence[str]:
    """One node that waits for all on a replica: what follows the call waits for each of them."""
    if len(ends) < 2:
        return ends
    name, device = f"tpunb_end/replica_{replica}", builder.cores[replica][0]
    return [builder.add("NoOp", name, device, [f"^{end}" for end in ends])]


def write_lifted(builder: Builder, node: NodeDef) -> None:
    """Writes control flow containing collectives, widened to all replicas.

    Args:
        builder: Where it is written.
        node: The loop or branch.
    """
    lifted = _Lifted(builder, node)
    copy = builder.result.node_def.add()
    copy.CopyFrom(node)
    copy.name = instance(node.name, 0)
    copy.device = builder.cores[0][0]
    del copy.input[:]
    if not lifted.is_loop:
        copy.input.append(_agreed_predicate(builder, node))
    types = lifted.widen_inputs(copy)
    copy.input.extend(builder.all_waits(node, builder.replicas))
    set_types(copy, types, lifted.output_types(types))
    lifted.write_bodies(copy)
    copy.attr["_lower_using_switch_merge"].b = True
    lifted.name_outputs()


class _Lifted:
    """A loop or branch, and how its inputs and outputs are widened.

    Attributes:
        is_loop: Whether it is a loop.
        sources: What reaches its bodies.
        variances: How much each of these differs between replicas in the bodies.
        outputs: How much each of its outputs differs.
    """

    def __init__(self, builder: Builder, node: NodeDef) -> None:
        self._builder = builder
        self._node = node
        self.is_loop = node.op in LOOPS
        self.sources = data_inputs(node) if self.is_loop else data_inputs(node)[1:]
        self.outputs = builder.analysis.output_variances[node.name]
        self.variances = (
            self.outputs if self.is_loop else [*map(builder.analysis.variance, self.sources)]
        )

    def widen_inputs(self, copy: NodeDef) -> list[int]:
        """Gives the node for all replicas its inputs; gives their types."""
        types: list[int] = []
        traced = self._node.attr["T" if self.is_loop else "Tin"].list.type
        for source, variance, kind in zip(self.sources, self.variances, traced, strict=True):
            argument = self._builder.analysis.arguments.get(source.source)
            many = variance is Variance.VARYING or (argument is not None and argument.per_replica)
            replicas = self._builder.handles.holders(source) if many else (0,)
            copy.input.extend(self._builder.tensor(source, replica) for replica in replicas)
            types.extend([kind] * len(replicas))
        return types

    def output_types(self, input_types: list[int]) -> list[int]:
        """The types of the outputs for all replicas."""
        if self.is_loop:
            return input_types
        return [
            kind
            for kind, variance in zip(self._node.attr["Tout"].list.type, self.outputs, strict=True)
            for _ in (self._builder.replicas if variance is Variance.VARYING else (0,))
        ]

    def write_bodies(self, copy: NodeDef) -> None:
        """Writes the functions of the node, and names them in it."""
        for key in sorted(copy.attr):
            value = copy.attr[key]
            functions = [value.func] if value.WhichOneof("value") == "func" else value.list.func
            for function in functions:
                definition = self._body(function.name, is_condition=key == "cond")
                function.name = definition.signature.name

    def _body(self, name: str, *, is_condition: bool) -> FunctionDef:
        library = self._builder.copies.library
        body = library(name)
        names = [argument.name for argument in body.signature.input_arg]
        outer = self._builder.analysis.arguments
        arguments = body_arguments(names, self.sources, self.variances, outer)
        path = f"{self._builder.path}{self._node.name}/"
        inside = self._builder.for_body(body, analyze(body, arguments, library), path)
        write_nodes(inside)
        if is_condition:
            _write_condition(inside)
        else:
            write_results(inside, returned(body), self.outputs)
            write_effects(inside)
        self._builder.lifted += [*inside.lifted, inside.result]
        return inside.result

    def name_outputs(self) -> None:
        """Records where each replica finds its part of each output."""
        name, place = self._node.name, 0
        for index, variance in enumerate(self.outputs):
            many = variance is Variance.VARYING or self._is_component(index)
            places = self._places(index) if many else dict.fromkeys(self._builder.replicas, 0)
            for replica, part in places.items():
                text = f"{instance(name, 0)}:output:{place + part}"
                self._builder.tensors[name, f":output:{index}", replica] = text
            place += max(places.values()) + 1
        for replica in self._builder.replicas:
            self._builder.controls[name][replica] = [instance(name, 0)]

    def _places(self, index: int) -> dict[int, int]:
        """Where, among the parts of an output, each replica's is."""
        builder = self._builder
        if not self.is_loop:
            return {replica: replica for replica in builder.replicas}
        handles, source = builder.handles, self.sources[index]
        places = {holder: place for place, holder in enumerate(handles.holders(source))}
        return {replica: places[handles.holder(source, replica)] for replica in builder.replicas}

    def _is_component(self, index: int) -> bool:
        """Whether an output of a loop is a variable's handle that went into it."""
        if not self.is_loop:
            return False
        argument = self._builder.analysis.arguments.get(self.sources[index].source)
        return argument is not None and argument.is_component


def _agreed_predicate(builder: Builder, node: NodeDef) -> str:
    """The condition of a branch, on which all replicas must agree."""
    # An `If` takes any type for true or false; a `Case` takes an index.
    kind = dtypes.as_dtype(node.attr["Tcond"].type) if "Tcond" in node.attr else dtypes.int32
    return _agreed(builder, f"{node.name}/agreed", data_inputs(node)[0], kind)


def _write_condition(builder: Builder) -> None:
    """Writes the result of a loop's condition, on which all replicas must agree."""
    output = builder.function.signature.output_arg[0]
    source = reference(builder.function.ret[output.name])
    builder.result.signature.output_arg.add().CopyFrom(output)
    builder.result.ret[output.name] = _agreed(builder, "tpunb_agreed", source, dtypes.bool)


def _agreed(builder: Builder, name: str, source: Reference, kind: dtypes.DType) -> str:
    """A scalar, which at run time fails unless it is the same on every replica."""
    if builder.analysis.variance(source) is not Variance.VARYING:
        return builder.tensor(source, 0)
    values = [builder.tensor(source, replica) for replica in builder.replicas]
    device, attribute, first = builder.cores[0][0], type_of(kind), f"{name}/first"
    builder.add("Identity", first, device, values[:1], T=attribute)
    checks = [
        _assert_equal(builder, name, [f"{first}:output:0", values[replica]], replica, kind)
        for replica in builder.replicas[1:]
    ]
    builder.add("Identity", name, device, [f"{first}:output:0", *checks], T=attribute)
    return f"{name}:output:0"


def _assert_equal(
    builder: Builder, name: str, pair: Sequence[str], replica: int, kind: dtypes.DType
) -> str:
    """Fails unless a replica's scalar equals the first one's; gives what to wait for."""
    device = builder.cores[0][0]
    check, end = f"{name}/equal_{replica}", f"{name}/assert_{replica}"
    builder.add("Equal", check, device, pair, T=type_of(kind))
    message = add_constant(
        builder.add, f"{name}/message_{replica}", device, _disagreement(replica), dtypes.string
    )
    inputs = [f"{check}:z:0", message]
    types = types_of([dtypes.string])
    builder.add("Assert", end, device, inputs, T=types, summarize=integer(1))
    return f"^{end}"


def _disagreement(replica: int) -> str:
    return (
        f"Replica {replica} and replica 0 disagree about a condition around a cross-replica "
        "operation. On a TPU this hangs: make the condition the same on every replica."
    )


_TYPES = {True: ("T", "T"), False: ("Tin", "Tout")}
"""The attributes that are the types of what a loop, or a branch, takes and gives."""


def write_joined(builder: Builder, node: NodeDef) -> None:
    """Writes a node that stands for those of all replicas, as its plan says.

    Args:
        builder: Where it is written.
        node: The node.
    """
    plan = builder.analysis.plans[node.name]
    joined = builder.result.node_def.add()
    joined.CopyFrom(node)
    joined.name = instance(node.name, 0)
    joined.device = builder.device(node, 0)
    if plan.op:
        joined.op = plan.op
        joined.attr.clear()
    joined.attr.pop("_class", None)
    for key, value in plan.attributes.items():
        joined.attr[key].CopyFrom(value)
    if plan.bodies:
        _write_bodies(builder, node, joined)
    del joined.input[:]
    joined.input.extend(_inputs(builder, node, plan))
    joined.input.extend(builder.waits_of_one(node))
    if builder.path:
        builder.copies.sign(joined, builder.path + joined.name)
    if plan.bodies:
        keep_from_folding(builder.add, joined)


def _inputs(builder: Builder, node: NodeDef, plan: Plan) -> Iterator[str]:
    sources = data_inputs(node)
    for place, take in enumerate(plan.takes):
        if take.constant is not None:
            yield builder.joined.constant(take)
        else:
            yield builder.joined.input(sources[place], take)


def _write_bodies(builder: Builder, node: NodeDef, joined: NodeDef) -> None:
    """Writes the functions of a loop or a branch, and names them in it."""
    plan = builder.analysis.plans[node.name]
    names = {name: _written(builder, node, body) for name, body in plan.bodies.items()}
    for value in joined.attr.values():
        functions = [value.func] if value.WhichOneof("value") == "func" else value.list.func
        for function in functions:
            function.name = names[function.name]
    kinds = [list(node.attr[key].list.type) for key in _TYPES[node.op in LOOPS]]
    set_types(joined, *kinds)
    # As a kernel it runs its functions as they are.
    joined.attr["_lower_using_switch_merge"].b = False


def _written(builder: Builder, node: NodeDef, body: Body) -> str:
    """Writes a function for all replicas and gives its name."""
    inside = builder.for_body(body.function, body.analysis, f"{builder.path}{node.name}/")
    write_nodes(inside)
    for index, (result, form) in enumerate(zip(returned(body.function), body.gives, strict=True)):
        added = inside.result.signature.output_arg.add(name=f"output_{index}", type=result.type)
        inside.result.ret[added.name] = inside.joined.taken(result.source, form)
    write_effects(inside)
    for one in list(inside.result.node_def):
        if one.op == "Pack" and not one.input[0].endswith("/hidden:output:0"):
            keep_from_folding(inside.add, one, in_body=True)
    builder.lifted += [*inside.lifted, inside.result]
    return str(inside.result.signature.name)


_WIRED = frozenset({Role.COLLECTIVE, Role.LIFTED})
"""What is checked although nothing needs it, and so needs what it takes."""


def write_function(builder: Builder, results: Sequence[Returned]) -> FunctionDef:
    """Writes a whole function, which returns each result once per replica."""
    write_nodes(builder)
    write_results(builder, results, [Variance.VARYING] * len(results))
    write_effects(builder)
    return builder.result


def write_nodes(builder: Builder) -> None:
    """Writes what becomes of the nodes of a function."""
    nodes = builder.analysis.order
    unused = {node.name for node in nodes if not builder.runs(node)}
    if not any(builder.analysis.roles[name] in _WIRED for name in unused):
        # TensorFlow would prune them, from a graph that is larger by all replicas' copies.
        nodes = [node for node in nodes if node.name not in unused]
    for node in nodes:
        _write_node(builder, node)
    take_turns(builder)


def _write_node(builder: Builder, node: NodeDef) -> None:
    role = builder.analysis.roles[node.name]
    if role is Role.COLLECTIVE:
        write_collective(builder, node)
    elif role is Role.UPDATE:
        write_update(builder, node)
    elif role is Role.LIFTED:
        write_lifted(builder, node)
    elif role is Role.JOINED:
        write_joined(builder, node)
    else:
        write_copies(builder, node)


@dataclasses.dataclass(frozen=True)
class Expansion:
    """A function for all replicas.

    Attributes:
        definition: The function.
        bodies: Functions that it calls, which have been made for it.
        reads: Arguments of the replica function that are variables' handles
            and that it only reads.
        diverged: Mirrored arguments whose copies a replica may set on its own, or whose
            copies differed already.
        split: Mirrored arguments whose copies share a resource and must not: what was
            written is wrong.
        places: For each output of the replica function, which of the outputs of
            `definition` it is: what is returned twice is an output once.
        repeated: The nodes of the replica function that stand in it once a replica.
        joined: Those that stand in it once for all, on their values in one tensor.
    """

    definition: FunctionDef
    bodies: tuple[FunctionDef, ...]
    reads: frozenset[str]
    diverged: frozenset[str]
    split: frozenset[str]
    places: tuple[int, ...]
    repeated: frozenset[str]
    joined: frozenset[str] = frozenset()


@timed("replicate", "write it out for all replicas")
def expand(
    function: ReplicaFunction,
    arguments: Arguments,
    *,
    name: str | None = None,
    prefix: str | None = None,
    assume_equal: bool = True,
) -> Expansion:
    """Writes a replica function out for all replicas.

    Args:
        function: The replica function.
        arguments: Its arguments.
        name: The name of the result; a new one by default.
        prefix: How the names of the functions made for it begin; by default with its own.
        assume_equal: Whether the copies of a mirrored variable count as equal until they
            are known to differ; if not, the result is right whatever they hold.

    Returns:
        The function for all replicas. Its arguments are those of the replica
        function in their order, once or once per replica as `arguments` says;
        its outputs are those of the replica function, each once per replica.
    """
    try:
        return _expanded(function, arguments, name, prefix, assume_equal=assume_equal)
    except Exception:
        if function.body_sizes is None:
            raise
        # Whatever goes wrong with joined loops goes well with those of each replica, or fails too.
        logger("replicate").debug("Loops and branches are not joined.", exc_info=True)
    function = dataclasses.replace(function, body_sizes=None)
    return _expanded(function, arguments, name, prefix, assume_equal=assume_equal)


def _expanded(
    function: ReplicaFunction,
    arguments: Arguments,
    name: str | None,
    prefix: str | None,
    *,
    assume_equal: bool,
) -> Expansion:
    flat, library = function.computed, function.inlined_library
    analysis = found = analyze(flat, arguments, library)
    if not assume_equal:
        diverged = {
            name: mark_diverged(argument) if argument.is_mirrored else argument
            for name, argument in arguments.items()
        }
        analysis = analyze(flat, diverged, library)
    name = name or new_name(flat, function.cores)
    guarded = function.shapes is not None
    copies = FunctionCopies(library, name, prefix or name, guarded=guarded)
    if not guarded:
        analysis = join(flat, analysis, function)
    builder = Builder(
        flat, analysis, function.cores, copies, name, function.at_once, shapes=function.shapes
    )
    outputs = returned(flat)
    places = {output: place for place, output in enumerate(dict.fromkeys(outputs))}
    return Expansion(
        definition=write_function(builder, list(places)),
        bodies=(*copies.made, *builder.lifted),
        reads=_only_read(flat, arguments),
        diverged=found.diverged,
        split=found.split,
        places=tuple(places[output] for output in outputs),
        repeated=builder.repeated(),
        joined=frozenset(analysis.plans),
    )


def _only_read(function: FunctionDef, arguments: Arguments) -> frozenset[str]:
    handles = {name for name, argument in arguments.items() if argument.per_replica}
    for node in function.node_def:
        if node.op != "ReadVariableOp":
            handles.difference_update(source.source for source in data_inputs(node))
    return frozenset(handles)
