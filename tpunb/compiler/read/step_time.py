"""Estimates of a program's time on a TPU, and the costs that they leave out."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tpunb._util.units import byte_count, duration
from tpunb.compiler.ask.answers import Compiled, Schedule
from tpunb.compiler.ask.libtpu import Origins
from tpunb.compiler.ask.topologies import Target
from tpunb.compiler.read.collectives import collective_of
from tpunb.compiler.read.costs import ON_SPARSE_CORES, Cost, background_bytes, cost_of, link_cost
from tpunb.compiler.read.hlo import (
    PRODUCTS,
    Computation,
    Instruction,
    Module,
    multiplications,
    parts,
)
from tpunb.compiler.read.memory import share
from tpunb.compiler.read.runs import Run, Runs
from tpunb.compiler.read.scheduled_time import is_understood
from tpunb.errors.code_problems import SourceLine
from tpunb.tpu.compiled_program import Share, StepTime
from tpunb.tpu.families import Hardware

_LEAST = 1e-7
_SPREAD = 1.05
"""The factor by which products and permutations of known sizes were measured off the estimates."""

_CALL, _CHIP = 150e-6, 50e-6
"""The most seconds that a host takes to start a call on a chip, and on each further chip of its
own. Measured: 0.1 ms on v5e, 0.13 ms on v6e, 0.3 to 0.5 ms on the eight chips of v5e-8."""
_CHIPS_OF_A_HOST = 8

_PALLAS = "tpu_custom_call"
"""The target of the custom call of a Pallas kernel."""

_MANY_SPILLS = 0.1
"""The part of the time from which on stores for lack of registers are named."""


class _Costs:
    """The costs of a program's instructions.

    Args:
        compiled: libtpu's answer.
        module: The program.
        runs: The instructions that a call runs.
        target: The target of the compilation.
    """

    def __init__(self, compiled: Compiled, module: Module, runs: Runs, target: Target) -> None:
        self._module, self._target = module, target
        self._schedules = _schedules(compiled, target)
        self.background = 0.0
        self.sparse_cores = False
        self.all = [
            dataclasses.replace(cost, times=run.times) for run in runs.all for cost in self._of(run)
        ]
        self.exposed = self._exposed(runs)
        self.links = [cost for cost in self.all if cost.kind == "collective"]
        self.others = [cost for cost in self.all if cost.kind != "collective"]

    def _of(self, run: Run) -> Iterator[Cost]:
        instruction, module = run.instruction, self._module
        if found := collective_of(instruction, module):
            yield link_cost(instruction, found, self._target)
            inside = parts(instruction, run.around, module)
            if not any(part.opcode in PRODUCTS for part, _ in inside):
                return
        elif instruction.opcode.endswith("-start"):
            self.background += run.times * background_bytes(instruction, module)
            self.sparse_cores |= instruction.opcode == ON_SPARSE_CORES
            return
        schedule = self._schedules.get(instruction.name)
        yield cost_of(instruction, run.around, module, self._target, schedule)

    def _exposed(self, runs: Runs) -> float:
        """Return the seconds of copies that nothing hides: no work lies between start and end."""
        seconds = {cost.instruction.name: cost.seconds / cost.times for cost in self.all}
        hardware, exposed = self._target.hardware, 0.0
        for run in runs.all:
            start = run.instruction
            if not start.opcode.endswith("-start") or collective_of(start, self._module):
                continue
            between = _until_done(start, run.around)
            if all(step.opcode != "while" for step in between):
                copied = background_bytes(start, self._module) / hardware.hbm
                hidden = sum(seconds.get(step.name, 0.0) for step in between)
                exposed += run.times * max(copied / hardware.sustained_hbm - hidden, 0.0)
        return exposed


def _until_done(start: Instruction, around: Computation) -> list[Instruction]:
    """Return the instructions between the start of work in the background and its end."""
    between: list[Instruction] = []
    name, steps = start.name, around.instructions
    for place in range(around.places[name] + 1, len(steps)):
        step = steps[place]
        if name in step.operands and step.opcode != "async-update":
            break
        name = step.name if name in step.operands else name
        between.append(step)
    return between


def _schedules(compiled: Compiled, target: Target) -> Mapping[str, Schedule]:
    return compiled.schedule if is_understood(compiled.product, target) else {}


def why_no_time(compiled: Compiled, runs: Runs, target: Target) -> str:
    """Return why the time of a program cannot be estimated, as a sentence; empty if it can."""
    known = _schedules(compiled, target)
    unread = [
        run.instruction.name
        for run in runs.all
        if run.instruction.target == _PALLAS and run.instruction.name not in known
    ]
    if not unread:
        return ""
    why = "its loops or copies may depend on data" if known else "they are read for v5e and v6e"
    return (
        f"The time is not known: the schedule of a Pallas kernel, `{unread[0]}`, cannot be read "
        f"({why})."
    )


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
    low, high = _range(costs, target)
    middle = (low * high) ** 0.5
    nodes = [part for cost in costs.all for part in _by_node(cost, module)]

    def shares(key: Callable[[str], SourceLine | str | None]) -> tuple[Share, ...]:
        placed: dict[SourceLine | str, list[Cost]] = collections.defaultdict(list)
        for cost, node in nodes:
            if place := key(node):
                placed[place].append(cost)
        listed = (
            (place, sum(each.seconds for each in part), part) for place, part in placed.items()
        )
        return tuple(
            share(
                place,
                seconds=seconds / total * middle,
                fraction=seconds / total,
                **_use(part, seconds, target.hardware),
            )
            for place, seconds, part in sorted(listed, key=lambda each: -each[1])
        )

    collectives = []
    for link in sorted(costs.links, key=lambda cost: cost.seconds, reverse=True):
        if part := link.seconds / total:
            found = collective_of(link.instruction, module)
            assert found is not None
            name = f"{found.kind} of {byte_count(found.size)}"
            line = origins.line(module.nodes[link.instruction.name])
            collectives.append(Share(name, line, part * middle, part, bytes=link.bytes))

    def fraction(kind: str) -> float:
        return sum(cost.seconds for cost in costs.all if cost.kind == kind) / total

    start = _CALL + _CHIP * (min(target.tpu.num_chips, _CHIPS_OF_A_HOST) - 1)
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
        tuple(_not_counted(costs, runs, start)),
        start,
        sum(cost.seconds for cost in costs.all if cost.schedule) / total,
    )


def _use(costs: Sequence[Cost], seconds: float, hardware: Hardware) -> dict[str, Any]:
    """Return what a place in the code moves, and the unit that its schedules use most."""
    moved, needed = (
        round(sum(cost.times * getattr(cost, name) for cost in costs))
        for name in ("bytes", "needed")
    )
    used: dict[str, Any] = {"bytes": moved, "needed": needed}
    busy: dict[str, float] = collections.defaultdict(float)
    for cost in costs:
        if (schedule := cost.schedule) is not None:
            for unit, cycles in ((schedule.unit, schedule.busy), ("spills", schedule.spills)):
                busy[unit] += cost.times * cycles / hardware.clock
            busy["HBM"] += cost.times * cost.bytes / hardware.hbm
    spills = busy.pop("spills", 0.0)
    if not seconds or not busy:
        return used
    unit = max(busy, key=lambda each: busy[each])
    limit = f"{unit} {min(busy[unit] / seconds, 1):.0%}"
    spilled = f", spills {spills / seconds:.0%}" if spills > _MANY_SPILLS * seconds else ""
    return {**used, "limit": limit + spilled}


def _range(costs: _Costs, target: Target) -> tuple[float, float]:
    """Return the least and the most seconds.

    At least, collectives and copies in the background hide behind other work, unless the links or
    HBM take longer, or nothing is computed between a copy's start and its end. At most, they come
    after it.
    """
    hardware = target.hardware
    counted = (cost.times * cost.bytes for cost in costs.others if not cost.modelled)
    moved = sum(counted) + costs.background
    kinds = (costs.others, costs.links)
    in_turn = [sum(cost.times * cost.least for cost in each) for each in kinds]
    low = max(in_turn[0] + costs.exposed, in_turn[1], moved / hardware.hbm)
    high = sum(cost.times * cost.most for cost in costs.all)
    high += costs.background / hardware.hbm / hardware.sustained_hbm
    return max(low / _SPREAD, _LEAST), max(high * _SPREAD, _LEAST)


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
        (dataclasses.replace(cost, times=cost.times * number / total), node)
        for node, number in products
    ]


def _not_counted(costs: _Costs, runs: Runs, start: float) -> Iterator[str]:
    yield (
        "the host's input, and results that are returned to the host. The higher estimate includes "
        f"{duration(start)} for the host to start the call, which a loop of calls hides."
    )
    if runs.unknown_loops:
        yield f"Loops of unknown length ({runs.unknown_loops}) count as one trip each."
    if runs.branches:
        yield f"Conditionals ({runs.branches}) count as the mean of their branches."
    if costs.sparse_cores:
        yield "The SparseCores' work counts as copies in the background: their speed is not known."
    if modelled := {kind for cost in costs.all for kind in cost.modelled}:
        yield (
            f"The compiler gives no cycles for {', '.join(sorted(modelled))}: their time is "
            "modelled."
        )
    others = {
        cost.instruction.target or cost.instruction.opcode
        for cost in costs.others
        if cost.instruction.cycles is None and not cost.modelled and cost.schedule is None
    }
    if others:
        names = ", ".join(sorted(others)[:6])
        yield f"The compiler gives no cycles for {names}: they count as their reads and writes."
    if costs.links:
        yield (
            "Collectives are modelled from the links' bandwidth. The lower estimate hides them "
            "behind other work, and the higher estimate adds them after it."
        )
