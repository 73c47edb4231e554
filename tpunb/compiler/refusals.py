"""The meaning of libtpu's refusals: the rule, the node, and the fix."""

from __future__ import annotations

import re

from tpunb._util.units import byte_count
from tpunb.compiler.lowered import unmarked
from tpunb.tpu.compiled_program import Buffer
from tpunb.virtual.strict.diagnostics import Diagnostic

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([\d.]+)([KMGT]?)B?"
_NEEDED = (
    re.compile(rf"total memory required[^(]*\({_SIZE}\)"),
    re.compile(rf"Used {_SIZE} of"),
    re.compile(rf"\({_SIZE}\) exceeds available HBM"),
    re.compile(rf"[Aa]ttempting to (?:allocate|reserve) {_SIZE}"),
)
_NODE = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_X64 = "X{64|128}"
_OF_X64 = re.compile(r"not implemented: (?:ROOT )?%?\S+ = (\w+)\[")

_FIXES: tuple[tuple[str, str, str, str], ...] = (
    (
        _X64,
        "x64-op",
        "The TPU's compiler does not support this operation in {types}.",
        "Cast to int32 or float32 first; NumPy arrays are 64-bit by default.",
    ),
    (
        "#stablehlo.bounds<",
        "dynamic-shape",
        "Several sizes of a tensor depend on data, which JAX's compile path does not support.",
        "Work at a fixed shape: mask, or pad.",
    ),
    (
        "dynamic",
        "dynamic-shape",
        "The TPU's compiler does not support this operation with a size that depends on data.",
        "Work at a fixed shape: mask, or pad.",
    ),
    (
        "memory space vmem",
        "compile",
        "One operation needs more fast memory than the core has.",
        "Split the tensor that it works on, or change its shape.",
    ),
)
_TYPES = {"s64": "int64", "u64": "uint64", "f64": "float64", "c128": "complex128"}


def needed_bytes(message: str) -> int | None:
    """Reads from the error how much HBM a program that does not fit would need.

    Returns:
        Bytes; 0 where the error does not say how many, None for another error.
    """
    # Within the core's fast memory it is another matter.
    if "vmem" in message.lower() or not re.search("HBM|hbm", message):
        return None
    if "RESOURCE_EXHAUSTED" not in message and "Ran out of memory" not in message:
        return None
    for pattern in _NEEDED:
        if found := pattern.search(message):
            return int(float(found[1]) * _UNITS[found[2]])
    return 0


def refusal(message: str) -> Diagnostic:
    """Explains why libtpu refuses a program for another reason than memory."""
    found = _NODE.search(message)
    node = found[1] if found else ""
    for sign, rule, reason, fix in _FIXES:
        if sign in message:
            kind = _OF_X64.search(message)
            types = _TYPES.get(kind[1], "64 bits") if kind else "64 bits"
            return Diagnostic(rule, node, "", reason.format(types=types), fix, message)
    first = unmarked(message).splitlines()[0].rstrip(".") if message else "it gives no reason"
    return Diagnostic(
        "compile",
        node,
        "",
        f"The TPU's compiler refuses it: {first}.",
        "Write it with other operations, or report it with this message.",
        message,
    )


def memory_refusal(message: str, needed: int, available: int, largest: Buffer | None) -> Diagnostic:
    """Explains why a program does not fit."""
    takes = byte_count(needed) if needed else "more than that"
    reason = f"The program takes {takes} of a core's {byte_count(available)}."
    if largest is not None:
        reason += f" The largest tensor, {largest.text} of {largest.operation or largest.kind}"
        reason += f" `{largest.node}`," if largest.node else ","
        reason += f" takes {byte_count(largest.padded_bytes)}."
    return Diagnostic(
        "memory",
        largest.node if largest else "",
        "",
        reason,
        "Make the batch smaller, use more cores, or a smaller type such as bfloat16.",
        message,
    )
