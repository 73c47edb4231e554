"""The meaning of libtpu's refusals: the rule, the node, and the fix."""

from __future__ import annotations

import re

from tpunb._util.units import byte_count
from tpunb.compiler.lowered import unmarked
from tpunb.errors.code_problems import Problem
from tpunb.errors.refusals import LIBTPU, SMALLER, refusal_of
from tpunb.tpu.compiled_program import Buffer

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([\d.]+)([KMGT]?)B?"
_NEEDED = (
    re.compile(rf"total memory required[^(]*\({_SIZE}\)"),
    re.compile(rf"Used {_SIZE} of"),
    re.compile(rf"\({_SIZE}\) exceeds available HBM"),
    re.compile(rf"[Aa]ttempting to (?:allocate|reserve) {_SIZE}"),
)
_NODE = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_OF_X64 = re.compile(r"not implemented: (?:ROOT )?%?\S+ = (\w+)\[")

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


def refusal(message: str) -> Problem:
    """Explains why libtpu refuses a program for another reason than memory."""
    found = _NODE.search(message)
    node = found[1] if found else ""
    if known := refusal_of(message, LIBTPU):
        kind = _OF_X64.search(message)
        types = _TYPES.get(kind[1], "64 bits") if kind else "64 bits"
        reason = known.reason.format(types=types)
        return Problem(known.code, reason, known.fix, message=message, node=node)
    first = unmarked(message).splitlines()[0].rstrip(".") if message else "it gives no reason"
    return Problem(
        "compile",
        f"The TPU's compiler refuses it: {first}.",
        "Write it with other operations, or report it with this message.",
        message=message,
        node=node,
    )


def memory_refusal(message: str, needed: int, available: int, largest: Buffer | None) -> Problem:
    """Explains why a program does not fit."""
    takes = byte_count(needed) if needed else "more than that"
    reason = f"The program takes {takes} of a core's {byte_count(available)}."
    if largest is not None:
        reason += f" The largest tensor, {largest.text} of {largest.operation or largest.kind}"
        reason += f" `{largest.node}`," if largest.node else ","
        reason += f" takes {byte_count(largest.padded_bytes)}."
    return Problem(
        "memory",
        reason,
        SMALLER,
        message=message,
        node=largest.node if largest else "",
    )
