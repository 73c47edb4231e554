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
from tpunb.virtual._tensorflow import AttrValue, FunctionDef, NodeDef, dtypes
from tpunb.virtual.graph.function_def import (
    ASSIGNMENTS,
    LOOPS,
    READS,
    Reference,
    Returned,
    add_constant,
    control_inputs,
    data_inputs,
    function_attributes,
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
    """Makes the replicas' nodes, which are written, wait for those of earlier replicas."""
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
    """Pairs of replicas, of which the second waits for the first."""
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
        if is_stateful(node) and node.op not in READS | ASSIGNMENTS:
            return math.inf
        return self._builder.analysis.statics.bytes_of(node)

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
        for replica in builder.own(result.source, variance):
            name = f"output_{index}_{replica}"
            builder.result.signature.output_arg.add(name=name, type=result.type)
            builder.result.ret[name] = builder.tensor(result.source, replica)


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
        waits = [f"^{name}" for name in sorted(ends - effects.keys())]
        if len(waits) > 1:
            # One waits for all on a replica: what follows the call waits for each of these.
            name, device = f"tpunb_end/replica_{replica}", builder.cores[replica][0]
            waits = [builder.add("NoOp", name, device, waits)]
        effects.update(dict.fromkeys(name.lstrip("^") for name in waits))
    for name, argument in sorted(builder.analysis.arguments.items()):
        if argument.copy_type is not None:
            copied = write_last_values(builder, name, argument.copy_type)
            effects.update(dict.fromkeys(copied))
    for number, name in enumerate(effects):
        builder.result.control_ret[f"effect_{number}"] = name
        builder.result.signature.control_output.append(f"effect_{number}")


def write_lifted(builder: Builder, node: NodeDef) -> None:
    """Writes control flow containing collectives, widened to all replicas."""
    analysis, is_loop = builder.analysis, node.op in LOOPS
    sources = data_inputs(node) if is_loop else data_inputs(node)[1:]
    outputs = analysis.output_variances[node.name]
    variances = outputs if is_loop else [*map(analysis.variance, sources)]
    copy = builder.copy_of(node, 0)
    copy.device = builder.cores[0][0]
    if not is_loop:
        # An `If` takes any type for true or false; a `Case` takes an index.
        kind = dtypes.as_dtype(node.attr["Tcond"].type) if "Tcond" in node.attr else dtypes.int32
        predicate = data_inputs(node)[0]
        copy.input.append(_agreed(builder, f"{node.name}/agreed", predicate, kind))
    types = _widened(builder, node.attr["T" if is_loop else "Tin"], sources, variances)
    for source, variance in zip(sources, variances, strict=True):
        replicas = builder.own(source, variance)
        copy.input.extend(builder.tensor(source, replica) for replica in replicas)
    copy.input.extend(builder.all_waits(node, builder.replicas))
    # A loop gives what it takes, handles of variables too.
    results = (
        sources if is_loop else [Reference(node.name, f":output:{k}") for k in range(len(outputs))]
    )
    given = _widened(builder, node.attr["T" if is_loop else "Tout"], results, outputs)
    set_types(copy, types, given)
    for function in function_attributes(copy):
        is_condition = is_loop and function.name == node.attr["cond"].func.name
        body = builder.copies.library(function.name)
        names = [argument.name for argument in body.signature.input_arg]
        arguments = body_arguments(names, sources, variances, analysis.arguments)
        inner = analyze(body, arguments, builder.copies.library)
        inside = builder.for_body(body, inner, f"{builder.path}{node.name}/")
        write_nodes(inside)
        if is_condition:
            _write_condition(inside)
        else:
            write_results(inside, returned(body), outputs)
            write_effects(inside)
        builder.lifted += [*inside.lifted, inside.result]
        function.name = inside.result.signature.name
    copy.attr["_lower_using_switch_merge"].b = True
    place = 0
    for index, (source, variance) in enumerate(zip(results, outputs, strict=True)):
        places = {owner: place + k for k, owner in enumerate(builder.own(source, variance))}
        for replica in builder.replicas:
            found = places.get(builder.handles.holder(source, replica), place)
            text = f"{copy.name}:output:{found}"
            builder.tensors[node.name, f":output:{index}", replica] = text
        place += len(places)
    for replica in builder.replicas:
        builder.controls[node.name][replica] = [copy.name]


def _widened(
    builder: Builder,
    types: AttrValue,
    sources: Sequence[Reference],
    variances: Sequence[Variance],
) -> list[int]:
    """The types of what control flow takes or gives, once for each replica that has its own."""
    return [
        kind
        for kind, source, variance in zip(types.list.type, sources, variances, strict=True)
        for _ in builder.own(source, variance)
    ]


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
    checks = []
    for replica in builder.replicas[1:]:
        check, end = f"{name}/equal_{replica}", f"{name}/assert_{replica}"
        builder.add("Equal", check, device, [f"{first}:output:0", values[replica]], T=attribute)
        text = (
            f"Replica {replica} and replica 0 disagree about a condition around a cross-replica "
            "operation. On a TPU this hangs: make the condition the same on every replica."
        )
        message = add_constant(
            builder.add, f"{name}/message_{replica}", device, text, dtypes.string
        )
        inputs, types = [f"{check}:z:0", message], types_of([dtypes.string])
        checks.append(
            "^" + builder.add("Assert", end, device, inputs, T=types, summarize=integer(1))
        )
    builder.add("Identity", name, device, [f"{first}:output:0", *checks], T=attribute)
    return f"{name}:output:0"


def write_joined(builder: Builder, node: NodeDef) -> None:
    """Writes a node that stands for those of all replicas, as its plan says."""
    plan = builder.analysis.plans[node.name]
    joined = builder.copy_of(node, 0)
    if plan.op:
        joined.op = plan.op
        joined.attr.clear()
    for key, value in plan.attributes.items():
        joined.attr[key].CopyFrom(value)
    if plan.bodies:
        names = {name: _write_body(builder, node, body) for name, body in plan.bodies.items()}
        for function in function_attributes(joined):
            function.name = names[function.name]
        keys = ("T", "T") if node.op in LOOPS else ("Tin", "Tout")
        set_types(joined, *(list(node.attr[key].list.type) for key in keys))
        # As a kernel it runs its functions as they are.
        joined.attr["_lower_using_switch_merge"].b = False
    sources = data_inputs(node)
    joined.input.extend(
        builder.joined.input(sources[place], take)
        if take.constant is None
        else builder.joined.constant(take)
        for place, take in enumerate(plan.takes)
    )
    joined.input.extend(builder.waits_of_one(node))
    if builder.path:
        builder.copies.sign(joined, builder.path + joined.name)
    if plan.bodies:
        keep_from_folding(builder.add, joined)


def _write_body(builder: Builder, node: NodeDef, body: Body) -> str:
    """Writes a function of joined control flow for all replicas and gives its name."""
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


def write_nodes(builder: Builder) -> None:
    """Writes what becomes of the nodes of a function."""
    write = {
        Role.COLLECTIVE: write_collective,
        Role.UPDATE: write_update,
        Role.LIFTED: write_lifted,
        Role.JOINED: write_joined,
        Role.COMPUTE: write_copies,
    }
    nodes, roles = builder.analysis.order, builder.analysis.roles
    unused = {node.name for node in nodes if not builder.runs(node)}
    if not any(roles[name] in _WIRED for name in unused):
        # TensorFlow would prune them, from a graph that is larger by all replicas' copies.
        nodes = [node for node in nodes if node.name not in unused]
    for node in nodes:
        write[roles[node.name]](builder, node)
    take_turns(builder)


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
    if function.sizes is not None and not guarded:
        analysis = join(flat, analysis, function)
    builder = Builder(
        flat, analysis, function.cores, copies, name, function.at_once, shapes=function.shapes
    )
    outputs = returned(flat)
    places = {output: place for place, output in enumerate(dict.fromkeys(outputs))}
    write_nodes(builder)
    write_results(builder, list(places), [Variance.VARYING] * len(places))
    write_effects(builder)
    return Expansion(
        definition=builder.result,
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
