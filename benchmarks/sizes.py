"""Training at every size: a virtual TPU against one device and against `MirroredStrategy`."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.models import MODELS
from benchmarks.report import Result, markdown, quantity, ratio_with_spread
from benchmarks.turns import Steps, steps_of

__all__ = ["CORES", "StepResult", "as_markdown", "strictness", "training"]

CORES = (8, 32, 128, 512)

_PEERS = {"one": "one device", "mirrored": "MirroredStrategy"}
_MOST_MIRRORED = 32  # at 128 its first step takes more than a minute
_QUANTITIES = (
    ("first step", "first", "seconds"),
    ("later step", "later", "seconds"),
    ("CPU of a later step", "later", "cpu"),
    ("memory", "peaks", "memory"),
)
"""The columns of a table: the title, the attribute of `Steps`, and the key of a measurement."""

_NOTHING: Mapping[str, float] = types.MappingProxyType({})
_TURNS = 5
_SECONDS = 12.0  # the time in which more processes start for a model of one size


@dataclass(frozen=True)
class StepResult(Result):
    """A measurement of a model's steps.

    Attributes:
        model: The model's name in tables.
        cores: The number of replicas.
        measured: The compared quantity, which is a column of the table.
    """

    model: str = ""
    cores: int = 0
    measured: str = ""


def training(
    models: Sequence[str], cores: Sequence[int], *, repeats: int, timeout: float
) -> Iterator[StepResult]:
    """Measure every model on every number of cores.

    Args:
        models: The models.
        cores: The numbers of cores.
        repeats: The most processes for each strategy.
        timeout: Seconds for a first step.
    """
    for count in cores:
        peers = [name for name in _PEERS if name != "mirrored" or count <= _MOST_MIRRORED]
        for model in models:
            steps = _steps(model, count, ["virtual", *peers], repeats, timeout)
            for peer, name in _PEERS.items():
                yield from _against(model, count, steps["virtual"], steps.get(peer), name)


def strictness(*, repeats: int, timeout: float) -> Iterator[StepResult]:
    """Measure steps with all rules, against the same steps without rules.

    Args:
        repeats: The most processes for each strategy.
        timeout: Seconds for a first step.
    """
    wanted = {"first step": 1.3, "later step": 1.0}
    for model, cores in (("mlp", 8), ("cnn", 8), ("lstm", 8), ("mlp", 128)):
        steps = _steps(model, cores, ["virtual", "lenient"], repeats, timeout)
        for result in _against(
            model, cores, steps["virtual"], steps["lenient"], "without rules", wanted
        ):
            if result.wanted is not None:
                yield result


def _steps(
    model: str,
    cores: int,
    strategies: Sequence[str],
    repeats: int,
    timeout: float,
) -> dict[str, Steps]:
    return steps_of(
        model,
        cores,
        strategies,
        repeats=repeats,
        turns=_TURNS,
        seconds=_SECONDS,
        timeout=timeout,
    )


def _against(
    model: str,
    cores: int,
    ours: Steps,
    peer: Steps | None,
    name: str,
    wanted: Mapping[str, float] = _NOTHING,
) -> Iterator[StepResult]:
    """Yield the comparison of each quantity with a peer's."""
    complete = ours.is_complete and (peer is None or peer.is_complete)
    missing = "not in time" if not complete else "not run" if peer is None else ""
    for title, part, key in _QUANTITIES:
        yield StepResult(
            f"{MODELS[model]}, {cores} cores, {title}",
            () if missing else tuple(each[key] for each in getattr(ours, part)),
            name,
            () if missing else tuple(each[key] for each in getattr(peer, part)),
            wanted.get(title),
            "B" if key == "memory" else "s",
            missing,
            model=MODELS[model],
            cores=cores,
            measured=title,
        )


def as_markdown(results: Iterable[StepResult]) -> str:
    """Return a table for each peer: our time, and its ratio to the peer's."""
    tables: dict[str, dict[tuple[str, int], list[str]]] = {}
    for each in results:
        row = tables.setdefault(each.peer_name, {}).setdefault((each.model, each.cores), [])
        row.append(each.missing or f"{quantity(each.ours, each.unit)}, {ratio_with_spread(each)}")
    header = ["model", "cores", *(title for title, _, _ in _QUANTITIES)]
    parts = []
    for peer, found in tables.items():
        rows = [[model, str(cores), *found[model, cores]] for model, cores in _in_order(found)]
        parts.append(f"Against {peer}:\n\n{markdown(header, rows)}")
    return "\n\n".join(parts)


def _in_order(rows: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    models = list(MODELS.values())
    return sorted(rows, key=lambda row: (models.index(row[0]), row[1]))
