"""The cost of one instruction of a program.

Kernels with a schedule take its time. Collectives are modelled by the links; gathers, scatters and
sorts by the core's work for each row and by memory; all else by the work for its tiles.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator

from tpunb.compiler.ask.answers import Schedule
from tpunb.compiler.ask.topologies import Target
from tpunb.compiler.read.collectives import Collective, cores_of
from tpunb.compiler.read.hlo import Computation, Instruction, Module, numbers, parts
from tpunb.compiler.read.scheduled_time import seconds_of
from tpunb.compiler.read.tile_costs import OLD, REGISTER, TileWork
from tpunb.compiler.read.traffic import moved

ON_SPARSE_CORES = "async-start"
"""The opcode that starts work on another kind of core."""
_OFFLOADED = re.compile(r"called_computations=\{([^}]*)\}")
_NAME = re.compile(r"[^\s,%]+")


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """The cost of an instruction. Seconds and bytes are for one run.

    Attributes:
        instruction: The instruction.
        kind: `"matmul"`, `"memory"`, `"collective"`, or empty for other work of the core.
        bytes: The bytes that it reads from and writes to HBM, or sends.
        least: The least seconds.
        most: The most seconds.
        modelled: The modelled operations, for a reader: `"gathers"`.
        times: The number of runs.
        needed: The bytes of its operands and results in HBM, if `bytes` are those of its schedule.
        schedule: Its schedule, if the seconds come from it.
    """

    instruction: Instruction
    kind: str
    bytes: int
    least: float = 0.0
    most: float = 0.0
    modelled: frozenset[str] = frozenset()
    times: float = 1.0
    needed: int = 0
    schedule: Schedule | None = None

    @property
    def seconds(self) -> float:
        """The seconds of all runs, in the middle of the range."""
        return self.times * math.sqrt(self.least * self.most)


def cost_of(
    instruction: Instruction,
    around: Computation,
    module: Module,
    target: Target,
    schedule: Schedule | None = None,
) -> Cost:
    """Return the cost of an instruction that is not a collective.

    Args:
        instruction: The instruction.
        around: The computation that contains it.
        module: The program.
        target: The target of the compilation.
        schedule: The instruction's schedule; None if it is not known.
    """
    if schedule is not None:
        work = _tile_work(instruction, around, module)
        least, most = seconds_of(schedule, work.multiplied, target)
        waits = schedule.bytes[1] / target.hardware.hbm > schedule.busy / target.hardware.clock
        kind = "matmul" if work.products or schedule.unit == "MATMUL" else "memory" if waits else ""
        return Cost(
            instruction, kind, schedule.bytes[1], least, most, needed=work.in_hbm, schedule=schedule
        )
    work = _tile_work(instruction, around, module)
    irregular = [(part, inside) for part, inside in work.parts if part.opcode in _CYCLES]
    if work.cycles is None and irregular:
        return _irregular(instruction, irregular, target)
    kind = "matmul" if work.products else "memory"
    return Cost(instruction, kind, work.in_hbm, *work.seconds(target))


def _tile_work(instruction: Instruction, around: Computation, module: Module) -> TileWork:
    inside = tuple(parts(instruction, around, module))
    return TileWork(instruction.cycles, inside, *_moved(instruction, around, module))


def _moved(instruction: Instruction, around: Computation, module: Module) -> tuple[int, int]:
    """Return the bytes that an instruction reads and writes in HBM, and in all memories."""
    sizes = [(shape.space, size) for shape, size in moved(instruction, around, module)]
    return round(sum(size for space, size in sizes if not space)), round(
        sum(size for _, size in sizes)
    )


def background_bytes(start: Instruction, module: Module) -> int:
    """Return the bytes of HBM that work in the background moves, by the instruction that starts it.

    A copy's results are the copy, the original and a flag; a copy within a core's own memory moves
    none. The SparseCores read and write their result, or the rows that they scatter.
    """
    if start.opcode == ON_SPARSE_CORES:
        offloaded = module.computations[start.called["calls"]]
        if scatters := [each for each in _inside(offloaded, module) if each[0].opcode == "scatter"]:
            return sum(_scatter(scatter, around, False)[2] for scatter, around in scatters)
        return 2 * sum(shape.padded for shape in offloaded.root.results if shape.space == 0)
    arrays = [shape for shape in start.results if shape.sizes]
    within = all(shape.space for shape in arrays)
    return 0 if within else min(shape.padded for shape in arrays)


def _inside(computation: Computation, module: Module) -> Iterator[tuple[Instruction, Computation]]:
    """Yield the instructions of a computation, and of those that it calls."""
    for step in computation.instructions:
        yield step, computation
        for name in (*step.called.values(), *_NAME.findall(step.attribute(_OFFLOADED))):
            yield from _inside(module.computations[name], module)


# Collectives

_START = 3e-6
_HOP = 1e-6
"""Seconds to start a collective, and seconds per hop: permutations of some kilobytes were measured
to take 5 µs on a v5p-8 and 6 µs on a v6e-8 (marin-community/marin, issue 6736)."""


def link_cost(instruction: Instruction, found: Collective, target: Target) -> Cost:
    """Return the cost of a collective.

    Args:
        instruction: The instruction that runs or starts it.
        found: The collective.
        target: The target of the compilation.
    """
    groups = cores_of(found, target)
    group = len(groups[0]) if groups else None
    least, most = link_seconds(found.kind, found.size, group, target)
    sent = round(link_bytes(found.kind, found.size, group or target.cores))
    return Cost(instruction, "collective", sent, least=least, most=most)


def link_bytes(kind: str, size: int, cores: int) -> float:
    """Return the bytes that a core sends.

    Args:
        kind: One of `COLLECTIVES`.
        size: The bytes of the result.
        cores: The number of cores that take part.
    """
    if cores < 2:
        return 0.0
    part = (cores - 1) / cores
    if kind == "all-reduce":
        return 2 * part * size
    if kind == "reduce-scatter":
        return part * size * cores
    return size if kind == "collective-permute" else part * size


def link_seconds(kind: str, size: int, group: int | None, target: Target) -> tuple[float, float]:
    """Return the least and the most seconds that a collective takes on the links.

    At least, it keeps all links of a chip busy. If an axis of the slice does not close to a
    ring, the chips at its ends may wait for a single link, when the axes take turns.

    Args:
        kind: One of `COLLECTIVES`.
        size: The bytes of the result.
        group: The number of cores that take part; None for all cores.
        target: The TPU.
    """
    cores = group or target.cores
    tpu = target.tpu
    if tpu.num_chips == 1 or cores < 2:
        return _START, _START
    # The cores of a chip share its links, and reduce within the chip first.
    chips = max(cores // tpu.devices_per_chip, 2)
    wraps = [wraps for side, wraps in zip(tpu.mesh, tpu.wraps, strict=True) if side > 1]
    links = 1 if kind == "collective-permute" else len(wraps) + sum(wraps)
    hardware = target.hardware
    sent = link_bytes(kind, size, chips) / (hardware.link * hardware.sustained_link)
    started = _START + sum(side // 2 for side in tpu.mesh) * _HOP
    return started + sent / links, started + sent / (links if all(wraps) else 1)


# Gathers, scatters and sorts

_WINDOW = re.compile(r"slice_sizes=\{([\d,]*)\}")
_UPDATED = re.compile(r"update_window_dims=\{([\d,]*)\}")
_POINTED = re.compile(r"(?:inserted_window_dims|input_batching_dims)=\{([\d,]*)\}")
"""The axes along which an index points to one place of a table."""
_SORTED = re.compile(r"dimensions=\{(\d+)\}")

_PIECE = 512
"""The smallest number of bytes to read from or write to HBM: 128 lanes of four bytes."""
_SORT_CYCLES = 14.0
"""The cycles of a register in a step of the sorting network, for each array that is sorted."""
_SORT_ERROR = 1.25
"""The factor by which `_SORT_CYCLES` may be wrong: it comes from a single program."""

_Figures = tuple[float, float, int]
"""The least cycles, the most cycles, and the bytes."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Row:
    """The cycles of a row: of its first piece, of each further piece, and of a single number."""

    first: float
    further: float
    number: float

    def cost(self, rows: float, window: int) -> tuple[float, int]:
        """Return the cycles of rows of `window` numbers, and the pieces of memory they occupy."""
        pieces = max(math.ceil(window * 4 / _PIECE), 1)
        each = self.number if window == 1 else self.first + self.further * (pieces - 1)
        return rows * each, round(rows * pieces)


_GATHERED = {True: _Row(8.7, 0.4, 12.6), False: _Row(4.6, 1.3, 9.3)}
_SCATTERED = {True: _Row(5.9, 2.0, 4.4), False: _Row(6.6, 1.5, 4.7)}
"""The cycles, by whether the core is of an old family."""
_IN_TILES = _Row(62.0, 3.7, 62.0)
"""The cycles of a row of a scatter whose rows' tiles are fewer than its table's: libtpu reads each
row's tiles, updates and writes them. Counted in its schedules of ten scatters for v5e and v6e."""


def _irregular(
    instruction: Instruction,
    irregular: list[tuple[Instruction, Computation]],
    target: Target,
) -> Cost:
    """Return the cost of an instruction with gathers, scatters or sorts in it."""
    old = target.tpu.family in OLD
    figures = (_CYCLES[part.opcode](part, inside, old) for part, inside in irregular)
    least, most, moved = map(sum, zip(*figures, strict=True))
    memory = moved / target.hardware.hbm
    return Cost(
        instruction,
        "memory",
        moved,
        least=max(least / target.hardware.clock, memory),
        most=most / target.hardware.clock + memory,
        modelled=frozenset(f"{part.opcode}s" for part, _ in irregular),
    )


def _gather(gather: Instruction, _: Computation, old: bool) -> _Figures:
    result = gather.results[0]
    window = math.prod(numbers(gather.attribute(_WINDOW)))
    rows = math.prod(result.sizes) / max(window, 1)
    cycles, pieces = _GATHERED[old].cost(rows, window)
    return cycles, cycles, pieces * _PIECE + result.padded


def _scatter(scatter: Instruction, inside: Computation, old: bool) -> _Figures:
    shapes = [inside.shape(name) for name in scatter.operands]
    arrays = (len(shapes) - 1) // 2
    updated = numbers(scatter.attribute(_UPDATED))
    cycles, moved = 0.0, 0
    pointed = {axis for axes in _POINTED.findall(scatter.rest) for axis in numbers(axes)}
    for table, updates in zip(shapes[:arrays], shapes[arrays + 1 :], strict=True):
        if table is not None and updates is not None:
            windows = iter(updated)
            row = tuple(
                1 if axis in pointed else updates.sizes[next(windows)]
                for axis in range(len(table.sizes))
            )
            rows = math.prod(updates.sizes) / max(math.prod(row), 1)
            tiles = round(rows * dataclasses.replace(table, sizes=row).padded)
            each = _SCATTERED[old] if tiles >= table.padded else _IN_TILES
            cycles += each.cost(rows, math.prod(row))[0]
            moved += 2 * min(tiles, table.padded) + updates.padded
    return cycles, cycles, moved


def _sort(sort: Instruction, _: Computation, __: bool) -> _Figures:
    axis, first = sort.attribute(_SORTED), sort.results[0]
    length = first.sizes[int(axis)] if axis and first.sizes else 1
    doublings = math.ceil(math.log2(max(length, 2)))
    steps = doublings * (doublings + 1) // 2
    size = sum(shape.padded for shape in sort.results)
    registers = size / REGISTER * 2**doublings / max(length, 1)
    cycles = _SORT_CYCLES * steps * registers
    return cycles / _SORT_ERROR, cycles * _SORT_ERROR, 2 * size


_CYCLES = {"gather": _gather, "scatter": _scatter, "sort": _sort}
