"""Refusals of compilers, which name an operation or a shape: their meaning and their fix.

XLA refuses before a function runs. libtpu refuses when the TPU's own compiler is asked. The
first pattern that matches counts.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """A kind of refusal.

    Attributes:
        pattern: A regular expression that the message contains.
        code: The code of the rule that applies.
        reason: The cause, in one sentence.
        fix: The next step, in one sentence.
    """

    pattern: str
    code: str
    reason: str
    fix: str


SMALLER = "Make the batch smaller, use more cores, or a smaller type such as bfloat16."
"""The fix for programs that do not fit."""

SMALLER_OR_MORE = "Make the batch smaller, or use more cores."
"""The fix for programs that do not fit whose large tensors have 16 bits or less."""

LESS_PADDING = (
    "Make the tensor's last size a multiple of 128 and the size before it a multiple of 8, or "
    "transpose it (trap P3)."
)
"""The fix for programs that do not fit because of padding."""

FIXED_SHAPE = "Use a fixed shape: mask or pad the tensor."
"""The fix for sizes that depend on data."""

PADDED_TO_BOUND = (
    "a TPU pads it to its bound and computes all of it, and its compiler refuses some later "
    "operations."
)
"""Why sizes that depend on data are costly, as measured with libtpu 0.0.52."""

FIXED_LIST = (
    "Give the TensorArray its size and `dynamic_size=False`, and give `tf.while_loop` a constant "
    "`maximum_iterations`."
)
"""The fix for loops and lists without a bound."""

XLA = (
    Refusal(
        r"Detected unsupported operations|No registered '",
        "unsupported-op",
        "The operation has no TPU kernel.",
        "Move it into the input pipeline (tf.data), or apply it to the step's result.",
    ),
    Refusal(
        r"with op (EmptyTensorList|TensorListReserve) must be|fixed tensor list size|TensorList",
        "list-size",
        "A TensorArray or a loop has no fixed size.",
        FIXED_LIST,
    ),
    Refusal(
        r"must be a compile-time constant",
        "constant-size",
        "A size, an axis or a number of elements depends on data.",
        "Make it a Python number or take it from a static shape; for a mask, use "
        "`tf.sequence_mask(..., maxlen=64)`.",
    ),
    Refusal(
        r"may overflow int64|overflow in static extent product",
        "compile",
        "A tensor has more bytes than 64 bits can count.",
        "Make it smaller: check its shape.",
    ),
    Refusal(r"[Dd]ynamic", "compile", "A shape depends on the data.", "Work at a fixed shape."),
)
"""Those of XLA, as far as its intermediate form."""

LIBTPU = (
    Refusal(
        r"memory space vmem|scoped vmem limit|would exceed memory [^\n]{1,400}space=vmem",
        "compile",
        "One operation needs more fast memory (VMEM) than the core has{of_vmem}.",
        "Split the tensor that it works on, or change its shape. In a Pallas kernel, make the "
        "blocks smaller, or raise `vmem_limit_bytes` in its `pltpu.CompilerParams`.",
    ),
    Refusal(
        r"X\{64\|128\}",
        "x64-op",
        "The TPU's compiler does not support this operation in {types}.",
        "Cast to int32 or float32 first; NumPy arrays are 64-bit by default.",
    ),
    Refusal(
        r"#stablehlo\.bounds<",
        "dynamic-shape",
        "Several sizes of a tensor depend on data, which JAX's compile path does not support.",
        FIXED_SHAPE,
    ),
    Refusal(
        r"dynamic",
        "dynamic-shape",
        "The TPU's compiler does not support this operation with a size that depends on data.",
        FIXED_SHAPE,
    ),
    Refusal(
        r"Iteration bounds are too large",
        "compile",
        "An operation goes through more elements than the TPU's compiler can count.",
        "Make its tensors smaller: check their shapes, or work on parts of them in a loop.",
    ),
)
"""Refusals of the TPU's own compiler, except for programs that do not fit in memory."""


def refusal_of(message: str, known: Iterable[Refusal]) -> Refusal | None:
    """Return the first kind of refusal whose pattern a message contains, or None."""
    return next((kind for kind in known if re.search(kind.pattern, message)), None)
