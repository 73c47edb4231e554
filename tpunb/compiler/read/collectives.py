"""The collectives of a compiled program: what each sends, between which cores, and how often.

libtpu puts collectives into fusions. An all-reduce whose result is cut at once is a fusion, which
sends as little as a reduce-scatter. A collective that runs beside other work is in three fusions,
which start, continue and end it. (libtpu 0.0.52)
"""

from __future__ import annotations

import dataclasses

from tpunb.compiler.ask.topologies import Target
from tpunb.compiler.read.core_groups import Groups, groups_in
from tpunb.compiler.read.hlo import Computation, Instruction, Module
from tpunb.compiler.read.runs import Runs
from tpunb.tpu.compiled_program import Collectives

COLLECTIVES = frozenset(
    {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"}
)

_FUSIONS = frozenset({"fusion", "async-start"})
_HOLDERS = COLLECTIVES | _FUSIONS | {f"{kind}-start" for kind in COLLECTIVES}
"""The operations that a computation with a collective has at least one of."""

_GLOBAL = "use_global_device_ids=true"
_IN_PARTS = "async_collective_fusion_config"
_STARTS = "AsyncCollectiveStart"
_CUTS = frozenset({"dynamic-slice", "bitcast", "copy", "fusion", "convert", "reshape"})


@dataclasses.dataclass(frozen=True, slots=True)
class Collective:
    """A collective that an instruction runs or starts.

    Attributes:
        kind: One of `COLLECTIVES`.
        size: The bytes of its result on a core.
        instruction: The collective itself, perhaps in a fusion.
    """

    kind: str
    size: int
    instruction: Instruction


def collective_of(instruction: Instruction, module: Module) -> Collective | None:
    """Return the collective that an instruction runs or starts; None for other instructions.

    Args:
        instruction: An instruction that is not inside a fusion.
        module: The program.
    """
    if (kind := instruction.opcode.removesuffix("-start")) in COLLECTIVES:
        return Collective(kind, collective_size(instruction), instruction)
    if instruction.opcode not in _FUSIONS:
        return None
    inner = module.computations.get(instruction.called.get("calls", ""))
    if inner is None or inner.opcodes.isdisjoint(_HOLDERS):
        return None
    return _inside(inner, module)


def cores_of(found: Collective, target: Target) -> Groups | None:
    """Return the groups of cores of a collective; empty for all cores, None if not known.

    The numbers in a program are cores, or replicas, or the cores of a replica: see XLA's
    `GetCollectiveOpGroupMode`. Core c of replica r has the number `r * partitions + c`.
    """
    attributes, replicas, cores = found.instruction.rest, target.replicas, target.partitions
    groups = groups_in(attributes)
    if groups is None:
        return None
    if min(replicas, cores) > 1 and _GLOBAL not in attributes:
        groups = _with_all_cores(found, groups, replicas, cores)
    return () if len(groups) == 1 and len(groups[0]) == target.cores else groups


def _with_all_cores(found: Collective, groups: Groups, replicas: int, cores: int) -> Groups:
    """Return groups of cores for groups of replicas, or of the cores of each replica."""
    has_channel = "channel_id=" in found.instruction.rest
    between_cores = has_channel and found.kind in ("all-to-all", "collective-permute")
    if between_cores:
        groups = groups or (tuple(range(cores)),)
        return tuple(
            tuple(replica * cores + core for core in group)
            for replica in range(replicas)
            for group in groups
        )
    groups = groups or (tuple(range(replicas)),)
    if has_channel:
        return tuple(
            tuple(replica * cores + core for replica in group for core in range(cores))
            for group in groups
        )
    return tuple(
        tuple(replica * cores + core for replica in group)
        for group in groups
        for core in range(cores)
    )


def _inside(computation: Computation, module: Module) -> Collective | None:
    """Return the collective in a fusion, if the fusion begins it."""
    inside = (collective_of(step, module) for step in computation.instructions)
    found = next(filter(None, inside), None)
    if found is None:
        return None
    is_in_parts = _IN_PARTS in found.instruction.rest
    if is_in_parts and all(step.target != _STARTS for step in computation.instructions):
        return None
    if found.kind == "all-reduce" and (size := _kept(computation, found)):
        return Collective("reduce-scatter", size, found.instruction)
    return found


def _kept(computation: Computation, reduce: Collective) -> int:
    """Return the bytes that a fusion keeps of an all-reduce's result; 0 if it keeps all."""
    kept = sum(shape.unpadded for shape in computation.root.results)
    cut = computation.root.opcode in _CUTS and any(
        step.opcode == "dynamic-slice" and reduce.instruction.name in step.operands
        for step in computation.instructions
    )
    return kept if cut and kept < reduce.size else 0


def collective_size(instruction: Instruction) -> int:
    """Return the bytes of a collective's results."""
    results = list(instruction.results)
    if instruction.opcode.endswith("-start") and not instruction.opcode.startswith("all-reduce"):
        results = results[len(instruction.operands) :][: len(instruction.operands)]
    return sum(shape.unpadded for shape in results)


def collectives_in(module: Module, runs: Runs) -> tuple[Collectives, ...]:
    """Return the collectives of a program by kind, those with the most bytes first."""
    sizes: dict[str, list[int]] = {}
    for run in runs.all:
        if found := collective_of(run.instruction, module):
            sizes.setdefault(found.kind, []).append(found.size)
    by_kind = [Collectives(kind, len(each), sum(each)) for kind, each in sizes.items()]
    return tuple(sorted(by_kind, key=lambda each: each.bytes, reverse=True))
