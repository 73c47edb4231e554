"""Models of the operations for which the TPU's compiler gives no cycles.

Gathers, scatters and sorts are modelled by what the core does for each row and by memory, Pallas
kernels by the work in their code.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping

from tpunb.compiler.hlo import Computation, Instruction, Module, numbers, parts
from tpunb.compiler.libtpu import Kernel
from tpunb.compiler.topologies import Target

_WINDOW = re.compile(r"slice_sizes=\{([\d,]*)\}")
_UPDATED = re.compile(r"update_window_dims=\{([\d,]*)\}")
_SORTED = re.compile(r"dimensions=\{(\d+)\}")

_PIECE = 512
"""Bytes of HBM that are read or written at least: 128 lanes of four bytes."""
_REGISTER = 4096
"""Bytes of a vector register."""
_SORT_CYCLES = 14.0
"""Of a register in a step of the network, for each array that is sorted along."""
_SORT_ERROR = 1.25
"""By how much it may be wrong: it comes from one program."""


_Figures = tuple[float, float, int]
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
class Modelled:
    """The cost of an instruction for which the compiler gives no cycles.

    Attributes:
        kinds: What of it is modelled.
        least: Seconds, at least: all units work at once.
        most: The same, at most: one after another.
        bytes: Read from HBM and written to it.
        matmul: Whether most of it is matrix products.
    """

    kinds: frozenset[str]
    least: float
    most: float
    bytes: int
    matmul: bool = False


def modelled(
    instruction: Instruction,
    around: Computation,
    module: Module,
    kernels: Mapping[str, Kernel],
    target: Target,
) -> Modelled | None:
    """The cost of a gather, scatter or sort, by itself or fused, or of a Pallas kernel; else None.

    Args:
        instruction: The instruction.
        around: The computation that it is in.
        module: The program.
        kernels: The work of its Pallas kernels, by the names of their instructions.
        target: What it was compiled for.
    """
    if kernel := kernels.get(instruction.name):
        return _kernel(kernel, target)
    consists_of = parts(instruction, around, module)
    found = [(one, inside) for one, inside in consists_of if one.opcode in _COSTS]
    if not found:
        return None
    old = target.tpu.family in _OLD
    costs = [_COSTS[one.opcode](one, inside, old) for one, inside in found]
    clock = target.hardware.clock
    moved = sum(moved for _, _, moved in costs)
    memory = moved / target.hardware.hbm
    return Modelled(
        frozenset(f"{one.opcode}s" for one, _ in found),
        max(sum(least for least, _, _ in costs) / clock, memory),
        sum(most for _, most, _ in costs) / clock + memory,
        moved,
    )


_GRID_STEP = 0.35e-6
"""Seconds that a step of a Pallas kernel's grid takes at least, to start its copies and wait for
them: 32,768 and 262,144 steps of small products were measured to take 0.36 and 0.35 µs on v5e."""


def _kernel(kernel: Kernel, target: Target) -> Modelled:
    hardware = target.hardware
    clock = hardware.clock
    grid = kernel.steps * _GRID_STEP
    least_flops, most_flops = kernel.flops
    least_cycles, most_cycles = kernel.cycles
    least_moved, most_moved = kernel.bytes
    return Modelled(
        frozenset({"Pallas kernels"}),
        max(least_flops / hardware.flops, least_cycles / clock, least_moved / hardware.hbm, grid),
        max(most_flops / hardware.flops, most_moved / hardware.hbm) + most_cycles / clock + grid,
        int(most_moved),
        most_flops / hardware.flops > most_moved / hardware.hbm,
    )


def _gather(one: Instruction, _: Computation, old: bool) -> _Figures:
    result = one.results[0]
    window = math.prod(numbers(one.attribute(_WINDOW)))
    rows = math.prod(result.sizes) / max(window, 1)
    cycles, pieces = _rows(rows, window, _GATHERED[old])
    return cycles, cycles, pieces * _PIECE + result.padded


def _scatter(one: Instruction, inside: Computation, old: bool) -> _Figures:
    shapes = [inside.shape(name) for name in one.operands]
    arrays = (len(shapes) - 1) // 2
    updated = numbers(one.attribute(_UPDATED))
    cycles, moved = 0.0, 0
    for table, updates in zip(shapes[:arrays], shapes[arrays + 1 :], strict=True):
        if table is None or updates is None:
            continue
        window = math.prod(updates.sizes[axis] for axis in updated)
        own, _ = _rows(math.prod(updates.sizes) / max(window, 1), window, _SCATTERED[old])
        cycles += own
        moved += 2 * table.padded + updates.padded
    return cycles, cycles, moved


def _sort(one: Instruction, _: Computation, __: bool) -> _Figures:
    axis, first = one.attribute(_SORTED), one.results[0]
    length = first.sizes[int(axis)] if axis and first.sizes else 1
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
