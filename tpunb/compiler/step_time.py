"""Estimates of a program's time on a TPU, and the costs that they leave out."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator, Sequence

from tpunb._util.units import byte_count, duration
from tpunb.compiler.collectives import collective_of
from tpunb.compiler.costs import Cost, cost_of, link_cost
from tpunb.compiler.hlo import PRODUCTS, Module, multiplications, parts
from tpunb.compiler.libtpu import Compiled, Origins
from tpunb.compiler.memory import share
from tpunb.compiler.runs import Run, Runs
from tpunb.compiler.topologies import Target
from tpunb.errors.code_problems import SourceLine
from tpunb.tpu.compiled_program import Share, StepTime

_LEAST = 1e-7
_SPREAD = 1.05
"""The factor by which products of known sizes were measured off both estimates, on v3 and v5e."""

_CALL, _CHIP = 150e-6, 50e-6
"""The most seconds that a host takes to start a call on a chip, and on each further chip of its
own. Measured: 0.1 ms on v5e, 0.13 ms on v6e, 0.3 to 0.5 ms on the eight chips of v5e-8."""
_CHIPS_OF_A_HOST = 8

_BEST = 0.45
"""The least ratio of the compiler's roofline to its cycles, for operations on memory."""


class _Costs:
    """The costs of a program's instructions.

    Args:
        compiled: libtpu's answer.
        module: The program.
        runs: The instructions that a call runs.
        target: The target of the compilation.
    """

    def __init__(self, compiled: Compiled, module: Module, runs: Runs, target: Target) -> None:
        self._kernels, self._module, self._target = compiled.kernels, module, target
        self.unknown_loops, self.branches = runs.unknown_loops, runs.branches
        self.all = [
            dataclasses.replace(cost, times=run.times) for run in runs.all for cost in self._of(run)
        ]

    def _of(self, run: Run) -> Iterator[Cost]:
        instruction, module = run.instruction, self._module
        if found := collective_of(instruction, module):
            yield link_cost(instruction, found, self._target)
            inside = parts(instruction, run.around, module)
            if not any(part.opcode in PRODUCTS for part, _ in inside):
                return
        elif instruction.opcode.endswith("-start"):  # background copies run beside the counted work
            return
        yield cost_of(instruction, run.around, module, self._kernels, self._target)


def step_time(
    compiled: Compiled, module: Module, runs: Runs, origins: Origins, target: Target
) -> StepTime:
    """Estimate the time of one call of a program.

    Args:
        compiled: libtpu's answer.
        module: The program, compiled at full effort.
        runs: The instructions that a call of the program runs.
        origins: The places that its instructions come from.
        target: The target of the compilation.

    Returns:
        The estimate.
    """
    costs = _Costs(compiled, module, runs, target)
    total = sum(cost.seconds for cost in costs.all) or 1.0
    links = [cost for cost in costs.all if cost.kind == "collective"]
    others = [cost for cost in costs.all if cost.kind != "collective"]
    low, high = _core(others, _optimal(compiled, module, target), target)
    low = max(low, sum(cost.times * cost.least for cost in links) / _SPREAD)
    high += sum(cost.times * cost.most for cost in links) * _SPREAD
    middle = (low * high) ** 0.5
    nodes = [part for cost in costs.all for part in _by_node(cost, module)]

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
    for link in sorted(links, key=lambda cost: cost.seconds, reverse=True):
        if part := link.seconds / total:
            found = collective_of(link.instruction, module)
            assert found is not None
            name = f"{found.kind} of {byte_count(found.size)}"
            line = origins.line(module.nodes[link.instruction.name])
            collectives.append(Share(name, line, part * middle, part, bytes=link.bytes))

    def fraction(kind: str) -> float:
        return sum(cost.seconds for cost in costs.all if cost.kind == kind) / total

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
        tuple(_not_counted(costs, start)),
        start,
    )


def _core(costs: Sequence[Cost], optimal: float, target: Target) -> tuple[float, float]:
    """Return both estimates of the work that is not on the links.

    The compiler's roofline covers the matrix unit and memory, but not the vector unit. Vector
    instructions take at least their cycles, and at most their cycles and then the time to move
    their tensors.
    """
    least = sum(cost.times * cost.least for cost in costs)
    most = sum(cost.times * cost.most for cost in costs)
    once = sum(cost.once for cost in costs)
    rest = sum(cost.seconds for cost in costs if cost.once)
    if most:
        # The roofline counts some time for these instructions too: for whole tables, or more.
        counted = sum(cost.counted for cost in costs)
        optimal = min(max(optimal - counted, _BEST * once), once)
    low, high = sorted((rest, optimal * (rest / once) if once else optimal))
    for cost in costs:
        if cost.roofline is not None:
            low += cost.times * (cost.once - cost.roofline)
            high += cost.times * cost.bytes / target.hardware.hbm
    low, high = sorted((low, high))
    return max((low + least) / _SPREAD, _LEAST), max((high + most) * _SPREAD, _LEAST)


def _optimal(compiled: Compiled, module: Module, target: Target) -> float:
    """Return the compiler's roofline at the core's clock. It counts −1 s per custom call."""
    seconds = compiled.cost.get("optimal_seconds", 0.0)
    calls = sum(
        instruction.opcode == "custom-call"
        for computation in module.computations.values()
        for instruction in computation.instructions
    )
    while seconds < 0 and calls:
        seconds, calls = seconds + 1, calls - 1
    hardware = target.hardware
    if hardware.planned:
        memory = compiled.cost.get("bytes accessed", 0.0) / hardware.hbm
        seconds = max(seconds * hardware.planned / hardware.clock, min(seconds, memory))
    return max(seconds, 0.0)


def _by_node(cost: Cost, module: Module) -> list[tuple[Cost, str]]:
    """Return a cost with its node, or one part for each product in a fusion of several."""
    inside = parts(cost.instruction, module.entry, module) if cost.kind == "matmul" else ()
    products = [
        (part.node, multiplications(part, around))
        for part, around in inside
        if part.opcode in PRODUCTS
    ]
    total = sum(number for _, number in products)
    if len(products) < 2 or not total:
        return [(cost, module.nodes[cost.instruction.name])]
    return [
        (
            dataclasses.replace(
                cost, times=cost.times * number / total, bytes=round(cost.bytes * number / total)
            ),
            node,
        )
        for node, number in products
    ]


def _not_counted(costs: _Costs, start: float) -> Iterator[str]:
    yield (
        "the host's input, and results that are returned to the host. The higher estimate includes "
        f"{duration(start)} for the host to start the call, which a loop of calls hides."
    )
    if costs.unknown_loops:
        yield f"Loops of unknown length ({costs.unknown_loops}) count as one trip each."
    if costs.branches:
        yield f"Conditionals ({costs.branches}) count as the mean of their branches."
    if modelled := {kind for cost in costs.all for kind in cost.modelled}:
        yield (
            f"The compiler gives no cycles for {', '.join(sorted(modelled))}: their time is "
            "modelled."
        )
    others = {
        cost.instruction.target or cost.instruction.opcode
        for cost in costs.all
        if cost.instruction.cycles is None and cost.kind != "collective" and not cost.modelled
    }
    if others:
        names = ", ".join(sorted(others)[:6])
        yield f"The compiler gives no cycles for {names}: they count as their reads and writes."
    if any(cost.kind == "collective" for cost in costs.all):
        yield (
            "Collectives are modelled from the links' bandwidth. The lower estimate hides them "
            "behind other work, and the higher estimate adds them after it."
        )
