"""The displays of the gallery: what they show, for its pictures and for the site's live displays."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from support import programs as made
from support.displayed import PerReplica
from support.placements import ARRAYS, described, tree
from support.topologies import assigned
from tpunb.compiler.program import TpuProgram, TpuPrograms, load_program
from tpunb.display.widgets.curves import CurvesWidget
from tpunb.display.widgets.live_widget import LiveWidget
from tpunb.display.widgets.programs import ProgramsWidget
from tpunb.display.widgets.replicas import ReplicasWidget
from tpunb.display.widgets.topology import TopologyWidget
from tpunb.training.history import History

PROGRAMS = Path(__file__).parents[1] / "browser"


def noise(step: int, seed: int = 0) -> float:
    """Return a number that looks random and is the same in every run."""
    return math.sin(step * 12.9898 + seed * 78.233) * 43758.5453 % 1 - 0.5


def trained(
    name: str = "", steps: int = 500, speed: float = 1.0, total: int | None = None
) -> History:
    history = History(name, total_steps=total)
    seed = sum(map(ord, name))
    for step in range(1, steps + 1):
        at = speed * step / 500
        loss = 2.2 * math.exp(-3.2 * at) + 0.12 + 0.16 * noise(step, seed) * math.exp(-at)
        history.append(
            step, loss=loss, accuracy=1 - 0.9 * math.exp(-2.6 * at) + 0.03 * noise(step, seed + 1)
        )
        if step % 50 == 0:
            history.append(step, val_loss=2.2 * math.exp(-3 * at) + 0.2 + 0.12 * at**3)
            history.append(step, val_accuracy=0.95 - 0.9 * math.exp(-2.4 * at))
    return history


def without_timer(widget: CurvesWidget) -> CurvesWidget:
    """Stop the widget's thread: the test sends its updates, as Playwright allows a single thread."""
    widget._follower.stop()
    return widget


def random(replica: int) -> np.random.Generator:
    return np.random.default_rng(replica)


def waves(replica: int, sides: tuple[int, int] = (40, 60)) -> Any:
    rows, columns = np.mgrid[: sides[0], : sides[1]]
    return np.sin(rows / 7 + replica / 3) * np.cos(columns / 9) + replica / 10


def with_nan(replica: int) -> Any:
    array = waves(replica)
    if replica == 2:
        array[10:16, 20:30] = np.nan
        array[30, 40:50] = np.inf
    return array.astype(np.float32)


def walk(replica: int) -> Any:
    return random(replica).normal(size=2000).cumsum().astype(np.float32)


def structure() -> Any:
    return {
        "loss": PerReplica(*[np.float32(2.5 + math.sin(k)) for k in range(8)]),
        "logits": PerReplica(*[waves(k, (16, 24)) for k in range(8)]),
        "state": {
            "step": PerReplica(*[np.int64(120)] * 8),
            "slots": (PerReplica(*[walk(k) for k in range(8)]), "adam"),
        },
        "mask": PerReplica(*[np.eye(4, dtype=bool)] * 8),
    }


def training() -> LiveWidget:
    """A training run with 8 replicas."""
    history = trained(steps=320, total=1000)
    spread = History("mnist", total_steps=1000)
    for step, loss, accuracy in zip(
        history.steps("loss"), history.values("loss"), history.values("accuracy"), strict=True
    ):
        losses = [loss * (1 + 0.3 * noise(int(step) // 3, core)) for core in range(8)]
        spread.append(int(step), loss=losses, accuracy=float(accuracy))
        if step % 50 == 0:
            row = int(step) // 50 - 1
            spread.append(
                int(step),
                {name: history.values(name)[row] for name in ("val_loss", "val_accuracy")},
            )
    return without_timer(CurvesWidget(spread, smoothing=60))


def several_runs() -> LiveWidget:
    """Three runs to compare."""
    runs = [trained("baseline"), trained("lr 3e-4", speed=1.4), trained("dropout", speed=0.7)]
    for run in runs:
        run.finish()
    return without_timer(CurvesWidget(runs, smoothing=80, scale="log"))


def saved(name: str) -> TpuProgram:
    """Return a program that the TPU's own compiler compiled."""
    program = load_program(PROGRAMS / f"{name}.tpuprogram")
    assert isinstance(program, TpuProgram)
    return dataclasses.replace(program, provenance=None)


def differing() -> LiveWidget:
    """The difference of a replica from the first replica."""
    values = [with_nan(2 if replica == 2 else 0) for replica in range(4)]
    return ReplicasWidget(PerReplica(*values), mode="difference", selected=[2])


def compiled() -> LiveWidget:
    """A training step compiled for several types."""
    return ProgramsWidget(TpuPrograms([made.FITS, made.TOO_LARGE, made.REFUSED, made.UNKNOWN]))


WIDGETS: dict[str, Callable[[], LiveWidget]] = {
    "step": lambda: ProgramsWidget(saved("step")),
    "too-large": lambda: ProgramsWidget(saved("attention")),
    "memory": lambda: ProgramsWidget([saved("plain"), saved("with_checkpoint")]),
    "topology": lambda: TopologyWidget(assigned("v4-64", 2), selected=[5]),
    "pod": lambda: TopologyWidget("v5p-17920"),
    "replicas": lambda: ReplicasWidget(structure(), section=1),
    "replicas-difference": differing,
    "array": lambda: ReplicasWidget(described(ARRAYS["copies"])),
    "tree-of-arrays": lambda: ReplicasWidget(described(tree())),
    "curves": training,
    "curves-runs": several_runs,
    "programs": compiled,
    "communication": lambda: ProgramsWidget(made.COMMUNICATING),
}
"""The displays, by the name of their picture."""
