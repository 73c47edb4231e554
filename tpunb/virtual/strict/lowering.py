"""Compiles a replica function for XLA as far as its intermediate form, without running it.

XLA on a CPU knows nothing of a core's links, nor of what runs on the host beside a
core; stand-ins take their places, and what is left is what a TPU would compile.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tpunb.virtual._tensorflow import FunctionDef, context, dtypes, ops
from tpunb.virtual.devices import device_here
from tpunb.virtual.graphs import Library
from tpunb.virtual.strict.findings import Finding
from tpunb.virtual.strict.stand_ins import CompilerFunctions, Host, Parameter

__all__ = ["Unknown", "lower"]

_names = itertools.count()
_NODE = re.compile(r"{{node ([^}]+)}}")
_BOUNDED = re.compile(r"<=\d+")
# What it tells its own developers.
_OF_THE_COMPILER = re.compile(
    r"\s*(?:Stack trace for op definition:|\[\[|tf2xla conversion failed)"
)
_METADATA = re.compile(r'op_type="([^"]*)" op_name="([^"]+)"')

# What stands for a size that is known only when the step runs.
_ANY_SIZE = 8


class Unknown(Exception):
    """A function that cannot be compiled by itself, of which nothing is said."""


def lower(
    function: FunctionDef,
    parameters: Mapping[str, Parameter],
    library: Library,
    device: str,
    host: Host,
) -> Finding | None:
    """Compiles a replica function to HLO.

    Args:
        function: The replica function, calls written out.
        parameters: Its arguments by name.
        library: Finds the functions that it calls.
        device: The device of the first core.
        host: Nodes that run on the host, and what they give.

    Returns:
        Why it does not compile, or None.

    Raises:
        Unknown: That cannot be said.
    """
    if not ops.executing_eagerly_outside_functions():
        raise Unknown("Variables of TensorFlow 1's graphs have no values yet.")
    writer = CompilerFunctions(library)
    lowered, specs = writer.write(function, parameters, host)
    runtime = context.context()
    for made in writer.made:
        runtime.add_function_def(made)
    try:
        text = _compiler_text(lowered, specs, parameters, device)
    except (ValueError, tf.errors.OpError) as error:
        return _finding(str(error), any(_has_unknown(spec) for spec in specs))
    finally:
        for made in writer.made:
            runtime.remove_function(made.signature.name)
    return _bounded(text)


def _compiler_text(
    function: FunctionDef,
    specs: Sequence[tf.TensorSpec],
    parameters: Mapping[str, Parameter],
    device: str,
) -> str:
    names = [argument.name for argument in function.signature.input_arg[len(specs) :]]
    handles = [parameters[name].handle for name in names]
    sized = [tf.TensorSpec(_sizes(spec.shape), spec.dtype) for spec in specs]
    here = device_here(device)
    try:
        if here == device and all(isinstance(handle, ops.EagerTensor) for handle in handles):
            return _ir(function, sized, handles, device)
    except ValueError as error:
        if not handles or not re.search("located in device|ninitialized", str(error)):
            raise
    # Variables that are elsewhere, or not there yet: others of their shapes will do.
    with tf.init_scope(), _StandIns(handles, here) as others:
        return _ir(function, sized, others, here)


def _ir(
    function: FunctionDef, specs: Sequence[tf.TensorSpec], handles: Sequence[Any], device: str
) -> str:
    with tf.init_scope():
        found = context.context().get_compiler_ir(
            device_name=device,
            platform_name=None,
            function_name=function.signature.name,
            flat_args=list(specs),
            captured_inputs=list(handles),
            stage="hlo",
        )
    return found.decode() if isinstance(found, bytes) else str(found)


def _sizes(shape: tf.TensorShape) -> list[int]:
    if shape.rank is None:
        raise Unknown("An argument's rank is unknown.")
    return [_ANY_SIZE if size is None else size for size in shape]


def _has_unknown(spec: tf.TensorSpec) -> bool:
    return not spec.shape.is_fully_defined()


class _StandIns:
    """Variables of the shapes of others, on one device."""

    def __init__(self, handles: Sequence[Any], device: str) -> None:
        self._handles = handles
        self._device = device
        self._made: list[Any] = []

    def __enter__(self) -> list[Any]:
        with tf.device(self._device):
            self._made = [self._make(handle) for handle in self._handles]
        return self._made

    def __exit__(self, *_: object) -> None:
        for handle in self._made:
            tf.raw_ops.DestroyResourceOp(resource=handle)

    def _make(self, handle: Any) -> Any:
        data = getattr(handle, "_handle_data", None)
        if data is None or not data.shape_and_type:
            raise Unknown("An argument is neither a tensor nor a variable.")
        kind = dtypes.as_dtype(data.shape_and_type[0].dtype)
        shape = tf.TensorShape(data.shape_and_type[0].shape)
        made = tf.raw_ops.VarHandleOp(
            dtype=kind, shape=shape, shared_name=f"tpunb_stand_in_{next(_names)}"
        )
        zeros = tf.zeros(_sizes(shape), kind)
        tf.raw_ops.AssignVariableOp(resource=made, value=zeros)
        return made


_KINDS: tuple[tuple[str, str, str, str], ...] = (
    (
        r"Detected unsupported operations|No registered '",
        "unsupported-op",
        "The operation has no TPU kernel.",
        "Do it in the input pipeline (tf.data) or after the step on what it returns.",
    ),
    (
        r"with op (EmptyTensorList|TensorListReserve) must be|fixed tensor list size|TensorList",
        "list-size",
        "A TensorArray or a loop has no fixed size.",
        "Give the TensorArray its size and `tf.while_loop` constant `maximum_iterations`.",
    ),
    (
        r"must be a compile-time constant",
        "constant-size",
        "A size, an axis or a number of elements depends on data.",
        (
            "Make it a Python number or take it from a static shape; for a mask, use "
            "`tf.sequence_mask(..., maxlen=64)`."
        ),
    ),
    (
        r"[Dd]ynamic",
        "dynamic-shape",
        "A shape depends on the data.",
        "Work at a fixed shape.",
    ),
)


def _finding(message: str, unknown_sizes: bool) -> Finding | None:
    nodes = _NODE.findall(message)
    node = nodes[0] if nodes else ""
    message = _OF_THE_COMPILER.split(message.removeprefix("Failed getting HLO text: '"))[0].rstrip(
        "'"
    )
    for pattern, rule, reason, mend in _KINDS:
        if re.search(pattern, message):
            return Finding(rule, node, "", reason, mend, message)
    if unknown_sizes:
        # With another size it might compile.
        raise Unknown(message)
    reason = f"XLA cannot compile it: {message.splitlines()[0].rstrip('.')}."
    return Finding(
        "compile", node, "", reason, "Write it with operations of fixed shapes.", message
    )


def _bounded(text: str) -> Finding | None:
    """Finds a size that is only bounded, which XLA on a CPU can do and a TPU cannot."""
    found = [line for line in text.splitlines() if _BOUNDED.search(line.partition("metadata=")[0])]
    if not found:
        return None
    origin = next((match for match in map(_METADATA.search, found) if match), None)
    op, node = origin.groups() if origin else ("", "")
    reason, mend = "A tensor's size depends on the data.", "Work at a fixed shape: mask, or pad."
    if op == "StridedSlice":
        reason = "The size of a slice depends on the data: its begin or its end is a tensor."
        mend = "Give `tf.slice` a size in numbers, or index a tensor of whole batches: `x[step]`."
    message = f"TPU has inputs with dynamic shapes: {{{{node {node}}}}}"
    return Finding("bounded-shape", node, op, reason, mend, message)
