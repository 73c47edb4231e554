"""The time of products, loops and copies, which a core works on tile by tile.

The matrix unit, the vector unit and the copies from and to HBM work at the same time: while one
tile is computed, the next is copied. So the slowest of them sets the time, and a function after a
product takes none of its own.

The compiler's `estimated_cycles` were compared with the bundles of instructions that libtpu 0.0.52
emits for v6e (`--xla_jf_dump_llo_text`), times the tiles. They are 5 to 15% above the bundles for
products that the matrix unit limits. For loops, copies, and products that memory limits, they are
two to fourteen times the bundles, so memory's time is used instead.
"""

from __future__ import annotations

import dataclasses
import math

from tpunb.compiler.ask.topologies import Target
from tpunb.compiler.read.hlo import (
    PRODUCTS,
    Computation,
    Instruction,
    has_window,
    is_depthwise,
    multiplications,
)
from tpunb.tpu.families import Hardware

OLD = frozenset({"v2", "v3"})
"""The families with a narrow vector unit. Their loops may take all of the cycles."""

_STEADY = 0.87
"""The least part of the time at the sustained speed. A product of 8192² × 28,672 took 0.78 of the
peak on v6e, and 0.90 of the peak with more memory for its tiles: 0.87 of the time."""
_LOOP = 1.3
"""The most time of a loop, in times of its copies from and to HBM at the sustained speed."""
_REORDERED = 2.2
"""The same for a copy into another layout, which moves short pieces."""
_FASTER, _SLOWER = 1.3, 1.1
"""The factors by which a product may be faster or slower than the compiler's cycles."""

REGISTER = 4096
"""The bytes of a vector register."""
_LANES = 1024
"""The numbers in a vector register."""
_PER_REGISTER = 0.85, 4.5
"""The least and the most bundles for a register that is read or written."""
_PER_FUNCTION = 4.0
"""The most bundles for a register of exponentials. An exponential and its sum take 2.3."""

_COPIES = frozenset({"bitcast", "copy", "parameter", "reshape", "transpose"})
_FUNCTIONS = frozenset(
    {"atan2", "cbrt", "cosine", "erf", "exponential", "exponential-minus-one", "log"}
    | {"log-plus-one", "logistic", "power", "sine", "tan", "tanh"}
)
_BYTE = 8


@dataclasses.dataclass(frozen=True, slots=True)
class TileWork:
    """The work of an instruction.

    Attributes:
        cycles: The compiler's estimate of its cycles; None if there is none.
        parts: The parts of its fusion, and the computations that contain them.
        in_hbm: The bytes that it reads from and writes to HBM.
        in_all: The bytes that it reads from and writes to all memories.
    """

    cycles: int | None
    parts: tuple[tuple[Instruction, Computation], ...]
    in_hbm: int
    in_all: int

    @property
    def products(self) -> list[tuple[Instruction, Computation]]:
        """The products among its parts."""
        return [each for each in self.parts if each[0].opcode in PRODUCTS]

    def seconds(self, target: Target) -> tuple[float, float]:
        """Return the least and the most seconds on a core.

        Args:
            target: The target of the compilation.
        """
        hardware = target.hardware
        peak_matrix, peak_memory = self.multiplied / hardware.flops, self.in_hbm / hardware.hbm
        matrix = peak_matrix / hardware.sustained_flops
        memory = peak_memory / hardware.sustained_hbm
        slowest = max(matrix, memory)
        vector = _PER_REGISTER[0] * self.in_all / REGISTER / hardware.clock
        least = max(peak_matrix, peak_memory, _STEADY * slowest, vector)
        if self.cycles is None:
            return least, _LOOP * max(slowest, least)
        counted = self.cycles / hardware.clock
        if any(is_depthwise(product) for product, _ in self.products):
            return max(least, counted), counted + memory
        windows = any(has_window(*product) for product in self.products)
        if self.products and (matrix >= memory or windows):
            return max(least, counted / _FASTER), _SLOWER * max(slowest, counted)
        if target.tpu.family in OLD:
            most = counted + memory if self._functions else counted
        else:
            most = min(counted, self._most_of_loop(memory, hardware))
        return least, max(most, _LOOP * least)

    def _most_of_loop(self, memory: float, hardware: Hardware) -> float:
        """Return the most seconds of a loop or copy, with the seconds of its copies of tiles."""
        reads = _PER_REGISTER[1] * self.in_all / REGISTER
        functions = _PER_FUNCTION * self._functions / _LANES
        is_copy = all(part.opcode in _COPIES for part, _ in self.parts)
        spread = _REORDERED if is_copy else _LOOP
        return max(memory * spread, max(reads, functions) / hardware.clock)

    @property
    def multiplied(self) -> float:
        """The multiplications and additions, as those of bfloat16 that take as long."""
        flops = 0.0
        for product, inside in self.products:
            shapes = [inside.shape(name) for name in product.operands[:2]]
            narrow = all(shape is not None and shape.bits <= _BYTE for shape in shapes)
            flops += 2 * multiplications(product, inside) / (2 if narrow else 1)
        return flops

    @property
    def _functions(self) -> int:
        """The numbers that its transcendental functions compute."""
        called = (part for part, _ in self.parts if part.opcode in _FUNCTIONS)
        return sum(math.prod(part.results[0].sizes) for part in called)
