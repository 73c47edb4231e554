"""Functions whose verdict differs from libtpu's own, and why: see docs/compiler-accuracy.md."""

from __future__ import annotations

_COMPLEX128 = "TensorFlow's list of TPU types lacks complex128, but libtpu compiles it"
_GROWING = "libtpu compiles a growing list, but its result is wrong"
_RESIZE = "TPUs have a kernel for the gradient of resizing, XLA on CPUs has none"
_KERNEL = "the TPU kernel for resizing refuses 64-bit types, TensorFlow's CPU kernel takes them"
_SEVERAL = "StableHLO refuses several data-dependent sizes, the rules only warn of each"
_UNUSED = "TensorFlow's CPU lowering keeps unused operations, which a run prunes"

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
"""The reason of each difference, by the function's name."""

OPEN_BATCHES: dict[str, str] = {}
"""The reasons of differences that appear only if the batch is not fixed, by name."""
