"""Compilation of a replica function as far as XLA's intermediate form, without running it.

XLA on a CPU knows nothing of a core's links, or of code that runs on the host beside a core.
Stand-ins replace both, and the rest is the code that a TPU would compile.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tpunb._util.child_process import ChildLostError
from tpunb._util.deadline import Deadline
from tpunb._util.logs import timed
from tpunb.errors.code_problems import Problem
from tpunb.errors.compiler_refusals import FIXED_SHAPE, PADDED_TO_BOUND, XLA, refusal_of
from tpunb.tensorflow.virtual.copies.variable_copies import value_of_handle
from tpunb.tensorflow.virtual.graph.function_def import Library, called_functions
from tpunb.tensorflow.virtual.graph.traced_function import ANY_SIZE, TracedFunction
from tpunb.tensorflow.virtual.private_names import FunctionDef, op_def_registry, ops
from tpunb.tensorflow.virtual.strict.stand_ins import CompilerFunctions, Host, Unknown, parameters
from tpunb.tensorflow.virtual.strict.xla import Answer, Request, ask
from tpunb.virtual.strictness import UNCHECKED

# TensorFlow 2.21: `[[{{node while/body/strided_slice}}]]`
_NODE = re.compile(r"{{node ([^}]+)}}")
# TensorFlow 2.21: `%strided_slice_1.33 = f32[<=4]{0} set-dimension-size(f32[4]{0} …), …,
# metadata={op_type="StridedSlice" op_name="strided_slice_1" source_file=…}`
_BOUNDED = re.compile(r"<=\d+")
_METADATA = re.compile(r'op_type="([^"]*)" op_name="([^"]+)"')
# Parts of a message that are for the compiler's own developers.
_OF_THE_COMPILER = re.compile(
    r"\s*(?:Stack trace for op definition:|\[\[|tf2xla conversion failed)"
)
# Messages about the compiler itself or about its call, and not about the function.
_OF_ITS_OWN_STATE = re.compile(
    r"RET_CHECK failure \(tensorflow/(?:compiler/jit|core)/"
    r"|ninitialized|is_initialized"
    r"|RESOURCE_EXHAUSTED|[Oo]ut of memory|OOM when allocating|bad_alloc"
    r"|Op type not registered|in function library|[Ff]unction \S+ (?:is not defined|not found)"
    r"|transfer manager|compiler for platform|located in device"
    # From jax2tf: the module is for a TPU only.
    r"|is not among the platforms required by the module"
)


@timed("strict", "lower the replica function to HLO")
def lower(traced: TracedFunction, host: Host) -> Problem | None:
    """Compile a replica function to HLO.

    Args:
        traced: The function.
        host: The nodes that run on the host, and their results.

    Returns:
        The reason why it does not compile, or None.

    Raises:
        Unknown: It cannot be compiled by itself.
    """
    lowered = _lowered(traced, host, for_tpu=False)
    if isinstance(lowered, Refused):
        lowered = _problem(lowered)
    return lowered if isinstance(lowered, Problem) else _bounded(lowered.text)


def lower_with_bounds(traced: TracedFunction, host: Host) -> Refused | Problem | None:
    """Compile a replica function to HLO as a TPU gets it if sizes are not fixed.

    Returns:
        The reason why it does not compile, or why that is not known (a `Problem`); None if it
        compiles.

    Raises:
        Unknown: It cannot be compiled by itself.
    """
    lowered = _lowered(traced, host, for_tpu=False, bounded=True)
    return None if isinstance(lowered, Lowered) else lowered


@dataclasses.dataclass(frozen=True, slots=True)
class Refused:
    """A refusal by XLA.

    Attributes:
        message: The message.
        node: The name of the node that the message is about; empty if it names none.
        sized: Whether all sizes were known; `ANY_SIZE` replaced the others.
    """

    message: str
    node: str
    sized: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Lowered:
    """A replica function as HLO.

    Attributes:
        text: HLO for a reader; empty if another compiler continues.
        module: A serialized `HloModuleProto` for that compiler.
        arguments: The names of its arguments in the function, in order.
        held_bytes: The bytes of the arguments, or of the results if these are larger, without
            padding.
        sized: Whether all sizes are known; `ANY_SIZE` replaced the others.
    """

    text: str
    module: bytes
    arguments: tuple[str, ...]
    held_bytes: int
    sized: bool


@timed("strict", "lower the replica function for a TPU's compiler")
def lower_for_tpu(
    traced: TracedFunction, host: Host, deadline: Deadline, *, bounded: bool = False
) -> Lowered | Problem | Refused:
    """Compile a replica function to HLO that a TPU's compiler can continue from; see `lower`.

    Args:
        traced: The function.
        host: The nodes that run on the host, and their results.
        deadline: The time by which everything must be done.
        bounded: Whether sizes that are not fixed are bounded in the program. The refusal of a
            function with such sizes is XLA's own.
    """
    lowered = _lowered(traced, host, deadline, for_tpu=True, bounded=bounded)
    return _problem(lowered) if isinstance(lowered, Refused) and not bounded else lowered


def _lowered(
    traced: TracedFunction,
    host: Host,
    deadline: Deadline | None = None,
    *,
    for_tpu: bool,
    bounded: bool = False,
) -> Lowered | Problem | Refused:
    if not ops.executing_eagerly_outside_functions():
        raise Unknown("Variables of TensorFlow 1's graphs have no values yet.")
    values = parameters(traced, bounded=bounded)
    writer = CompilerFunctions(traced.library, for_tpu=for_tpu)
    lowered, specs = writer.write(traced.definition, values, host)
    arguments = tuple(argument.name for argument in lowered.signature.input_arg)
    tensors = [(_sizes(spec.shape), spec.dtype.as_datatype_enum) for spec in specs]
    variables = [_variable(values[name].handle) for name in arguments[len(specs) :]]
    request = Request(
        lowered.signature.name,
        [
            function.SerializeToString()
            for function in _with_callees(lowered, writer.written, traced.library)
        ],
        tensors,
        variables,
        serialized=for_tpu,
    )
    sized = traced.is_sized and all(spec.shape.is_fully_defined() for spec in specs)
    try:
        answer: Answer = ask(request, deadline)
    except ChildLostError as error:
        return _unchecked(f"{error} while it looked at this function.")
    if answer.compiled:
        size = max(sum(map(_bytes, [*tensors, *variables])), _result_bytes(traced))
        return Lowered(answer.text, answer.module, arguments, size, sized)
    if _OF_ITS_OWN_STATE.search(answer.text):
        return _unchecked(f"did not look at this function: {answer.text.splitlines()[0]}")
    nodes = _NODE.findall(answer.text)
    message = _OF_THE_COMPILER.split(answer.text.removeprefix("Failed getting HLO text: '"))[0]
    return Refused(message.rstrip("'"), nodes[0] if nodes else "", sized)


def _with_callees(
    function: FunctionDef, written: Sequence[FunctionDef], library: Library
) -> list[FunctionDef]:
    """Return a function with all functions that it calls."""
    own = {callee.signature.name: callee for callee in written}
    by_name = {function.signature.name: function}
    pending = [function]
    while pending:
        for name in map(str, _names_in(pending.pop())):
            if name not in by_name:
                by_name[name] = own[name] if name in own else library(name)
                pending.append(by_name[name])
    return list(by_name.values())


def _names_in(function: FunctionDef) -> Iterator[str]:
    for node in function.node_def:
        yield from called_functions(node)
        if op_def_registry.get(node.op) is None:
            yield node.op  # a call may have the function's name instead of an operation's name


def _sizes(shape: tf.TensorShape) -> tuple[int, ...]:
    if shape.rank is None:
        raise Unknown("An argument's rank is unknown.")
    return tuple(ANY_SIZE if size is None else size for size in shape)


def _bytes(tensor: tuple[tuple[int, ...], int]) -> int:
    """Return the bytes of a tensor or a variable, from its sizes and its type's number."""
    sizes, dtype = tensor
    return math.prod(sizes) * int(tf.as_dtype(dtype).size)


def _result_bytes(traced: TracedFunction) -> int:
    """Return the bytes of the results whose sizes are known; each tensor counts once."""
    distinct = {id(tensor): tensor for tensor in traced.graph.outputs}.values()
    known = [tensor for tensor in distinct if tensor.shape.is_fully_defined() and tensor.dtype.size]
    return sum(_bytes((tuple(tensor.shape), tensor.dtype.as_datatype_enum)) for tensor in known)


def _variable(handle: Any) -> tuple[tuple[int, ...], int]:
    """Return the shape and the type of a variable, which may have no value yet."""
    value = value_of_handle(handle)
    if value is None:
        raise Unknown("An argument is neither a tensor nor a variable.")
    return _sizes(tf.TensorShape(value.shape)), value.dtype


def _unchecked(reason: str) -> Problem:
    """Return a problem that nothing is known, which is not the function's fault."""
    message = f"TensorFlow's compiler {reason}"
    return Problem("unchecked", message, UNCHECKED, message=message)


def _problem(refused: Refused) -> Problem:
    message, node, unknown_sizes = refused.message, refused.node, not refused.sized
    if unknown_sizes and "Invalid TensorList shape" in message:
        # The size that is tried conflicts with the 0 that TensorFlow writes for an unknown size.
        raise Unknown(message)
    if known := refusal_of(message, XLA):
        return Problem(known.code, known.reason, known.fix, message=message, node=node)
    if unknown_sizes:
        # With another size it might compile.
        raise Unknown(message)
    reason = f"XLA cannot compile it: {message.splitlines()[0].rstrip('.')}."
    fix = "Write it with operations of fixed shapes."
    return Problem("compile", reason, fix, message=message, node=node)


def _bounded(text: str) -> Problem | None:
    """Find a size that is only bounded, which XLA on a CPU can compile and a TPU cannot."""
    bounded_lines = [
        line for line in text.splitlines() if _BOUNDED.search(line.partition("metadata=")[0])
    ]
    if not bounded_lines:
        return None
    origin = next((match for match in map(_METADATA.search, bounded_lines) if match), None)
    op, node = origin.groups() if origin else ("", "")
    reason = f"A tensor's size depends on the data: {PADDED_TO_BOUND}"
    fix = FIXED_SHAPE
    if op == "StridedSlice":
        reason = (
            f"The size of a slice depends on the data, as its begin or its end: {PADDED_TO_BOUND}"
        )
        fix = "Give `tf.slice` a size in numbers, or index a tensor of whole batches: `x[step]`."
    message = f"TPU has inputs with dynamic shapes: {{{{node {node}}}}}"
    return Problem("bounded-shape", reason, fix, message=message, node=node, op=op)
