"""Functions with another verdict than libtpu itself, and why: docs/compiler-accuracy.md."""

from __future__ import annotations

_COMPLEX128 = "TensorFlow's list of types for TPUs has no complex128; libtpu compiles it"
_GROWING = "libtpu compiles a list that grows to a wrong result"
_RESIZE = "a TPU has a kernel of its own for the gradient of resizing; XLA for a CPU has none"
_KERNEL = "a TPU's own kernel for resizing takes no 64-bit types; TensorFlow's for a CPU does"
_SEVERAL = "StableHLO refuses several sizes that depend on data; the rules warn of each"
_UNUSED = "TensorFlow's lowering for a CPU keeps operations that nothing uses; running prunes them"

VERDICTS = {
    "control.counted_by_data": _UNUSED,
    "control.growing": _GROWING,
    "images.resize_nearest_gradient": _RESIZE,
    "sizes.masked_outer": _SEVERAL,
    "wide.complex128": _COMPLEX128,
    "wide.complex128_inside": _COMPLEX128,
    "wide.complex128_product": _COMPLEX128,
    "wide.double_resize": _KERNEL,
}
"""By name why the verdicts differ."""

OPEN_BATCHES: dict[str, str] = {}
"""By name why the verdicts on the same functions differ where their batch is not fixed."""
