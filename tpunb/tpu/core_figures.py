"""What a core of each TPU family has: usable memory, clock, speed, links.

A core is what TensorFlow sees as one: of v2, v3 and tpu7x half a chip. Usable memory is
what libtpu 0.0.52 compiles a program for, as its refusals print it; it keeps the rest for
itself. Clocks, multiplications and bandwidths are from Jouppi et al., "A domain-specific
supercomputer for training deep neural networks" (2020: v2, v3), Jouppi et al., "TPU v4"
(2023) and the Cloud TPU documentation's pages of each generation (v5e, v5p, v6e, tpu7x). What
a link of v4 and later carries is from Austin et al., "How to Scale Your Model" (2025), a tenth
less than those pages have it.
"""

from __future__ import annotations

import dataclasses

_GIB = 2**30


@dataclasses.dataclass(frozen=True, slots=True)
class Hardware:
    """A core.

    Attributes:
        usable_bytes: HBM that a program can use.
        clock: In Hz; None where it is not published.
        flops: Multiplications and additions a second in bfloat16, at most.
        hbm: HBM bandwidth, in bytes a second.
        link: What one link between chips carries in one direction, in bytes a second.
    """

    usable_bytes: int
    clock: float | None
    flops: float
    hbm: float
    link: float


def _hardware(
    gib: float, ghz: float | None, tflops: float, hbm: float, link: float, *, cores: int = 1
) -> Hardware:
    """Of a core with `gib` of memory; the other figures are a chip's, bandwidths in GB/s."""
    return Hardware(
        int(gib * _GIB),
        ghz * 1e9 if ghz else None,
        tflops * 1e12 / cores,
        hbm * 1e9 / cores,
        link * 1e9,
    )


HARDWARE: dict[str, Hardware] = {
    "v2": _hardware(7.48, 0.7, 46, 700, 62, cores=2),
    "v3": _hardware(15.48, 0.94, 123, 900, 82, cores=2),
    "v4": _hardware(30.75, 1.05, 275, 1200, 45),
    "v5e": _hardware(15.75, 1.5, 197, 819, 45),
    "v5p": _hardware(95.73, 1.75, 459, 2765, 90),
    "v6e": _hardware(31.24, 1.75, 918, 1640, 90),
    "tpu7x": _hardware(94.74, None, 2307, 7380, 90, cores=2),
}
"""By the name of the family."""
