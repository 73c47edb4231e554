"""The communication of a compiled program: each collective with its line, cores, bytes and time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tpunb.compiler.ask.libtpu import Prepared
from tpunb.compiler.ask.topologies import Target
from tpunb.compiler.read.collectives import Collective, collective_of, cores_of
from tpunb.compiler.read.core_groups import Mesh, axes_of
from tpunb.compiler.read.costs import Cost, link_cost
from tpunb.compiler.read.hlo import Module
from tpunb.compiler.read.runs import Runs
from tpunb.errors.code_problems import SourceLine
from tpunb.tpu.compiled_program import Communication, CoreGroups, MeshAxis, StepTime, Transfer


def communication(
    module: Module,
    runs: Runs,
    prepared: Prepared,
    target: Target,
    time: StepTime | None,
) -> Communication | None:
    """Return the collectives of a program; None if it has none.

    Args:
        module: The program.
        runs: The instructions that a call of the program runs.
        prepared: The program before its compilation, with its lines, arguments and mesh.
        target: The target of the compilation.
        time: The estimate of a call's time, if any.
    """
    mesh, arguments = prepared.mesh, {name for name, _ in prepared.parameters}
    groups: dict[CoreGroups, int] = {}
    merged: dict[tuple[object, ...], Transfer] = {}
    for run in runs.all:
        if (found := collective_of(run.instruction, module)) is None:
            continue
        cost = dataclasses.replace(link_cost(run.instruction, found, target), times=run.times)
        place = _cores(found, target, mesh)
        group = groups.setdefault(place, len(groups))
        node = module.nodes[run.instruction.name]
        line, argument = prepared.origins.line(node), node.replace("\\", "")
        argument = argument if argument in arguments else ""
        key = (found.kind, found.size, group, line, argument)
        merged[key] = _added(merged.get(key), _transfer(found, cost, group, line, argument))
    if not merged:
        return None
    longest = sorted(merged.values(), key=lambda each: each.seconds, reverse=True)
    axes = tuple(MeshAxis(name, size) for name, size in mesh)
    return Communication(axes, target.cores, tuple(groups), tuple(_with_shares(longest, time)))


def _transfer(
    found: Collective, cost: Cost, group: int, line: SourceLine | None, argument: str
) -> Transfer:
    return Transfer(
        found.kind,
        found.size,
        round(cost.bytes * cost.times),
        group,
        runs=cost.times,
        line=line,
        seconds=cost.seconds,
        argument=argument,
    )


def _added(former: Transfer | None, other: Transfer) -> Transfer:
    """Return equal collectives as one."""
    if former is None:
        return other
    return dataclasses.replace(
        former,
        sent=former.sent + other.sent,
        count=former.count + other.count,
        runs=former.runs + other.runs,
        seconds=former.seconds + other.seconds,
    )


def _with_shares(transfers: Sequence[Transfer], time: StepTime | None) -> list[Transfer]:
    """Return collectives with their shares of the step, which adds up to the estimate's share."""
    whole = sum(transfer.seconds for transfer in transfers)
    if time is None or not whole:
        return list(transfers)
    shares = [transfer.seconds / whole * time.collectives_fraction for transfer in transfers]
    return [
        dataclasses.replace(transfer, fraction=share, seconds=share * time.estimate)
        for transfer, share in zip(transfers, shares, strict=True)
    ]


def _cores(found: Collective, target: Target, mesh: Mesh) -> CoreGroups:
    """Return the cores that take part in a collective."""
    groups = cores_of(found, target)
    if groups is None:
        return CoreGroups(known=False)
    axes = axes_of(groups, mesh, partly=found.kind == "collective-permute")
    return CoreGroups(groups, axes or ())
