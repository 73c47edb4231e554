"""How long a program would take: two estimates, and what is in neither.

The higher one is mostly the compiler's cycles at the core's clock, the lower one its "optimal
seconds", a roofline of its own: on the steps that were published, the two were below and above
what was measured. Loops are multiplied by their trips; what goes over the links, gathers,
scatters and sorts are modelled: docs/compiler.md has the formulas.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator

from tpunb._util.units import byte_count
from tpunb.compiler.collectives import KINDS, collective_size, link_bytes, link_seconds
from tpunb.compiler.gathers import irregular
from tpunb.compiler.hlo import Computation, Instruction, Module
from tpunb.compiler.libtpu import Compiled
from tpunb.compiler.loops import trips
from tpunb.compiler.lowered import Origins
from tpunb.compiler.memory import line_name
from tpunb.compiler.products import multiplications, products
from tpunb.compiler.topologies import Target
from tpunb.errors.code_problems import SourceLine
from tpunb.tpu.compiled_program import Share, StepTime

__all__ = ["step_time"]

# They name, group or wait for what others do, and take no time of their own.
_FREE = frozenset(
    {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional"}
    | {"call", "after-all", "partition-id", "replica-id", "iota", "domain"}
    | {"optimization-barrier", "add-dependency", "async-update"}
)
_ROWS_ONLY = frozenset({"dynamic-slice"})
_BITCASTS = frozenset({"ConcatBitcast", "SliceBitcast", "AllocateBuffer", "Sharding"})
_LEAST = 1e-7
_BEST = 0.45
"""The compiler's roofline of an operation on memory, in parts of its cycles; of products more."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Cost:
    """What an instruction takes, in all its runs.

    Attributes:
        instruction: The instruction.
        seconds: Its cycles at the core's clock, or what a model says.
        once: The same in one run; 0 where the compiler's own roofline says nothing of it.
        kind: `"matmul"`, `"memory"` or `"collective"`.
        bytes: That it reads from HBM and writes to it, or sends.
        least: Of a model of gathers, scatters and sorts.
        most: Of the same.
        whole: Bytes of all that such a one has for arguments and results.
    """

    instruction: Instruction
    seconds: float
    once: float
    kind: str
    bytes: int = 0
    least: float = 0.0
    most: float = 0.0
    whole: int = 0


@dataclasses.dataclass
class _Sum:
    """The costs of a program, and what had to be guessed for them."""

    costs: list[_Cost] = dataclasses.field(default_factory=list)
    unknown_loops: int = 0
    branches: int = 0
    without_cycles: set[str] = dataclasses.field(default_factory=set)
    irregular: set[str] = dataclasses.field(default_factory=set)


def step_time(
    compiled: Compiled, module: Module, origins: Origins, target: Target
) -> StepTime | None:
    """Estimates how long one call of a program takes.

    Args:
        compiled: What libtpu says of it.
        module: The program, compiled with all effort.
        origins: Where its instructions came from.
        target: What it was compiled for.

    Returns:
        The estimate; None where the clock of the core is not known.
    """
    if target.hardware.clock is None:
        return None
    found = _Sum()
    _add(found, module, module.entry, 1.0, target)
    links = sum(cost.seconds for cost in found.costs if cost.kind == "collective")
    low, high = _core(found, _optimal(compiled, module), target)
    low, high = max(low, links), high + links
    return _described(found, module, origins, (low, high))


def _core(found: _Sum, optimal: float, target: Target) -> tuple[float, float]:
    """Both estimates of what is not on the links."""
    costs = [cost for cost in found.costs if cost.kind != "collective"]
    least, most = sum(cost.least for cost in costs), sum(cost.most for cost in costs)
    once = sum(cost.once for cost in costs)
    rest = sum(cost.seconds for cost in costs if cost.once)
    if most:
        # The compiler's roofline counts something for these too: whole tables, or more.
        tables = sum(cost.whole for cost in costs) / target.hardware.hbm
        optimal = min(max(optimal - tables, _BEST * once), once)
    low, high = sorted((rest, optimal * (rest / once) if once else optimal))
    return max(low + least, _LEAST), max(high + most, _LEAST)


def _add(
    found: _Sum, module: Module, computation: Computation, times: float, target: Target
) -> None:
    for instruction in computation.instructions:
        called = instruction.called
        if instruction.opcode == "while":
            number = trips(instruction, computation, module)
            found.unknown_loops += number is None
            body = module.computations[called["body"]]
            _add(found, module, body, times * (1 if number is None else number), target)
        elif instruction.opcode == "conditional":
            found.branches += 1
            for name in called.values():
                _add(found, module, module.computations[name], times / len(called), target)
        elif instruction.opcode == "call":
            _add(found, module, module.computations[called["to_apply"]], times, target)
        elif not _is_free(instruction):
            found.costs.append(_cost(found, instruction, computation, module, times, target))


def _is_free(instruction: Instruction) -> bool:
    """Whether it takes no time; copies in the background run beside what is counted."""
    opcode = instruction.opcode
    kind = opcode.removesuffix("-start").removesuffix("-done")
    if kind in KINDS:
        return opcode.endswith("-done")
    return opcode in _FREE or kind != opcode or instruction.target in _BITCASTS


def _cost(
    found: _Sum,
    instruction: Instruction,
    computation: Computation,
    module: Module,
    times: float,
    target: Target,
) -> _Cost:
    opcode = instruction.opcode.removesuffix("-start")
    if opcode in KINDS:
        size = collective_size(instruction)
        seconds = link_seconds(opcode, size, instruction.group_size, target)
        sent = round(link_bytes(opcode, size, instruction.group_size or target.replicas))
        return _Cost(instruction, seconds * times, 0.0, "collective", sent)
    cycles = instruction.cycles
    moved = _moved(instruction, computation)
    if cycles is None and (model := irregular(instruction, computation, module, target)):
        found.irregular |= model.kinds
        least, most = (seconds * times for seconds in model.seconds(target))
        middle = (least * most) ** 0.5
        return _Cost(instruction, middle, 0.0, "memory", model.bytes, least, most, moved)
    if cycles is None:
        found.without_cycles.add(_called(instruction))
        once = moved / target.hardware.hbm
    else:
        once = cycles / (target.hardware.clock or 1.0)
    kind = "memory" if next(products(instruction, module), None) is None else "matmul"
    return _Cost(instruction, once * times, once, kind, moved)


def _called(instruction: Instruction) -> str:
    return instruction.target or instruction.opcode


def _moved(instruction: Instruction, computation: Computation) -> int:
    """Bytes that it reads and writes in HBM."""
    written = _size(instruction.results)
    if instruction.opcode in _ROWS_ONLY:
        return 2 * written
    sources = (computation.by_name.get(name) for name in instruction.operands)
    return written + sum(_size(one.results) for one in sources if one is not None)


def _size(shapes: Iterable[object]) -> int:
    return sum(one.padded for one in shapes if one.space == 0)  # type: ignore[attr-defined]


def _optimal(compiled: Compiled, module: Module) -> float:
    """The compiler's roofline, which has −1 s for each custom call."""
    seconds = compiled.cost.get("optimal_seconds", 0.0)
    calls = sum(
        one.opcode == "custom-call"
        for computation in module.computations.values()
        for one in computation.instructions
    )
    while seconds < 0 and calls:
        seconds, calls = seconds + 1, calls - 1
    return max(seconds, 0.0)


def _described(
    found: _Sum, module: Module, origins: Origins, bounds: tuple[float, float]
) -> StepTime:
    low, high = bounds
    total = sum(cost.seconds for cost in found.costs) or 1.0
    middle = (low * high) ** 0.5
    nodes = [part for cost in found.costs for part in _by_node(cost, module)]

    def shares(key: Callable[[str], SourceLine | str | None]) -> tuple[Share, ...]:
        return tuple(_shares(nodes, key, total, middle))

    def operation(node: str) -> str:
        return origins.operation(node) or "other"

    part = {
        kind: sum(cost.seconds for cost in found.costs if cost.kind == kind) / total
        for kind in ("matmul", "memory", "collective")
    }
    return StepTime(
        low,
        high,
        part["matmul"],
        part["memory"],
        part["collective"],
        shares(origins.line),
        shares(origins.layer),
        shares(operation),
        tuple(_collectives(nodes, origins, total, middle)),
        tuple(_not_counted(found)),
    )


def _by_node(cost: _Cost, module: Module) -> list[tuple[_Cost, str]]:
    """A cost and its node; of a fusion of several products a part for each, by multiplications."""
    found = list(products(cost.instruction, module)) if cost.kind == "matmul" else []
    total = sum(multiplications(one, inside) for one, inside in found)
    if len(found) < 2 or not total:
        return [(cost, module.nodes[cost.instruction.name])]
    parts = []
    for one, inside in found:
        share = multiplications(one, inside) / total
        seconds, moved = cost.seconds * share, round(cost.bytes * share)
        parts.append((dataclasses.replace(cost, seconds=seconds, bytes=moved), one.node))
    return parts


def _shares(
    nodes: Iterable[tuple[_Cost, str]],
    key: Callable[[str], SourceLine | str | None],
    total: float,
    middle: float,
) -> Iterator[Share]:
    seconds: collections.Counter[SourceLine | str] = collections.Counter()
    moved: collections.Counter[SourceLine | str] = collections.Counter()
    for cost, node in nodes:
        if place := key(node):
            seconds[place] += cost.seconds  # type: ignore[assignment]
            moved[place] += cost.bytes
    for place, share in seconds.most_common():
        line = None if isinstance(place, str) else place
        name = place if isinstance(place, str) else line_name(place)
        fraction = share / total
        yield Share(name, line, fraction * middle, fraction, bytes=moved[place])


def _collectives(
    nodes: Iterable[tuple[_Cost, str]], origins: Origins, total: float, middle: float
) -> Iterator[Share]:
    found = [(cost, node) for cost, node in nodes if cost.kind == "collective" and cost.seconds]
    for cost, node in sorted(found, key=lambda one: one[0].seconds, reverse=True):
        opcode = cost.instruction.opcode.removesuffix("-start")
        size = byte_count(collective_size(cost.instruction))
        fraction = cost.seconds / total
        line = origins.line(node)
        yield Share(f"{opcode} of {size}", line, fraction * middle, fraction, bytes=cost.bytes)


def _not_counted(found: _Sum) -> Iterator[str]:
    yield "The host: input, dispatch and what is returned to it."
    if found.unknown_loops:
        yield f"{found.unknown_loops} loops of unknown length are counted as one trip each."
    if found.branches:
        yield f"Of {found.branches} conditionals, the mean of the branches is counted."
    if found.irregular:
        names = ", ".join(f"{kind}s" for kind in sorted(found.irregular))
        yield f"The compiler gives no cycles for {names}: modelled, by rows and by memory."
    if found.without_cycles:
        names = ", ".join(sorted(found.without_cycles)[:6])
        yield f"The compiler gives no cycles for {names}: counted as what they read and write."
    if any(cost.kind == "collective" for cost in found.costs):
        yield (
            "Collectives are modelled from the links' bandwidth: hidden behind other work in the "
            "lower estimate, after it in the higher one."
        )
