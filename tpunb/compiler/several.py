"""Several programs of one call as one: a function may run the replicas more than once."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Sequence

from tpunb.compiler.program import TpuProgram
from tpunb.tpu.compiled_program import Share, StepTime

__all__ = ["merged"]


def merged(programs: Sequence[TpuProgram]) -> TpuProgram:
    """The programs of one call: memory of the largest, the sum of their times."""
    if len(programs) == 1:
        return programs[0]
    largest = max(programs, key=lambda one: one.memory.peak if one.memory else 0)
    times = [one.time for one in programs if one.time is not None]
    note = f"It calls strategy.run {len(programs)} times: memory is that of the largest program."
    return dataclasses.replace(
        largest,
        errors=tuple(dict.fromkeys(error for one in programs for error in one.errors)),
        unknown=next((one.unknown for one in programs if one.unknown), ""),
        crashed=any(one.crashed for one in programs),
        time=_sum(times) if len(times) == len(programs) else None,
        lines=tuple(dict.fromkeys(line for one in programs for line in one.lines)),
        text="\n\n".join(one.text for one in programs if one.text),
        compile_seconds=sum(one.compile_seconds for one in programs),
        notes=tuple(dict.fromkeys([note, *(text for one in programs for text in one.notes)])),
    )


def _sum(times: Sequence[StepTime]) -> StepTime:
    total = sum(one.estimate for one in times) or 1.0
    weights = [one.estimate / total for one in times]

    def mean(name: str) -> float:
        return float(sum(w * getattr(one, name) for w, one in zip(weights, times, strict=True)))

    def shares(name: str) -> tuple[Share, ...]:
        return tuple(_added((share for one in times for share in getattr(one, name)), total))

    return StepTime(
        sum(one.low for one in times),
        sum(one.high for one in times),
        mean("matmul"),
        mean("memory_bound"),
        mean("collectives_fraction"),
        shares("by_line"),
        shares("by_layer"),
        shares("by_operation"),
        shares("collectives"),
        tuple(dict.fromkeys(text for one in times for text in one.not_counted)),
    )


def _added(shares: Iterable[Share], total: float) -> list[Share]:
    seconds: collections.defaultdict[tuple[object, str], float] = collections.defaultdict(float)
    first: dict[tuple[object, str], Share] = {}
    for share in shares:
        key = share.line, share.name
        seconds[key] += share.seconds or 0.0
        first.setdefault(key, share)
    ordered = sorted(seconds, key=seconds.__getitem__, reverse=True)
    return [
        dataclasses.replace(first[key], seconds=seconds[key], fraction=seconds[key] / total)
        for key in ordered
    ]
