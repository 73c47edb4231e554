"""The live page of replicas' values: the tree of the parts, the controls, and the chosen view."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from tpunb._util.tables import block, escaped
from tpunb._util.units import and_more, grouped
from tpunb.display.describe.replica_scene import MAX_ROWS, Choices, Scene, Settings
from tpunb.display.describe.replicas import ReplicaValuesDescription, Section
from tpunb.display.draw.placement.html import placement_html
from tpunb.display.draw.replicas.html import rows_in_order, values_table
from tpunb.display.draw.replicas.panels import curves_html, means_svg, panels_html
from tpunb.display.draw.replicas.text import (
    common_facts,
    replicas_title,
    sampled_note,
    section_title,
)
from tpunb.display.draw.view_markup import button, choice, page, part

_STEP = re.compile(
    r"""\[(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\[\]'"]*)\]|\.[^.\[\]]+""", re.DOTALL
)
_MODES = {
    "values": "values",
    "difference": "difference",
    "mean": "mean",
    "sum": "sum",
    "gather": "gathered",
}
_VIEWS = {
    "table": "table",
    "heat": "heat map",
    "images": "images",
    "curves": "curves",
    "histogram": "histogram",
}


def empty_page(description: ReplicaValuesDescription) -> str:
    """Return the page of a description without values: where arrays are, and why."""
    text = block(description.unread or "empty")
    return page(replicas_title(description), (), (), _placement(description) + text, "")


def replicas_page(
    description: ReplicaValuesDescription,
    number: int,
    choices: Choices,
    scene: Scene | str,
    order: str,
) -> str:
    """Return the page.

    Args:
        description: The described values.
        number: The number of the displayed leaf.
        choices: The settings, and what else can be chosen.
        scene: The values to draw; or why there are none.
        order: The column that a table is sorted by, with a minus for descending.
    """
    section, settings = description.sections[number], choices.settings
    if isinstance(scene, str):
        drawn = f'<p class="tpunb-error" role="alert">{escaped(scene)}</p>'
    else:
        drawn = _drawn(scene, settings, order)
    strip = means_svg(section) if _has_means(section, settings) else ""
    facts = part("facts", escaped(" · ".join(filter(None, _facts(section, scene, settings)))))
    controls = part("toolbar", "".join(_controls(section, choices)))
    tree = _tree(description, number) if len(description.sections) > 1 else ""
    return page(
        replicas_title(description),
        (),
        (),
        f'{_placement(description)}<div class="tpunb-parts">{tree}'
        f"<div>{facts}{controls}{strip}{drawn}</div></div>",
        "",
        replicas=description.num_replicas,
        sections=len(description.sections),
        section=number,
        view=settings.view,
        mode=settings.mode,
        equal=str(section.all_equal).lower(),
    )


def _placement(description: ReplicaValuesDescription) -> str:
    return "" if description.placement is None else placement_html(description.placement)


def _drawn(scene: Scene, settings: Settings, order: str) -> str:
    if settings.view == "table":
        first = settings.page * MAX_ROWS if settings.mode == "values" and not settings.slices else 0
        return values_table(rows_in_order(scene, order, slice(first, first + MAX_ROWS)), order)
    if settings.view == "curves":
        return curves_html(scene, live=True)
    return panels_html(scene, settings.view, live=True)


def _facts(section: Section, scene: Scene | str, settings: Settings) -> Iterable[str]:
    """Yield what is displayed, and how much of it."""
    count, differing = len(section.values), section.num_differing
    yield section.name
    yield section_title(section, alone=False)
    if differing:
        verb = "differs" if differing == 1 else "differ"
        yield f"{grouped(differing)} of {grouped(count)} {verb} from replica {section.replica(0)}"
    if isinstance(scene, str):
        return
    if settings.mode in ("mean", "sum"):
        yield f"{settings.mode} of {grouped(count)} replicas"
    parts = min(count, len(section.drawn_values) if not section.all_equal else count)
    if settings.mode == "gather":
        yield f"{'first ' if parts < count else ''}{grouped(parts)} of {grouped(count)} replicas"
    preview = scene.values[0].preview
    if preview and settings.view in ("heat", "images", "curves"):
        yield sampled_note(preview.kind, preview.steps)
        shape = scene.values[0].shape or ()
        if preview.kind == "images" and len(shape) == 4 and preview.shape[0] < (shape[0] or 0):
            yield f"first {preview.shape[0]} of {shape[0]} images"


def _has_means(section: Section, settings: Settings) -> bool:
    """Return whether the means of all replicas show more than their values do."""
    values = section.values
    told = settings.view == "table" and len(values) <= 16
    whole = settings.mode in ("values", "difference", "gather") and not settings.slices
    known = [value for value in values if value.statistics and value.statistics.mean is not None]
    return len(values) > 2 and bool(known) and not section.all_equal and whole and not told


def _controls(section: Section, choices: Choices) -> Iterable[str]:
    settings, count = choices.settings, len(section.values)
    yield choice("Show", "mode", {mode: _MODES[mode] for mode in choices.modes}, settings.mode)
    if settings.mode == "difference":
        names = {place: f"replica {section.replica(place)}" for place in range(count)}
        yield choice("to", "reference", names, settings.reference)
    yield choice("as", "view", {view: _VIEWS[view] for view in choices.views}, settings.view)
    for axis, side in enumerate(choices.sides):
        place = settings.slices[axis] if settings.slices else ""
        yield (
            f'<label class="tpunb-field"><span>axis {axis}</span><input type="number" min="0" '
            f'max="{side - 1}" placeholder="all {side}" value="{place}" class="tpunb-select" '
            f'data-trait="slices" data-axis="{axis}"></label>'
        )
    if choices.pages > 1:
        first = settings.page * choices.page_size
        last = min(count, first + choices.page_size)
        yield button("‹", "earlier replicas", "page", max(0, settings.page - 1))
        text = f"{first + 1}–{last} of {grouped(count)}"
        yield f'<span class="tpunb-field">{text}</span>'
        yield button("›", "later replicas", "page", min(choices.pages - 1, settings.page + 1))


def _tree(description: ReplicaValuesDescription, current: int) -> str:
    """Return the leaves along their paths, as sections that fold."""
    top: dict[str, Any] = {}
    for number, section in enumerate(description.sections):
        steps = _STEP.findall(section.path)
        node = top
        # A path that cannot be split is a single step.
        for step in steps if "".join(steps) == section.path else [section.path]:
            node = node.setdefault(step, {})
        node[""] = _leaf(section, number, current, (steps or [""])[-1])
    more = block(and_more(description.omitted)) if description.omitted else ""
    return f'<nav class="tpunb-tree" aria-label="parts">{_branch(top)}{more}</nav>'


def _branch(node: dict[str, Any]) -> str:
    items = []
    for step, child in node.items():
        inner = {name: each for name, each in child.items() if name}
        name = escaped(_step_name(step))
        fold = f"<details open><summary>{name}</summary>{_branch(inner)}</details>" if inner else ""
        items.append(f"<li>{child.get('', '')}{fold}</li>")
    return f"<ul>{''.join(items)}</ul>"


def _step_name(step: str) -> str:
    """Return `['loss']` and `.loss` as `loss`."""
    return step[2:-2] if step[:2] in ("['", '["') else step.removeprefix(".")


def _leaf(section: Section, number: int, current: int, step: str) -> str:
    mark = "≠" if section.num_differing else "=" if section.all_equal else ""
    chosen = ' aria-current="true"' if number == current else ""
    name = _step_name(step) or section.name or section.type_name
    facts = common_facts(section) or ("None" if section.values[0].kind == "none" else "")
    return (
        f'<button type="button" class="tpunb-leaf" data-trait="section" value="{number}"{chosen} '
        f'title="{escaped(section.path or section.type_name)}"><b>{escaped(name)}</b>'
        f"<small>{escaped(facts)}</small><i>{mark}</i></button>"
    )
