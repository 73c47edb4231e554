"""A replica function with stand-ins for everything that the compiler does not compile.

Operations of the same shape replace cross-replica operations. Arguments replace operations that
soft device placement runs on the host. A loop or a branch gets no further arguments: numbers
unknown to the compiler replace what the host sends there. Operations that TensorFlow lowers
differently for a CPU than for a TPU are marked for the TPU's own compiler.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tpunb.errors.code_problems import Problem
from tpunb.tensorflow.virtual.graph.collectives import groups, source_target_pairs
from tpunb.tensorflow.virtual.graph.function_def import (
    COLLECTIVES,
    CONTROL_FLOW,
    LOOPS,
    OUTSIDE,
    Library,
    called_functions,
    has_collectives,
    has_outside,
    integer,
    make_identity,
    needed,
    new_constant,
    new_node,
    type_of,
)
from tpunb.tensorflow.virtual.graph.rewrite import Rewrite, inlined
from tpunb.tensorflow.virtual.graph.tensorflow_graphs import body_of, named_operations
from tpunb.tensorflow.virtual.graph.traced_function import ANY_SIZE, TracedFunction
from tpunb.tensorflow.virtual.private_names import (
    FunctionDef,
    NodeDef,
    dtypes,
    op_def_registry,
    tensor_util,
)


class Unknown(Exception):
    """A function cannot be compiled by itself, so nothing is known of it."""


NO_TENSORS = frozenset({dtypes.resource, dtypes.variant})
"""The types that the host cannot send to a core."""


@dataclasses.dataclass(frozen=True)
class Host:
    """The part of a function that runs on the host.

    Attributes:
        nodes: The nodes on the host, with the tensors that each gives to the core's nodes, by the
            end of the reference to the tensor.
        inside: The same for the functions of the loops and branches, by the names of their nodes
            and of the functions.
    """

    nodes: Mapping[str, Mapping[str, tf.TensorSpec]] = dataclasses.field(default_factory=dict)
    inside: Mapping[tuple[str, str], Host] = dataclasses.field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.nodes or self.inside)

    @property
    def specs(self) -> list[tf.TensorSpec]:
        """The tensors that its nodes give to the core, outside loops and branches."""
        return [spec for specs in self.nodes.values() for spec in specs.values()]


def on_host(traced: TracedFunction, problems: Iterable[Problem]) -> Host:
    """Find the part of a replica function on the host, and the tensors that the cores take from it.

    Args:
        traced: The function.
        problems: The problems in it. An operation without a TPU kernel runs on the host, if at all.

    Raises:
        Unknown: The host's tensors are not known.
    """
    unsupported = {problem.node for problem in problems if problem.code == "unsupported-op"}
    return _Search(traced.library, unsupported).of(traced.definition, traced.graph, "", ())


class _Search:
    def __init__(self, library: Library, unsupported: Collection[str]) -> None:
        self._library = library
        self._unsupported = unsupported
        self._operations = functools.cache(lambda graph: dict(named_operations(graph)))

    def of(self, function: FunctionDef, graph: Any, path: str, returned: Iterable[str]) -> Host:
        """Find the part of a function that runs on the host.

        Args:
            function: The function, its calls written out.
            graph: The traced graph of the function; None if that is not known.
            path: The names of the nodes around it, as a prefix.
            returned: The tensors that go to a core besides the inputs of its own nodes.
        """
        hosted = {
            node.name: node
            for node in function.node_def
            if OUTSIDE in node.attr or path + node.name in self._unsupported
        }
        cores = [node for node in function.node_def if node.name not in hosted]
        used = {text for node in cores for text in node.input}.union(returned)
        host_tensors = {name: self._given_by(graph, node, used) for name, node in hosted.items()}
        inside = {
            (node.name, name): host_part
            for node in cores
            for name in called_functions(node)
            if (host_part := self._inside(node, name, graph, path))
        }
        return Host(host_tensors, inside)

    def _inside(self, node: NodeDef, name: str, graph: Any, path: str) -> Host:
        around = f"{path}{node.name}/"
        body = self._library(name)
        if not has_outside(body, self._library) and not any(
            unsupported.startswith(around) for unsupported in self._unsupported
        ):
            return Host()
        body = inlined(body, self._library)
        operation = None if graph is None else self._operations(graph).get(node.name)
        traced = None if operation is None else body_of(operation.graph, name)
        return self.of(body, traced, around, body.ret.values())

    def _given_by(self, graph: Any, node: NodeDef, used: set[str]) -> dict[str, tf.TensorSpec]:
        """Return the tensors that a node gives to others, by the end of the reference to them."""
        ends = {text[len(node.name) :] for text in used if text.startswith(f"{node.name}:")}
        if not ends:
            return {}
        operation = None if graph is None else self._operations(graph).get(node.name)
        if operation is None:
            raise Unknown("It is not known what a node on the host gives.")
        arguments = [argument.name for argument in op_def_registry.get(node.op).output_arg]
        specs = {}
        for end in sorted(ends):
            _, argument, index = end.split(":")
            number = arguments.index(argument) if len(arguments) > 1 else int(index)
            tensor = operation.outputs[number]
            if tensor.dtype in NO_TENSORS:
                raise Unknown("A node on the host gives a value that is not a tensor.")
            specs[end] = tf.TensorSpec(tensor.shape, tensor.dtype)
        return specs


_ALL = "all"
"""All replicas in one group."""

RESIZINGS: Mapping[str, str] = {
    "ResizeBilinear": "ResizeBilinear",
    "ResizeBilinearGrad": "ResizeBilinearGrad",
    "ResizeNearestNeighbor": "ResizeNearest",
    "ResizeNearestNeighborGrad": "ResizeNearestGrad",
}
"""Operations with special kernels on a TPU, and the names of these kernels."""

_AUTO_SELECT = 3
"""`tf.random.Algorithm.AUTO_SELECT`."""

# A serialized xla.FrontendAttributes: {"tpunb_generator": "named"}.
_NAMED = b"\n\x18\n\x0ftpunb_generator\x12\x05named"


def mark_resizing(node: NodeDef, like: Sequence[NodeDef]) -> list[NodeDef]:
    """Return a barrier that replaces an operation that resizes images, or its gradient.

    Args:
        node: The operation.
        like: The nodes that give the shape and the type of its result; the last has its name.

    Returns:
        The nodes; the last has the operation's name.
    """
    flags = "".join(str(int(node.attr[key].b)) for key in ("align_corners", "half_pixel_centers"))
    like[-1].name = f"{node.name}/like"
    output = op_def_registry.get(like[-1].op).output_arg[0].name
    types = [node.attr["T"].type, node.attr["T"].type]
    if node.op.startswith("ResizeBilinear"):  # ResizeBilinear calculates in float32
        types[0 if node.op.endswith("Grad") else 1] = dtypes.float32.as_datatype_enum
    values = [node.input[0], f"{like[-1].name}:{output}:0"]
    return [*like, *_barrier(node, f"{RESIZINGS[node.op]}/{flags}", values, types)]


def names_generator(node: NodeDef, nodes: Mapping[str, NodeDef]) -> bool:
    """Return whether an operation names the algorithm that makes its random numbers.

    Args:
        node: The operation.
        nodes: The nodes of its function, by name.
    """
    definition = op_def_registry.get(node.op)
    inputs = [argument.name for argument in definition.input_arg] if definition else []
    if "algorithm" in inputs:  # the operation belongs to a tf.random.Generator
        return True
    if "alg" not in inputs:
        return False
    source = nodes.get(node.input[inputs.index("alg")].partition(":")[0])
    if source is None or source.op != "Const":  # TensorFlow chooses it, by StatelessRandomGetAlg
        return False
    return int(tensor_util.MakeNdarray(source.attr["value"].tensor)) != _AUTO_SELECT


def _barrier(
    node: NodeDef, meaning: str, values: Sequence[str], types: Sequence[int]
) -> list[NodeDef]:
    """Return a barrier after values of these types; the last value is a node's result."""
    barrier = NodeDef(name=f"{node.name}/{meaning}", op="XlaOptimizationBarrier", input=values)
    barrier.attr["T"].list.type.extend(types)
    last = f"{barrier.name}:output:{len(values) - 1}"
    result = NodeDef(name=node.name, op="Identity", input=[last])
    result.input.extend(text for text in node.input if text.startswith("^"))
    result.attr["T"].type = types[-1]
    return [barrier, result]


def marked_collective(node: NodeDef, nodes: Mapping[str, NodeDef]) -> list[NodeDef]:
    """Return a barrier for a cross-replica operation, after the nodes that give its shape.

    Args:
        node: The operation.
        nodes: The nodes of its function, by name.

    Returns:
        The nodes; the last has the operation's name. The list is empty if the
        communicating replicas depend on data, which a TPU refuses.
    """
    is_permutation = node.op == "CollectivePermute"
    try:
        rows = source_target_pairs(node, nodes) if is_permutation else groups(node, nodes)
    except ValueError:
        return []
    partners = "_".join("-".join(map(str, row)) for row in rows)
    if not is_permutation and len(rows) <= 1:
        partners = _ALL
    before, value = [], node.input[0]
    if node.op == "AllToAll" and node.attr["split_count"].i > 1:
        before = exchange(node)
        before[-1].name = f"{node.name}/exchanged"
        value = f"{before[-1].name}:output:0"
    return [*before, *_barrier(node, f"{node.op}/{partners}", [value], [node.attr["T"].type])]


def pass_on(node: NodeDef) -> None:
    """Make a node pass on its first input, which has the shape of its result."""
    first_input = [text for text in node.input if not text.startswith("^")][:1]
    controls = [text for text in node.input if text.startswith("^")]
    del node.input[:]
    node.input.extend([*first_input, *controls])
    make_identity(node)


def exchange(node: NodeDef) -> list[NodeDef]:
    """Return an `AllToAll`'s shape without its partners: split, and joined along another axis."""
    split_axis, concat_axis, count = (
        node.attr[key].i for key in ("split_dimension", "concat_dimension", "split_count")
    )
    dtype = node.attr["T"]
    from_axis = new_constant(f"{node.name}/s", split_axis)
    to_axis = new_constant(f"{node.name}/c", concat_axis)
    parts = new_node(
        "Split",
        f"{node.name}/parts",
        [f"{from_axis.name}:output:0", node.input[0]],
        T=dtype,
        num_split=integer(count),
    )
    joined = new_node(
        "ConcatV2",
        f"{node.name}/joined",
        [*(f"{parts.name}:output:{k}" for k in range(count)), f"{to_axis.name}:output:0"],
        T=dtype,
        N=integer(count),
        Tidx=type_of(dtypes.int32),
    )
    result = new_node("Identity", node.name, [f"{joined.name}:output:0"], T=dtype)
    return [from_axis, to_axis, parts, joined, result]


_INT32 = dtypes.int32.as_datatype_enum
_NOT_OF_A_CORE = frozenset(
    dtype.as_datatype_enum for dtype in (dtypes.resource, dtypes.variant, dtypes.string)
)


def write_unknown(function: FunctionDef, name: str, spec: tf.TensorSpec) -> str:
    """Write a tensor whose value the compiler cannot know; return the reference to it."""
    if spec.shape.rank is None or spec.dtype == dtypes.string:
        raise Unknown("The host gives what cannot go to a core.")
    sizes = [ANY_SIZE if size is None else size for size in spec.shape]
    shape = new_constant(f"{name}/shape", sizes)
    number = new_node(
        "RandomUniform",
        f"{name}/number",
        [f"{shape.name}:output:0"],
        T=type_of(dtypes.int32),
        dtype=type_of(dtypes.float32),
    )
    cast = new_node(
        "Cast",
        name,
        [f"{number.name}:output:0"],
        SrcT=type_of(dtypes.float32),
        DstT=type_of(dtypes.as_dtype(spec.dtype)),
    )
    function.node_def.extend([shape, number, cast])
    return f"{name}:y:0"


def hide_what_the_host_takes(
    node: NodeDef, bodies: Sequence[FunctionDef], used: Collection[str]
) -> list[NodeDef]:
    """Replace with numbers the inputs that only the host's part of a loop or a branch takes.

    Such inputs include a summary's writer and variables of the host, which no compiler takes.

    Args:
        node: The loop or branch; it is changed.
        bodies: Its functions, without the part on the host; they are changed.
        used: The references that anything reads.

    Returns:
        The nodes to write before the node.
    """
    is_loop = node.op in LOOPS
    types = node.attr["T" if is_loop else "Tin"].list.type
    unused = [
        index
        for index, dtype in enumerate(types)
        if dtype in _NOT_OF_A_CORE
        and all(_is_unused(body, index) for body in bodies)
        and not (is_loop and f"{node.name}:output:{index}" in used)
    ]
    if not unused:
        return []
    zero = new_constant(f"{node.name}/hosts", 0)
    for index in unused:
        types[index] = _INT32
        node.input[index if is_loop else index + 1] = f"{zero.name}:output:0"
        for body in bodies:
            _make_int32(body, index)
    return [zero]


def _is_unused(body: FunctionDef, index: int) -> bool:
    """Return whether a function at most returns an argument, as the result of its own index."""
    name = body.signature.input_arg[index].name
    outputs = [output.name for output in body.signature.output_arg]
    handed_on = [index for index, output in enumerate(outputs) if body.ret[output] == name]
    return set(handed_on) <= {index} and not any(name in node.input for node in body.node_def)


def _make_int32(body: FunctionDef, index: int) -> None:
    argument = body.signature.input_arg[index]
    for parameter in (argument, *body.signature.output_arg):
        if parameter is argument or body.ret[parameter.name] == argument.name:
            parameter.type = _INT32
            parameter.ClearField("handle_data")
            parameter.ClearField("experimental_full_type")
    body.arg_attr.pop(index, None)


_names = itertools.count()


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """An argument of the replica function.

    Attributes:
        spec: Its shape and type; sizes may be unknown. None for a variable.
        handle: A variable's handle on the first core.
        bounded: The axes whose sizes are only bounded, by the sizes in the spec.
    """

    spec: tf.TensorSpec | None = None
    handle: Any = None
    bounded: Sequence[int] = ()


LEAST_BOUND = 2
"""The least bound to which TensorFlow pads: XLA has no bounded sizes of 1."""


def parameters(traced: TracedFunction, *, bounded: bool = False) -> dict[str, Parameter]:
    """Return the arguments of a replica function for the compiler.

    Args:
        traced: The function.
        bounded: Whether open sizes are passed as bounded, as to a TPU with several replicas, and
            not as fixed at their largest.
    """
    outer = {id(inner): value for value, inner in traced.graph.captures}
    parameters = {}
    arguments = zip(
        traced.definition.signature.input_arg, traced.graph.inputs, traced.shapes, strict=True
    )
    for index, (argument, placeholder, shape) in enumerate(arguments):
        if placeholder.dtype in NO_TENSORS:
            handle = traced.variables.get(id(placeholder), outer.get(id(placeholder)))
            parameters[argument.name] = Parameter(handle=handle)
        else:
            axes = traced.open_axes.get(index, ()) if bounded else ()
            spec = tf.TensorSpec(_with_bounds(shape, axes), placeholder.dtype)
            parameters[argument.name] = Parameter(spec=spec, bounded=axes)
    return parameters


def _with_bounds(shape: tf.TensorShape, axes: Sequence[int]) -> tf.TensorShape:
    """Return a shape whose sizes along some axes are bounds."""
    if not axes:
        return shape
    sizes = shape.as_list()
    for axis in axes:
        sizes[axis] = ANY_SIZE if sizes[axis] is None else max(sizes[axis], LEAST_BOUND)
    return tf.TensorShape(sizes)


class CompilerFunctions:
    """Functions with stand-ins for everything that the compiler does not compile.

    Args:
        library: Finds functions by their names.
        for_tpu: Whether the TPU's own compiler continues from here. It knows the cross-replica
            operations, the annotations of partitions and a TPU's own kernels. For these, XLA on a
            CPU only needs operations of the same shape.
    """

    def __init__(self, library: Library, *, for_tpu: bool = False) -> None:
        self.written: list[FunctionDef] = []
        self._library = library
        self._for_tpu = for_tpu

    def write(
        self,
        function: FunctionDef,
        parameters: Mapping[str, Parameter],
        host: Host,
    ) -> tuple[FunctionDef, list[tf.TensorSpec]]:
        """Write the replica function: tensors first among its arguments, then variables.

        Returns:
            The function and the specs of its tensors.
        """
        host_arguments = [_argument(f"host_{k}", spec) for k, spec in enumerate(host.specs)]
        bounded, sizes, nodes = _bounded(parameters)
        ends = [name + end for name, specs in host.nodes.items() for end in specs]
        names = [argument.name for argument in host_arguments]
        result = self._copy(function, host, {**dict(zip(ends, names, strict=True)), **bounded})
        result.node_def.extend(nodes)
        arguments = list(function.signature.input_arg)
        tensors = [a for a in arguments if parameters[a.name].spec is not None]
        used = {text.partition(":")[0] for node in result.node_def for text in node.input}
        variables = [a for a in arguments if parameters[a.name].spec is None and a.name in used]
        new_arguments = [*tensors, *host_arguments, *sizes, *variables]
        del result.signature.input_arg[:]
        result.signature.input_arg.extend(new_arguments)
        result.arg_attr.clear()
        specs = [spec for a in tensors if (spec := parameters[a.name].spec) is not None]
        _drop_outputs(result, host)
        return result, [*specs, *host.specs, *(tf.TensorSpec([], tf.int32) for _ in sizes)]

    def _copy(
        self, function: FunctionDef, host: Host, instead: Mapping[str, str] | None = None
    ) -> FunctionDef:
        """Return a copy of a function without the part that runs on the host.

        Args:
            function: The function.
            host: The part that runs on the host.
            instead: The tensors that replace others, such as the host's; None for a body, where
                unknown numbers replace the host's tensors.
        """
        rewrite = Rewrite(function)
        result = rewrite.result
        result.signature.name = f"{function.signature.name}_lowered_{next(_names)}"
        rewrite.replace(_unknowns(result, host) if instead is None else instead)
        nodes = {node.name: node for node in function.node_def}
        run_nodes = needed(function)
        for node in function.node_def:
            if node.name in host.nodes:
                rewrite.drop(node.name)
            elif node.name in run_nodes:
                for stand_in in self._stand_in(node, nodes, host):
                    rewrite.keep(stand_in)
                if self._for_tpu and node.op in RESIZINGS:  # the node is an Identity now
                    rewrite.replace({f"{node.name}:resized_images:0": f"{node.name}:output:0"})
        rewrite.finish()
        if host:
            _prune(result)
        self.written.append(result)
        return result

    def _stand_in(self, node: NodeDef, nodes: Mapping[str, NodeDef], host: Host) -> list[NodeDef]:
        copy = NodeDef()
        copy.CopyFrom(node)
        copy.device = ""
        if self._for_tpu and node.op in COLLECTIVES and (marked := marked_collective(copy, nodes)):
            return marked
        if self._for_tpu and node.op == "XlaSharding":
            return [copy]
        if node.op == "AllToAll" and node.attr["split_count"].i > 1:
            return exchange(copy)
        if node.op in COLLECTIVES or node.op == "XlaSharding":
            pass_on(copy)
        if node.op == "FakeParam":
            _give_size(copy)
        if node.op in RESIZINGS:
            like = _like_resized(copy)
            return mark_resizing(node, like) if self._for_tpu else like
        if self._for_tpu and names_generator(node, nodes):
            copy.attr["_XlaFrontendAttributes"].s += _NAMED
        in_part = any((node.name, name) in host.inside for name in called_functions(node))
        bodies = []
        for key in sorted(copy.attr):
            value = copy.attr[key]
            functions = [value.func] if value.WhichOneof("value") == "func" else value.list.func
            for called in functions:
                inside = host.inside.get((node.name, called.name), Host())
                body = self._body(called.name, inside, copied=in_part)
                bodies.append(body)
                called.name = body.signature.name
        if not in_part or node.op not in CONTROL_FLOW:
            return [copy]
        used = {text for user in nodes.values() for text in user.input}
        return [*hide_what_the_host_takes(copy, bodies, used), copy]

    def _body(self, name: str, host: Host, *, copied: bool) -> FunctionDef:
        """Return a called function, or a copy of it if anything in it must be replaced."""
        body = self._library(name)
        if not copied and not _needs_copy(body, self._library):
            return body
        return self._copy(inlined(body, self._library) if host else body, host)


def size_argument(name: str, axis: int) -> str:
    """Return the name of the argument that is another argument's size along a bounded axis."""
    return f"{name}_size_{axis}"


def _bounded(
    parameters: Mapping[str, Parameter],
) -> tuple[dict[str, str], list[Any], list[NodeDef]]:
    """Return arguments with bounded sizes, as TensorFlow passes them to a TPU.

    Returns:
        The tensor that replaces each such argument; further arguments, the size along each bounded
        axis; and the nodes that give the tensors.
    """
    sizes, nodes, bounded = [], [], {}
    for name, parameter in parameters.items():
        value, spec = name, parameter.spec
        if spec is None:
            continue
        for axis in parameter.bounded:
            size = _argument(size_argument(name, axis), tf.TensorSpec([], tf.int32))
            of_axis = new_constant(f"{name}/axis_{axis}", axis)
            node = new_node(
                "XlaSetDynamicDimensionSize",
                f"{name}/bounded_{axis}",
                [value, f"{of_axis.name}:output:0", size.name],
                T=type_of(spec.dtype),
            )
            value = f"{node.name}:output:0"
            sizes.append(size)
            nodes += [of_axis, node]
        if value != name:
            bounded[name] = value
    return bounded, sizes, nodes


def _unknowns(body: FunctionDef, host: Host) -> dict[str, str]:
    """Write unknown numbers for the host's tensors in a body; return their references."""
    return {
        name + end: write_unknown(body, f"{name}/of_the_host_{index}", spec)
        for name, specs in host.nodes.items()
        for index, (end, spec) in enumerate(specs.items())
    }


def _prune(function: FunctionDef) -> None:
    """Leave out nodes that are no longer needed."""
    run_nodes = needed(function)
    nodes = [node for node in function.node_def if node.name in run_nodes]
    del function.node_def[:]
    function.node_def.extend(nodes)


def _drop_outputs(function: FunctionDef, host: Host) -> None:
    """Leave out results that a compiler cannot return: the host's, and resources."""
    for output in list(function.signature.output_arg):
        source = function.ret[output.name].partition(":")[0]
        dtype = dtypes.as_dtype(output.type)
        if source in host.nodes or dtype in {dtypes.resource, dtypes.variant}:
            function.signature.output_arg.remove(output)
            del function.ret[output.name]


def _needs_copy(function: FunctionDef, library: Library) -> bool:
    if has_collectives(function, library) or len(needed(function)) < len(function.node_def):
        return True
    nodes = {node.name: node for node in function.node_def}
    return any(
        node.op in {"XlaSharding", "FakeParam"}
        or node.op in RESIZINGS
        or names_generator(node, nodes)
        or OUTSIDE in node.attr
        or node.device
        or any(_needs_copy(library(name), library) for name in called_functions(node))
        for node in function.node_def
    )


def _give_size(node: NodeDef) -> None:
    """Give a missing result of a branch the size that it most likely has in the other branches.

    TensorFlow writes 0 for an unknown size (`_convert_dynamic_dimension_to_zero`). The results of
    the branches then differ in shape, which XLA does not check: it accessed memory out of bounds
    and crashed the process.
    """
    for dimension in node.attr["shape"].shape.dim:
        if dimension.size <= 0:
            dimension.size = ANY_SIZE


def _like_resized(node: NodeDef) -> list[NodeDef]:
    """Return nodes that give a tensor like a resizing's; XLA has no kernels for its gradients."""
    if not node.op.endswith("Grad"):
        return [node]
    if node.op == "ResizeBilinearGrad":
        del node.input[0]  # only the image remains
        pass_on(node)
        return [node]
    back = NodeDef()
    back.CopyFrom(node)
    back.name, back.op = f"{node.name}/back", "ResizeNearestNeighbor"
    del node.input[:]
    node.input.append(f"{back.name}:resized_images:0")
    pass_on(node)
    return [back, node]


def _argument(name: str, spec: tf.TensorSpec) -> Any:
    argument = FunctionDef().signature.input_arg.add()
    argument.name, argument.type = name, spec.dtype.as_datatype_enum
    return argument
