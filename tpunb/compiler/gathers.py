"""What gathers, scatters and sorts take, which the compiler gives no cycles for.

A core does not gather as a vector operation: its scalar unit starts one copy from HBM for each
row, and a scatter adds row after row to a window of the table that it streams through its fast
memory. Cycles of a row are counted in the machine code that libtpu 0.0.52 emits for v3, v4 and
v5e (the bundles of the inner loop, divided by its rows). A sort is a bitonic network; what a step
of it takes is fitted to a published measurement: a scatter of 1.3 and of 13 million numbers, which
are sorted first, on a v2 (pytorch/xla, issue 8720). docs/compiler.md has the formulas.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator

from tpunb.compiler.hlo import Computation, Instruction, Module
from tpunb.compiler.shapes import Shape
from tpunb.compiler.topologies import Target

__all__ = ["Irregular", "irregular"]

_WINDOW = re.compile(r"slice_sizes=\{([\d,]*)\}")
_UPDATED = re.compile(r"update_window_dims=\{([\d,]*)\}")
_SORTED = re.compile(r"dimensions=\{(\d+)\}")
_KINDS = frozenset({"gather", "scatter", "sort"})

_PIECE = 512
"""Bytes of HBM that are read or written at least: 128 lanes of four bytes."""
_REGISTER = 4096
"""Bytes of a vector register."""
_SORT_CYCLES = 14.0
"""Of a register in a step of the network, for each array that is sorted along."""
_SORT_ERROR = 1.25
"""By how much it may be wrong: it comes from one program."""


_Cost = tuple[float, float, int]
"""Cycles at least, and at most, and bytes."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Row:
    """Cycles of a row: of its first piece, of each further one, and of a single number."""

    first: float
    further: float
    number: float


_OLD = frozenset({"v2", "v3"})
_GATHERED = {True: _Row(8.7, 0.4, 12.6), False: _Row(4.6, 1.3, 9.3)}
_SCATTERED = {True: _Row(5.9, 2.0, 4.4), False: _Row(6.6, 1.5, 4.7)}
"""Whether the core is an old one → cycles."""


@dataclasses.dataclass(frozen=True, slots=True)
class Irregular:
    """What an instruction with gathers, scatters or sorts takes.

    Attributes:
        kinds: Which of them.
        least: Cycles of the core, at least.
        most: The same, at most.
        bytes: Read from HBM and written to it.
    """

    kinds: frozenset[str]
    least: float
    most: float
    bytes: int

    def seconds(self, target: Target) -> tuple[float, float]:
        """The least and the most that it takes: cycles and copies at once, or one after another."""
        clock, memory = target.hardware.clock or 1.0, self.bytes / target.hardware.hbm
        return max(self.least / clock, memory), self.most / clock + memory


def irregular(
    instruction: Instruction, around: Computation, module: Module, target: Target
) -> Irregular | None:
    """The cost of an instruction that gathers, scatters or sorts, by itself or fused; else None.

    Args:
        instruction: The instruction.
        around: The computation that it is in.
        module: The program.
        target: What it was compiled for.
    """
    found = list(_parts(instruction, around, module))
    if not found:
        return None
    old = target.tpu.family in _OLD
    costs = [_COSTS[one.opcode](one, inside, old) for one, inside in found]
    return Irregular(
        frozenset(one.opcode for one, _ in found),
        sum(least for least, _, _ in costs),
        sum(most for _, most, _ in costs),
        sum(moved for _, _, moved in costs),
    )


def _parts(
    instruction: Instruction, around: Computation, module: Module
) -> Iterator[tuple[Instruction, Computation]]:
    if instruction.opcode in _KINDS:
        yield instruction, around
    if instruction.opcode != "fusion":
        return
    inner = module.computations.get(instruction.called.get("calls", ""))
    for one in inner.instructions if inner else ():
        yield from _parts(one, inner, module)  # type: ignore[arg-type]


def _gather(one: Instruction, _: Computation, old: bool) -> _Cost:
    result = one.results[0]
    found = _WINDOW.search(one.rest)
    window = math.prod(_numbers(found[1])) if found else 1
    rows = math.prod(result.sizes) / max(window, 1)
    cycles, pieces = _rows(rows, window, _GATHERED[old])
    return cycles, cycles, pieces * _PIECE + result.padded


def _scatter(one: Instruction, inside: Computation, old: bool) -> _Cost:
    shapes = [_shape(name, inside) for name in one.operands]
    arrays = (len(shapes) - 1) // 2
    found = _UPDATED.search(one.rest)
    updated = _numbers(found[1]) if found else ()
    cycles, moved = 0.0, 0
    for table, updates in zip(shapes[:arrays], shapes[arrays + 1 :], strict=True):
        if table is None or updates is None:
            continue
        window = math.prod(updates.sizes[axis] for axis in updated)
        own, _ = _rows(math.prod(updates.sizes) / max(window, 1), window, _SCATTERED[old])
        cycles += own
        moved += 2 * table.padded + updates.padded
    return cycles, cycles, moved


def _sort(one: Instruction, _: Computation, __: bool) -> _Cost:
    found = _SORTED.search(one.rest)
    first = one.results[0]
    length = first.sizes[int(found[1])] if found and first.sizes else 1
    doublings = math.ceil(math.log2(max(length, 2)))
    steps = doublings * (doublings + 1) // 2
    size = sum(shape.padded for shape in one.results)
    registers = size / _REGISTER * 2**doublings / max(length, 1)
    cycles = _SORT_CYCLES * steps * registers
    return cycles / _SORT_ERROR, cycles * _SORT_ERROR, 2 * size


_COSTS = {"gather": _gather, "scatter": _scatter, "sort": _sort}


def _rows(rows: float, window: int, row: _Row) -> tuple[float, int]:
    """Cycles of rows of so many numbers, and the pieces of memory that they lie in."""
    pieces = max(math.ceil(window * 4 / _PIECE), 1)
    each = row.number if window == 1 else row.first + row.further * (pieces - 1)
    return rows * each, round(rows * pieces)


def _shape(name: str, inside: Computation) -> Shape | None:
    found = inside.by_name.get(name)
    return found.results[0] if found is not None and found.results else None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)
