"""Estimates of a program's time on a TPU, and the costs that they leave out."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator, Sequence

from tpunb._util.units import byte_count, duration
from tpunb.compiler.hlo import (
    PRODUCTS,
    Computation,
    Instruction,
    Module,
    is_depthwise,
    multiplications,
    parts,
    trips,
)
from tpunb.compiler.libtpu import Compiled
from tpunb.compiler.lowered import Origins
from tpunb.compiler.memory import share
from tpunb.compiler.topologies import Target
from tpunb.compiler.without_cycles import modelled
from tpunb.errors.code_problems import SourceLine
from tpunb.tpu.compiled_program import Share, StepTime

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


def link_seconds(kind: str, size: int, group: int | None, target: Target) -> tuple[float, float]:
    """Seconds that a collective takes on the links, at least and at most.

    At least, it keeps all links of a chip busy. Where an axis of the slice does not close to a
    ring, the chips at its ends wait for a single link, if the axes take turns.

    Args:
        kind: Of `KINDS`.
        size: Of its result, in bytes.
        group: How many cores take part; None for all.
        target: The TPU.
    """
    cores = group or target.cores
    tpu = target.tpu
    if tpu.chips == 1 or cores < 2:
        return _START, _START
    # The cores of a chip share its links, and reduce within the chip first.
    chips = max(cores // tpu.devices_per_chip, 2)
    wraps = [wraps for side, wraps in zip(tpu.mesh, tpu.wraps, strict=True) if side > 1]
    links = 1 if kind == "collective-permute" else len(wraps) + sum(wraps)
    sent = link_bytes(kind, size, chips) / target.hardware.link
    started = _START + sum(side // 2 for side in tpu.mesh) * _HOP
    return started + sent / links, started + sent / (links if all(wraps) else 1)


# They name, group or wait for what others do, and take no time of their own.
_FREE = frozenset(
    {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional"}
    | {"call", "after-all", "partition-id", "replica-id", "iota", "domain"}
    | {"optimization-barrier", "add-dependency", "async-update"}
)
_ROWS_ONLY = frozenset({"dynamic-slice"})
_BITCASTS = frozenset({"ConcatBitcast", "SliceBitcast", "AllocateBuffer", "Sharding"})
_LEAST = 1e-7
_TRANSCENDENTAL = frozenset(
    {"atan2", "cbrt", "cosine", "erf", "exponential", "exponential-minus-one", "log"}
    | {"log-plus-one", "logistic", "power", "sine", "tan", "tanh"}
)
_SPREAD = 1.05
"""By how much products of known sizes were measured off both figures, on v3 and v5e."""

_CALL, _CHIP = 150e-6, 50e-6
"""Seconds that the host takes at most to start a call on a chip, and on each further chip of its
own: 0.1 ms were measured on v5e, 0.13 ms on v6e, 0.3 to 0.5 ms on the eight chips of v5e-8."""
_CHIPS_OF_A_HOST = 8

_BEST = 0.45
"""The compiler's roofline of an operation on memory, in parts of its cycles; of products more."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Cost:
    """The cost of all runs of an instruction.

    Attributes:
        instruction: The instruction.
        seconds: Its cycles at the core's clock, or what a model says.
        once: The same in one run; 0 where the compiler's own roofline says nothing of it.
        kind: `"matmul"`, `"memory"` or `"collective"`.
        bytes: That it reads from HBM and writes to it, or sends.
        least: Of a collective, or of a model of gathers, scatters and sorts.
        most: Of the same.
        counted: Seconds that the compiler's roofline has for such a model all the same.
        vector: Whether the vector unit computes what the compiler's roofline leaves out.
        roofline: What that roofline has for it, in seconds of one run.
    """

    instruction: Instruction
    seconds: float
    once: float
    kind: str
    bytes: int = 0
    least: float = 0.0
    most: float = 0.0
    counted: float = 0.0
    vector: bool = False
    roofline: float = 0.0


class _Costs:
    """The costs of a program's instructions, and what had to be guessed for them.

    Args:
        compiled: What libtpu says of it.
        module: The program.
        target: What it was compiled for.
    """

    def __init__(self, compiled: Compiled, module: Module, target: Target) -> None:
        self._kernels, self._module, self._target = compiled.kernels, module, target
        self.costs: list[_Cost] = []
        self.unknown_loops = self.branches = 0
        self.without_cycles: set[str] = set()
        self.modelled: set[str] = set()
        self._add(module.entry, 1.0)

    def _add(self, computation: Computation, times: float) -> None:
        for instruction in computation.instructions:
            opcode, called = instruction.opcode, instruction.called
            kind = opcode.removesuffix("-start").removesuffix("-done")
            if opcode == "while":
                number = trips(instruction, computation, self._module)
                self.unknown_loops += number is None
                body = self._module.computations[called["body"]]
                self._add(body, times * (1 if number is None else number))
            elif opcode == "conditional":
                self.branches += 1
                for name in called.values():
                    self._add(self._module.computations[name], times / len(called))
            elif opcode == "call":
                self._add(self._module.computations[called["to_apply"]], times)
            elif kind in KINDS:
                if not opcode.endswith("-done"):
                    self.costs.append(self._collective(instruction, kind, times))
            # Copies in the background run beside what is counted.
            elif opcode not in _FREE and kind == opcode and instruction.target not in _BITCASTS:
                self.costs.append(self._cost(instruction, computation, times))

    def _collective(self, instruction: Instruction, kind: str, times: float) -> _Cost:
        size, group = collective_size(instruction), instruction.group_size
        least, most = (times * each for each in link_seconds(kind, size, group, self._target))
        sent = round(link_bytes(kind, size, group or self._target.cores))
        return _Cost(instruction, (least * most) ** 0.5, 0.0, "collective", sent, least, most)

    def _cost(self, instruction: Instruction, computation: Computation, times: float) -> _Cost:
        hardware, cycles = self._target.hardware, instruction.cycles
        moved = _moved(instruction, computation)
        consists_of = list(parts(instruction, computation, self._module))
        if cycles is None:
            model = modelled(instruction, computation, self._module, self._kernels, self._target)
            if model is not None:
                self.modelled |= model.kinds
                least, most = model.least * times, model.most * times
                kernel = self._kernels.get(instruction.name)
                counted = kernel.declared_seconds(hardware) if kernel else moved / hardware.hbm
                kind, middle = "matmul" if model.matmul else "memory", (least * most) ** 0.5
                return _Cost(instruction, middle, 0.0, kind, model.bytes, least, most, counted)
            self.without_cycles.add(instruction.target or instruction.opcode)
        once = moved / hardware.hbm if cycles is None else cycles / hardware.clock
        inside = [(one, around) for one, around in consists_of if one.opcode in PRODUCTS]
        cost = _Cost(instruction, once * times, once, "matmul" if inside else "memory", moved)
        vector = any(is_depthwise(one) for one, _ in inside) or any(
            one.opcode in _TRANSCENDENTAL for one, _ in consists_of
        )
        if cycles is None or not vector:
            return cost
        flops = 2 * sum(multiplications(one, around) for one, around in inside)
        roofline = min(max(moved / hardware.hbm, flops / hardware.flops), once)
        return dataclasses.replace(cost, vector=True, roofline=roofline)


def _moved(instruction: Instruction, computation: Computation) -> int:
    """Bytes that it reads and writes in HBM."""
    written = instruction.results
    if instruction.opcode in _ROWS_ONLY:
        read = written
    else:
        sources = (computation.by_name.get(name) for name in instruction.operands)
        read = tuple(shape for one in sources if one is not None for shape in one.results)
    return sum(shape.padded for shape in (*written, *read) if shape.space == 0)


def step_time(compiled: Compiled, module: Module, origins: Origins, target: Target) -> StepTime:
    """Estimates how long one call of a program takes.

    Args:
        compiled: What libtpu says of it.
        module: The program, compiled with all effort.
        origins: Where its instructions came from.
        target: What it was compiled for.

    Returns:
        The estimate.
    """
    found = _Costs(compiled, module, target)
    total = sum(cost.seconds for cost in found.costs) or 1.0
    links = [cost for cost in found.costs if cost.kind == "collective"]
    others = [cost for cost in found.costs if cost.kind != "collective"]
    low, high = _core(others, _optimal(compiled, module, target), target)
    low = max(low, sum(cost.least for cost in links) / _SPREAD)
    high += sum(cost.most for cost in links) * _SPREAD
    middle = (low * high) ** 0.5
    nodes = [part for cost in found.costs for part in _by_node(cost, module)]

    def shares(key: Callable[[str], SourceLine | str | None]) -> tuple[Share, ...]:
        seconds: collections.Counter[SourceLine | str] = collections.Counter()
        moved: collections.Counter[SourceLine | str] = collections.Counter()
        for cost, node in nodes:
            if place := key(node):
                seconds[place] += cost.seconds  # type: ignore[assignment]
                moved[place] += cost.bytes
        return tuple(
            share(place, seconds=part / total * middle, fraction=part / total, bytes=moved[place])
            for place, part in seconds.most_common()
        )

    collectives = []
    for cost in sorted(links, key=lambda one: one.seconds, reverse=True):
        if part := cost.seconds / total:
            kind = cost.instruction.opcode.removesuffix("-start")
            name = f"{kind} of {byte_count(collective_size(cost.instruction))}"
            line = origins.line(module.nodes[cost.instruction.name])
            collectives.append(Share(name, line, part * middle, part, bytes=cost.bytes))

    def fraction(kind: str) -> float:
        return sum(cost.seconds for cost in found.costs if cost.kind == kind) / total

    start = _CALL + _CHIP * (min(target.tpu.chips, _CHIPS_OF_A_HOST) - 1)
    return StepTime(
        low,
        high + start,
        fraction("matmul"),
        fraction("memory"),
        fraction("collective"),
        shares(origins.line),
        shares(origins.layer),
        shares(lambda node: origins.operation(node) or "other"),
        tuple(collectives),
        tuple(_not_counted(found, start)),
        start,
    )


def _core(costs: Sequence[_Cost], optimal: float, target: Target) -> tuple[float, float]:
    """Both estimates of what is not on the links.

    The compiler's roofline has the matrix unit and memory. It leaves out the vector unit, whose
    instructions take their cycles at least, and at most those and then the time of their tensors.
    """
    least, most = sum(cost.least for cost in costs), sum(cost.most for cost in costs)
    once = sum(cost.once for cost in costs)
    rest = sum(cost.seconds for cost in costs if cost.once)
    if most:
        # The compiler's roofline counts something for these too: whole tables, or more.
        counted = sum(cost.counted for cost in costs)
        optimal = min(max(optimal - counted, _BEST * once), once)
    low, high = sorted((rest, optimal * (rest / once) if once else optimal))
    for cost in costs:
        if cost.vector:
            runs = cost.seconds / cost.once
            low += runs * (cost.once - cost.roofline)
            high += runs * cost.bytes / target.hardware.hbm
    low, high = sorted((low, high))
    return max((low + least) / _SPREAD, _LEAST), max((high + most) * _SPREAD, _LEAST)


def _optimal(compiled: Compiled, module: Module, target: Target) -> float:
    """The compiler's roofline, which has −1 s for each custom call, at the core's clock."""
    seconds = compiled.cost.get("optimal_seconds", 0.0)
    calls = sum(
        one.opcode == "custom-call"
        for computation in module.computations.values()
        for one in computation.instructions
    )
    while seconds < 0 and calls:
        seconds, calls = seconds + 1, calls - 1
    hardware = target.hardware
    if hardware.planned:
        memory = compiled.cost.get("bytes accessed", 0.0) / hardware.hbm
        seconds = max(seconds * hardware.planned / hardware.clock, min(seconds, memory))
    return max(seconds, 0.0)


def _by_node(cost: _Cost, module: Module) -> list[tuple[_Cost, str]]:
    """A cost and its node; of a fusion of several products a part for each, by multiplications."""
    inside = parts(cost.instruction, module.entry, module) if cost.kind == "matmul" else ()
    found = [
        (one, multiplications(one, around)) for one, around in inside if one.opcode in PRODUCTS
    ]
    total = sum(number for _, number in found)
    if len(found) < 2 or not total:
        return [(cost, module.nodes[cost.instruction.name])]
    divided = []
    for one, number in found:
        seconds, moved = cost.seconds * number / total, round(cost.bytes * number / total)
        divided.append((dataclasses.replace(cost, seconds=seconds, bytes=moved), one.node))
    return divided


def _not_counted(found: _Costs, start: float) -> Iterator[str]:
    yield (
        "the host's input and what is returned to it. The higher estimate includes "
        f"{duration(start)} for the host to start the call, which a loop of calls hides."
    )
    if found.unknown_loops:
        yield f"Loops of unknown length ({found.unknown_loops}) count as one trip each."
    if found.branches:
        yield f"Conditionals ({found.branches}) count as the mean of their branches."
    if found.modelled:
        names = ", ".join(sorted(found.modelled))
        yield f"The compiler gives no cycles for {names}: their time is modelled."
    if found.without_cycles:
        names = ", ".join(sorted(found.without_cycles)[:6])
        yield f"The compiler gives no cycles for {names}: they count as what they read and write."
    if any(cost.kind == "collective" for cost in found.costs):
        yield (
            "Collectives are modelled from the links' bandwidth: hidden behind other work in the "
            "lower estimate, after it in the higher one."
        )
