"""Operations, types and variables that a TPU refuses, found in a replica function's graph.

XLA on a CPU accepts most of them, so it cannot be asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tpunb.errors.code_problems import Problem
from tpunb.errors.compiler_refusals import FIXED_LIST, PADDED_TO_BOUND
from tpunb.tensorflow.virtual.copies.variable_copies import copy_with, handle_of, is_copy
from tpunb.tensorflow.virtual.graph.function_def import (
    BRANCHES,
    FRESH,
    OUTSIDE,
    READS,
    Library,
    called_functions,
    data_inputs,
    needed,
)
from tpunb.tensorflow.virtual.graph.kernels import compiles, why_not
from tpunb.tensorflow.virtual.graph.traced_function import TracedFunction
from tpunb.tensorflow.virtual.private_names import (
    FunctionDef,
    NodeDef,
    dtypes,
    in_save_context,
    tensor_util,
)
from tpunb.tensorflow.virtual.strict.accepted_ops import PRODUCTS, is_known
from tpunb.tensorflow.virtual.strict.ignored_seeds import ignored_seed

_WHERE = (
    "Work at a fixed shape: compute a mask and multiply, or give `tf.where` all three arguments."
)
_UNIQUE = (
    "Find distinct values in the input pipeline (tf.data), or count into a fixed number of bins."
)
_PARTITION = "Work on all rows at a fixed shape and select with a mask."
_SUPPRESSION = "Use `tf.image.non_max_suppression_padded(..., pad_to_max_output_size=True)`."

# Operations whose result has a size that depends on the data.
_DYNAMIC = {
    "Where": ("`tf.where` with one argument or `tf.boolean_mask`", _WHERE),
    "Unique": ("`tf.unique`", _UNIQUE),
    "UniqueV2": ("`tf.unique`", _UNIQUE),
    "UniqueWithCounts": ("`tf.unique_with_counts`", _UNIQUE),
    "UniqueWithCountsV2": ("`tf.unique_with_counts`", _UNIQUE),
    "ListDiff": ("`tf.setdiff1d`", _UNIQUE),
    "DynamicPartition": ("`tf.dynamic_partition`", _PARTITION),
    "NonMaxSuppressionV3": ("`tf.image.non_max_suppression`", _SUPPRESSION),
    "NonMaxSuppressionV4": ("`tf.image.non_max_suppression`", _SUPPRESSION),
}
_PADDED = "pad_to_max_output_size"

_GROWS = "resize_if_index_out_of_bounds"
_LIST_MESSAGE = (
    "XLA compilation requires a fixed tensor list size. Set the max number of elements. This "
    "could also happen if you're using a TensorArray in a while loop that does not have its "
    "maximum_iteration set, you can fix this by setting maximum_iteration to a proper value."
)

# Operations that the TPU's compiler does not rewrite for 32-bit cores, measured with libtpu 0.0.52.
_NOT_IN_FLOAT64 = frozenset(
    {"MaxPoolGrad", "MaxPoolGradV2", "MaxPool3DGrad"}
    | {"RandomStandardNormal", "RandomUniform", "TruncatedNormal"}
)
# Types that no TPU's memory holds.
_NO_TPU_TYPES = frozenset({dtypes.string, dtypes.complex128})
# Operations that describe or move float64 values, and compute nothing.
_LIGHT = frozenset(
    {"Cast", "Const", "Identity", "IdentityN", "Reshape", "Shape", "XlaSharding", "ZerosLike"}
    | {"AllToAll", "CollectivePermute", "CrossReplicaSum", "If", "StatelessIf", "Case"}
    | {"PartitionedCall", "StatefulPartitionedCall", "While", "StatelessWhile"}
    | {"AssignVariableOp", "ReadVariableOp", "VariableShape"}
)
_FLOAT64_FIX = "Cast to float32 in the input pipeline; NumPy arrays are float64 by default."

_INT64_FIX = "Cast to int32 or float32 first; NumPy's integers are int64 by default."

_SOFT_PLACEMENT = (
    "One approach is to outside compile the unsupported ops to run on CPUs by enabling soft "
    "placement `tf.config.set_soft_device_placement(True)`. This has a potential performance "
    "penalty."
)
_HOST_FIX = (
    "Do it in the input pipeline (tf.data) or after the step on what it returns; with "
    "`tf.config.set_soft_device_placement(True)` it runs on the host, which the cores wait for."
)

_DENSE_CTC = (
    "Use `tf.nn.ctc_loss(labels, logits, label_length, logit_length, logits_time_major=False, "
    "blank_index=-1)` with dense labels, which TPUs run. If a softmax gives probabilities p, the "
    "logits are `tf.math.log(p + 1e-7)`."
)
_FIXES = {"CTCLoss": _DENSE_CTC, "CTCLossV2": _DENSE_CTC}
"""The fixes for operations that cannot move to the host, by operation."""


def statically_found(traced: TracedFunction) -> list[Problem]:
    """Return the findings that need no compiler and no counting of memory."""
    return [
        *_foreign_types(traced.definition),
        *_out_of_scope_variables(traced),
        *_problems_of_nodes(traced.definition, traced.library, traced.graph.name, "", frozenset()),
    ]


def _problems_of_nodes(
    function: FunctionDef, library: Library, name: str, path: str, around: frozenset[str]
) -> Iterator[Problem]:
    """Yield the findings about each node by itself, in the order of the nodes.

    Args:
        function: The replica function, or a function of its loops and branches, calls written out.
        library: Finds the functions of its loops and branches.
        name: The graph's name in messages.
        path: The names of the nodes around the function, as a prefix of its nodes' names.
        around: The functions around it.
    """
    nodes = {node.name: node for node in function.node_def}
    examined = needed(function) - _serve_assertions(function)
    for node in function.node_def:
        if OUTSIDE in node.attr:
            continue  # together with everything that it calls
        if node.name in examined:
            yield from _problems_of_node(node, nodes, name, path)
            if (seed := ignored_seed(node, path)) is not None:
                yield seed
        for callee in called_functions(node):
            if callee not in around:
                inner = f"{path}{node.name}/"
                yield from _problems_of_nodes(
                    library(callee), library, name, inner, around | {callee}
                )


def _problems_of_node(
    node: NodeDef, nodes: dict[str, NodeDef], name: str, path: str
) -> Iterator[Problem]:
    if is_known(node):
        return
    if not compiles(node):
        yield _unsupported(node, name, path)
    elif node.op in _DYNAMIC and not (_PADDED in node.attr and node.attr[_PADDED].b):
        yield _dynamic(node, path)
    elif _is_unbounded(node, nodes):
        reason = "The TensorArray or the loop has no fixed size, so no memory can be reserved."
        yield _problem("list-size", node, path, reason, FIXED_LIST, _LIST_MESSAGE)
    elif _computes_in(node, dtypes.complex128):
        yield _complex128(node, path)
    elif dtype := _never_rewritten(node):
        yield _x64(node, path, dtype)
    elif node.op not in _LIGHT and _computes_in(node, dtypes.float64):
        yield _float64(node, path)


def _unsupported(node: NodeDef, name: str, path: str) -> Problem:
    named = f"{{{{node {path}{node.name}}}}}"
    return _problem(
        "unsupported-op",
        node,
        path,
        f"{node.op} {why_not(node)}.",
        _FIXES.get(node.op, _HOST_FIX),
        (
            f"Detected unsupported operations when trying to compile graph {name} on XLA_TPU_JIT: "
            f"{node.op} (No registered '{node.op}' OpKernel for XLA_TPU_JIT devices compatible "
            f"with node {named}){named}\n{_SOFT_PLACEMENT}"
        ),
    )


def _problem(rule: str, node: NodeDef, path: str, reason: str, fix: str, message: str) -> Problem:
    return Problem(rule, reason, fix, message=message, node=path + node.name, op=node.op)


def _dynamic(node: NodeDef, path: str) -> Problem:
    called, fix = _DYNAMIC[node.op]
    return _problem(
        "dynamic-shape",
        node,
        path,
        f"{called} gives a tensor whose size depends on the data: {PADDED_TO_BOUND}",
        fix,
        (
            f"No registered '{node.op}' OpKernel for 'TPU' devices compatible with node "
            f"{{{{node {path}{node.name}}}}}"
        ),
    )


def _is_unbounded(node: NodeDef, nodes: dict[str, NodeDef]) -> bool:
    """Return whether a list may get any number of elements."""
    if _GROWS in node.attr and node.attr[_GROWS].b:
        return True
    if node.op not in FRESH:
        return False
    origin = nodes.get(data_inputs(node)[1].source)
    if origin is None or origin.op != "Const":
        return False  # the number is passed in or computed, which lowering can tell
    return int(tensor_util.MakeNdarray(origin.attr["value"].tensor)) < 0


def _computes_in(node: NodeDef, dtype: dtypes.DType) -> bool:
    return any(
        value.WhichOneof("value") == "type" and value.type == dtype.as_datatype_enum
        for value in node.attr.values()
    )


def _never_rewritten(node: NodeDef) -> str:
    """Return the 64-bit type in which a TPU cannot compute an operation at all, or `""`."""
    if node.op in PRODUCTS:
        return next((k.name for k in (dtypes.int64, dtypes.uint64) if _computes_in(node, k)), "")
    return "float64" if node.op in _NOT_IN_FLOAT64 and _computes_in(node, dtypes.float64) else ""


def _x64(node: NodeDef, path: str, dtype: str) -> Problem:
    return _problem(
        "x64-op",
        node,
        path,
        f"{node.op} is computed in {dtype}, which a TPU's compiler cannot do.",
        _FLOAT64_FIX if dtype == "float64" else _INT64_FIX,
        (
            "While rewriting computation to not contain X64 element types, XLA encountered an "
            f"HLO for which this rewriting is not implemented: {node.op} in {dtype} "
            f"{{{{node {path}{node.name}}}}}"
        ),
    )


def _complex128(node: NodeDef, path: str) -> Problem:
    return _problem(
        "unsupported-type",
        node,
        path,
        f"{node.op} is computed in complex128, a type that a TPU does not have.",
        "Cast to complex64.",
        f"Unsupported data type for TPU: complex128, caused by output {node.name}:0",
    )


def _float64(node: NodeDef, path: str) -> Problem:
    reason = f"{node.op} is computed in float64, which a TPU emulates with float32."
    return _problem("float64", node, path, reason, _FLOAT64_FIX, reason)


def _serve_assertions(function: FunctionDef) -> set[str]:
    """Return the nodes that only feed an assertion: a TPU leaves assertions out."""
    consumers: dict[str, set[str]] = {node.name: set() for node in function.node_def}
    for node in function.node_def:
        for text in node.input:
            source = text.lstrip("^").partition(":")[0]
            if source in consumers and not text.startswith("^"):
                consumers[source].add(node.name)
    returned = {text.partition(":")[0] for text in function.ret.values()}
    serving = {node.name for node in function.node_def if node.op == "Assert"}
    for node in reversed(function.node_def):
        users = consumers[node.name]
        if users and users <= serving and node.name not in returned:
            serving.add(node.name)
    return serving


def _foreign_types(definition: FunctionDef) -> Iterator[Problem]:
    """Yield problems for the function's arguments and results that no core can hold."""
    for argument in (*definition.signature.input_arg, *definition.signature.output_arg):
        dtype = dtypes.as_dtype(argument.type)
        if dtype in _NO_TPU_TYPES:
            goes = "goes into" if argument.name not in definition.ret else "comes out of"
            source = definition.ret.get(argument.name, argument.name).partition(":")[0]
            users = [node.name for node in definition.node_def if source in node.input]
            yield Problem(
                "unsupported-type",
                reason=f"A {dtype.name} tensor {goes} the replica function: no TPU can hold it.",
                fix="Encode it as numbers in the input pipeline (tf.data), or leave it out.",
                message=f"Unsupported data type for TPU: {dtype.name}, caused by output {source}:0",
                # An argument has no line, but the first node that reads it has.
                node=users[0] if users else source,
            )


def _out_of_scope_variables(traced: TracedFunction) -> Iterator[Problem]:
    """Yield problems for variables outside the cores that each replica would write in turn.

    Reading such a variable is allowed: a TPU's program gets its value from the host.
    """
    if traced.variables_anywhere:
        return
    yield from _set_first_copies(traced)
    definition = traced.definition
    known = {id(handle_of(variable)): variable for variable in traced.graph.variables}
    outer = {id(inner): value for value, inner in traced.graph.captures}
    names = [argument.name for argument in definition.signature.input_arg]
    for name, placeholder in zip(names, traced.graph.inputs, strict=True):
        handle = outer.get(id(placeholder))
        variable = known.get(id(handle), copy_with(handle))
        if variable is None or id(placeholder) in traced.variables:
            continue
        node = _touching(definition, name, traced.library)
        if node is not None:
            yield _out_of_scope(node, variable, traced.device)


def is_set(traced: TracedFunction, name: str) -> bool:
    """Return whether a core does more than read the variable that is an argument."""
    return _touching(traced.definition, name, traced.library) is not None


def _set_first_copies(traced: TracedFunction) -> Iterator[Problem]:
    """Yield problems for the first copies that a function sets although it uses their variables.

    The problems of other copies are found by the handles, which only these copies have.
    """
    if in_save_context():
        return  # the first copy represents the variable in a saved model
    for use in traced.graph.copy_uses:
        variable = traced.graph.tracing.variables[id(use.handle)]
        node = use.operation.node_def
        if _sets(node, use.index, traced.library):
            yield _copy_is_set(node, f"{variable.name}:0")


def _sets(node: NodeDef, index: int, library: Library) -> bool:
    """Return whether a core does more than read the variable that a node takes as an input."""
    return OUTSIDE not in node.attr and node.op not in READS and _touches(node, index, library)


def _touching(function: FunctionDef, name: str, library: Library) -> NodeDef | None:
    """Return the first node that does more on a core with an argument's variable than read it."""
    for node in function.node_def:
        for index, source in enumerate(data_inputs(node)):
            if source.source == name and _sets(node, index, library):
                return node
    return None


def _touches(node: NodeDef, index: int, library: Library) -> bool:
    """Return whether a node does more than read the variable that it takes as an input."""
    bodies = list(map(library, called_functions(node)))
    inner = index - (node.op in BRANCHES)  # a branch does not see its condition
    return not bodies or any(
        _touching(body, body.signature.input_arg[inner].name, library) is not None
        for body in bodies
    )


def _out_of_scope(node: NodeDef, variable: Any, device: str) -> Problem:
    reason = f"The variable {variable.name} was made outside of the strategy's scope."
    fix = "Make models, optimizers, metrics and variables inside `with strategy.scope():`."
    message = (
        f"Trying to access resource {variable.name} located in device {variable.device} from "
        f"device {device}"
    )
    if is_copy(variable) and not in_save_context():
        return _copy_is_set(node, variable.name)
    if in_save_context():  # here a variable of the scope appears without its copies
        reason = (
            "A function that returns no tensor is traced again when it is saved, where a variable "
            "has no copies for the replicas to set."
        )
        fix = "Return a tensor from it, such as `tf.identity(v)`, or leave it out of the model."
        message = f"{variable.name} cannot be set on the replicas while a model is saved."
    return Problem("scope", reason, fix, message=message, node=node.name, op=node.op)


def _copy_is_set(node: NodeDef, name: str) -> Problem:
    return Problem(
        "scope",
        f"{name} is the copy of one replica, and every replica would set it.",
        "Use the variable itself: `v.assign(...)` sets the copy of the replica that runs. To set "
        "one copy, call `v.values[0].assign(...)` outside of the replica function.",
        message=f"{name} cannot be set on the other replicas.",
        node=node.name,
        op=node.op,
    )
