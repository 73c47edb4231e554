"""Operations that XLA can compile, according to TensorFlow's registry of kernels."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tpunb.machine.import_tensorflow import quiet_start
from tpunb.tensorflow.virtual.private_names import (
    NodeDef,
    context,
    dtypes,
    get_registered_kernels_for_op,
    op_def_registry,
)

RESIZES = frozenset({"ResizeBilinearGrad", "ResizeNearestNeighborGrad"})
"""Gradients of resizing images: TPUs have kernels of their own for them, and XLA has none.

Source: tensorflow/core/tpu/kernels/image_resize_ops.cc, in TensorFlow since 2020.
"""

# TensorFlow keeps kernels for each of XLA's devices. Kernels for TPUs are registered only in TPU
# builds; they come from the same source as the CPU's.
_DEVICE = "XLA_CPU_JIT"
# Operations without a kernel, because a pass before the compiler replaces them.
_REPLACED = frozenset(
    {"AllToAll", "CollectivePermute", "CrossReplicaSum", "Placeholder"}
    | {"Enter", "Exit", "LoopCond", "Merge", "NextIteration", "Switch"}
)
_TPUS_OWN = ("TPU", "Xla", "_Xla", "Infeed", "Outfeed")

_REASONS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("PyFunc", "EagerPyFunc"), "runs Python, and there is no Python on a TPU"),
    (
        ("LookupTable", "HashTable", "MutableHashTable", "AnonymousHashTable"),
        "looks up a table, and tables are on the host",
    ),
    (("Print", "StringFormat"), "prints, which the host has to do"),
    (("Write", "Summary"), "writes a summary or a file, which the host has to do"),
    (("Iterator", "MultiDeviceIterator", "OptionalGet"), "reads a dataset, which is on the host"),
    (("Ragged",), "works on ragged tensors, for which TPUs have no kernels"),
    (("Sparse", "DeserializeSparse"), "works on sparse tensors, for which TPUs have no kernels"),
    (("Decode", "Encode", "ReadFile", "MatchingFiles"), "reads a file's format on the host"),
)


def compiles(node: NodeDef) -> bool:
    """Return whether XLA has a kernel for a node and its types."""
    if op_def_registry.get(node.op) is None:
        return True  # the name of a function: the compiler opens it
    if node.op in RESIZES or not _kernels("AddV2"):  # this TensorFlow lacks XLA's kernels
        return True
    kernels = _kernels(node.op)
    if not kernels:
        return node.op in _REPLACED or node.op.startswith(_TPUS_OWN)
    return any(all(_fits(node, limit) for limit in kernel.constraint) for kernel in kernels)


def why_not(node: NodeDef) -> str:
    """Return why a node without an XLA kernel cannot run on a core, as the end of a sentence."""
    for starts, reason in _REASONS:
        if node.op.startswith(starts):
            return reason
    if _has_strings(node):
        return "works on strings, which TPUs do not have"
    types = sorted({dtype.name for dtype in _types(node)})
    if types and _kernels(node.op):
        return f"has no TPU kernel for {', '.join(types)}"
    return "has no TPU kernel"


@functools.cache
def _kernels(op: str) -> Sequence[Any]:
    _register()
    return [
        kernel
        for kernel in get_registered_kernels_for_op(op).kernel
        if kernel.device_type == _DEVICE
    ]


@functools.cache
def _register() -> None:
    """Make TensorFlow register XLA's kernels, which it does when it first compiles.

    An older XLA then logs through a copy of Abseil whose level cannot be set.
    """
    with quiet_start(), tf.init_scope():
        runtime = context.context()
        device = tf.config.list_logical_devices("CPU")[0].name
        smallest = tf.function(lambda: tf.constant(0)).get_concrete_function()
        try:
            runtime.get_compiler_ir(
                device_name=device,
                platform_name=None,
                function_name=smallest.name,
                flat_args=[],
                captured_inputs=[],
                stage="hlo",
            )
        # The package tensorflow-tpu has no compiler for the CPU.
        except (ValueError, tf.errors.OpError):
            _register_by_running()


def _register_by_running() -> None:
    """Compile a function by running it, which fails after the kernels are registered."""
    with contextlib.suppress(ValueError, tf.errors.OpError), tf.device("CPU:0"):
        tf.function(tf.square, jit_compile=True)(tf.constant(2.0))


def _fits(node: NodeDef, limit: Any) -> bool:
    """Return whether a kernel takes a node's type."""
    if limit.name not in node.attr:
        return True
    value = node.attr[limit.name]
    types = value.list.type if value.WhichOneof("value") == "list" else [value.type]
    return all(dtype in limit.allowed_values.list.type for dtype in types)


def _types(node: NodeDef) -> list[dtypes.DType]:
    return [
        dtypes.as_dtype(value.type)
        for value in node.attr.values()
        if value.WhichOneof("value") == "type"
    ]


def _has_strings(node: NodeDef) -> bool:
    if dtypes.string in _types(node):
        return True
    definition = op_def_registry.get(node.op)
    arguments = (*definition.input_arg, *definition.output_arg) if definition else ()
    return any(argument.type == dtypes.string.as_datatype_enum for argument in arguments)
