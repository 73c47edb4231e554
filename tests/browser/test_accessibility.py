"""Every widget and static form follows axe-core's rules of WCAG 2.2 AA, in both themes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hosting import Hosted
from support import programs as made
from support.displayed import PerReplica
from support.gallery import noise, trained, without_timer
from support.tiers import THOROUGH
from test_programs import several
from test_replicas import GALLERY, distributed  # noqa: F401

from tpunb.display import live_progress
from tpunb.display.describe.replicas import describe_replica_values
from tpunb.display.describe.topology_description import describe_accelerator
from tpunb.display.draw.connection_text import facts_html
from tpunb.display.draw.doctor_html import doctor_html
from tpunb.display.draw.programs.html import programs_html
from tpunb.display.draw.replicas.html import replicas_html
from tpunb.display.draw.static_forms import mimebundle
from tpunb.display.draw.topology.svg import topology_html
from tpunb.display.widgets.curves import CurvesWidget
from tpunb.display.widgets.programs import ProgramsWidget
from tpunb.display.widgets.replicas import ReplicasWidget
from tpunb.display.widgets.topology import TopologyWidget
from tpunb.errors.explain import explain
from tpunb.tpu.types import accelerator
from tpunb.training.history import History
from tpunb.training.profile import Operation, Profile, StepTimes

pytestmark = THOROUGH

UNREAD = """() => [...document.querySelectorAll("canvas")].filter((canvas) => {
  const named = canvas.closest("[aria-label], [aria-labelledby]");
  return canvas.closest("[aria-hidden=true]") === null
    && (named === null || named.matches("section, [role=group]"));
}).map((canvas) => canvas.parentElement.outerHTML.slice(0, 200))"""
"""Lists the pictures that have no text for screen readers."""

Host = Callable[[Callable[[], Any]], Hosted]
Axe = Callable[[], list[str]]


def spread() -> History:
    history = History("8 replicas")
    for step in range(60):
        history.append(step, loss=[1 + 0.35 * noise(step, core) for core in range(8)])
    history.finish(stopped=True)
    return history


def history_with_nan() -> History:
    history = trained(steps=200, total=500)
    history.append(201, loss=float("nan"), accuracy=0.1)
    return history


def runs() -> list[History]:
    return [trained("baseline"), trained("lr 3e-4", speed=1.4), trained("dropout", speed=0.7)]


WIDGETS: dict[str, Callable[[], Any]] = {
    "waiting": lambda: without_timer(CurvesWidget(History("mnist", total_steps=200))),
    "spread": lambda: without_timer(CurvesWidget(spread())),
    "broken": lambda: without_timer(CurvesWidget(history_with_nan())),
    "runs": lambda: without_timer(CurvesWidget(runs(), smoothing=60)),
    "planes": lambda: TopologyWidget("v4-128"),
    "pod": lambda: TopologyWidget("v5e-256", selected=[3]),
    "program": lambda: ProgramsWidget(made.FITS),
    "communication": lambda: ProgramsWidget(made.COMMUNICATING),
    "programs": lambda: ProgramsWidget(several()),
    "too large": lambda: ProgramsWidget(made.TOO_LARGE),
    "refused": lambda: ProgramsWidget(made.REFUSED),
    **{
        name: lambda make=make, state=state: ReplicasWidget(make(), **state)
        for name, (make, state) in GALLERY.items()
    },
}


def profile() -> Profile:
    steps = tuple(StepTimes(f"train {n}", 0.0148, 0.001, 0.009, 0.001) for n in range(4))
    return Profile(
        whole=StepTimes("whole", 0.5, 0.1, 0.3),
        steps=steps,
        operations=(Operation("sequential_1/dense_1/MatMul", "MatMul", 32, 0.1, 0.178),),
        notes=("On a virtual TPU the device is the CPU.",),
    )


REPORTED = [("Python", [("version", "3.12"), ("", "/usr/bin/python3")])]
FORMS: dict[str, Callable[[], str]] = {
    "replicas": lambda: str(
        mimebundle(
            describe_replica_values(
                PerReplica(*[np.array([k % 3, np.nan, np.inf, 1.0]) for k in range(8)])
            )
        )["text/html"]
    ),
    "panels": lambda: replicas_html(
        describe_replica_values(
            PerReplica(*[np.linspace(-1, 1, 640).reshape(64, 10) * (k + 1) for k in range(8)])
        )
    ),
    "curves": lambda: replicas_html(
        describe_replica_values(PerReplica(*[np.arange(300.0) * k for k in range(8)]))
    ),
    "topology": lambda: topology_html(describe_accelerator(accelerator("v4-32"))),
    "program": lambda: programs_html([made.TOO_LARGE]),
    "communication": lambda: programs_html([made.COMMUNICATING]),
    "programs": lambda: programs_html(several()),
    "profile": lambda: profile()._repr_html_(),
    "doctor": lambda: doctor_html("No TPU here.", REPORTED, ("Next", "pip install x"), ok=False),
    "facts": lambda: facts_html("Connected", [("TPU", "v3-8")]),
    "explanation": lambda: explain("24")._repr_html_(),  # type: ignore[union-attr]
    "passing": lambda: live_progress._html("300 steps in 2 s"),
}


def apply_theme(page: Any, theme: str) -> None:
    """Use the colours of a JupyterLab theme, as host.html defines them, or of no theme."""
    page.evaluate("(theme) => { document.body.className = theme; }", theme)


@pytest.mark.parametrize("theme", ["light", "dark", "none"])
@pytest.mark.parametrize("name", WIDGETS)
def test_widgets(name: str, theme: str, host: Host, page: Any, axe: Axe) -> None:
    apply_theme(page, theme)
    host(WIDGETS[name])
    page.locator(".tpunb").wait_for()
    assert axe() == []
    assert page.evaluate(UNREAD) == []


@pytest.mark.parametrize("theme", ["light", "dark", "none"])
@pytest.mark.parametrize("name", FORMS)
def test_static_forms(name: str, theme: str, host: Host, page: Any, axe: Axe) -> None:
    apply_theme(page, theme)
    page.evaluate("(html) => { document.body.innerHTML = html; }", FORMS[name]())
    assert axe() == []
    page.set_viewport_size({"width": 350, "height": 700})
    assert axe() == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 350
