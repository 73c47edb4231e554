"""What collectives take on the links between chips, which the compiler does not estimate.

Bandwidth alone is counted: rings over every axis of the mesh at once, as the compiler's own
strategies have them ("colors" in its HLO). A ring's all-reduce sends 2(n−1)/n of the tensor,
an all-gather or reduce-scatter half of that; an axis that closes to a ring has two links, one
that does not has one. Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms"
(2009); link bandwidths in `tpunb/tpu/core_figures.py`.
"""

from __future__ import annotations

from tpunb.compiler.hlo import Instruction
from tpunb.compiler.topologies import Target

__all__ = ["KINDS", "collective_size", "link_bytes", "link_seconds"]

KINDS = frozenset(
    {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"}
)
_START = 3e-6
_HOP = 1e-6
"""Seconds to start one, and of each hop: permutations of some kilobytes were measured to take 5 µs
on a v5p-8 and 6 µs on a v6e-8 (marin-community/marin, issue 6736)."""


def collective_size(instruction: Instruction) -> int:
    """Bytes of a collective's results."""
    results = list(instruction.results)
    if instruction.opcode.endswith("-start") and not instruction.opcode.startswith("all-reduce"):
        results = results[len(instruction.operands) :][: len(instruction.operands)]
    return sum(shape.unpadded for shape in results)


def link_bytes(kind: str, size: int, cores: int) -> float:
    """Bytes that a core sends.

    Args:
        kind: Of `KINDS`.
        size: Of its result, in bytes.
        cores: How many take part.
    """
    if cores < 2:
        return 0.0
    part = (cores - 1) / cores
    if kind == "all-reduce":
        return 2 * part * size
    if kind == "reduce-scatter":
        return part * size * cores
    return size if kind == "collective-permute" else part * size


def link_seconds(kind: str, size: int, group: int | None, target: Target) -> float:
    """Seconds that a collective takes on the links.

    Args:
        kind: Of `KINDS`.
        size: Of its result, in bytes.
        group: How many cores take part; None for all.
        target: The TPU.
    """
    cores = group or target.replicas
    tpu = target.tpu
    if tpu.chips == 1 or cores < 2:
        return _START
    # The cores of a chip share its links, and reduce within the chip first.
    chips = max(cores // tpu.devices_per_chip, 2)
    links = sum(
        2 if wraps else 1 for side, wraps in zip(tpu.mesh, tpu.wraps, strict=True) if side > 1
    )
    if kind == "collective-permute":
        links = 1
    bandwidth = max(links, 1) * target.hardware.link
    hops = sum(side // 2 for side in tpu.mesh)
    return link_bytes(kind, size, chips) / bandwidth + _START + hops * _HOP
