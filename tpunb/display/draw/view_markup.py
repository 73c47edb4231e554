"""Markup of a view that Python draws: title, facts, controls, the drawing and its legend.

`views.js` makes it live: a control sets the trait that its `data-trait` names, and then the kernel
draws the view again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tpunb._util.tables import Markup, escaped, lines
from tpunb.display.draw.topology.colours import LegendItem

Setting = str | int | float


def page(
    title: str,
    facts: Iterable[str],
    controls: Iterable[str],
    content: str,
    legend: str,
    **numbers: Setting,
) -> str:
    """Return a view, as a plain text: marimo 0.25 sends a subclass of `str` as an object.

    Args:
        title: The heading.
        facts: Lines below the heading, if any.
        controls: The toolbar's markup, if any.
        content: The drawing.
        legend: What the colours mean, or an empty text.
        **numbers: Values for tests and style sheets, as `data-` attributes.
    """
    data = "".join(f' data-{name}="{escaped(str(value))}"' for name, value in numbers.items())
    return (
        f'<div{data}><h3 class="tpunb-title">{escaped(title)}</h3>'
        f"{part('facts', lines(facts))}{part('toolbar', ''.join(controls))}{content}"
        f'<div class="tpunb-about" aria-hidden="true"></div>{part("legend", legend)}</div>'
    )


def part(name: str, content: str) -> Markup:
    """Return a part of a view; nothing without content."""
    return Markup(f'<div class="tpunb-{name}">{content}</div>' if content else "")


def choice(label: str, trait: str, options: Mapping[Any, str], value: Setting) -> Markup:
    """Return a labelled choice of a trait's value; nothing if there is no choice."""
    if len(options) < 2:
        return Markup("")
    items = "".join(
        f'<option value="{key}"{" selected" * (key == value)}>{escaped(text)}</option>'
        for key, text in options.items()
    )
    return Markup(
        f'<label class="tpunb-field"><span>{escaped(label)}</span>'
        f'<select class="tpunb-select" aria-label="{escaped(label)}" data-trait="{trait}">{items}'
        "</select></label>"
    )


def button(label: str, description: str, trait: str, value: Setting) -> Markup:
    """Return a button that sets a trait."""
    return Markup(
        f'<button type="button" class="tpunb-button" title="{escaped(description)}" '
        f'data-trait="{trait}" value="{escaped(str(value))}">{escaped(label)}</button>'
    )


def legend_of(items: Iterable[LegendItem]) -> Markup:
    """Return the meaning of colours: a swatch, or a scale, before each text."""
    return Markup("".join(map(_swatch, items)))


def _swatch(item: LegendItem) -> str:
    several = len(item.colours) > 1
    fill = (
        f"linear-gradient(90deg, {', '.join(item.colours)})" if several else "".join(item.colours)
    )
    kind = ' class="tpunb-scale"' if several else ""
    colour = f'<i{kind} style="background:{fill}"></i>' if fill else ""
    return f'<span class="tpunb-swatch">{colour}{escaped(item.text)}</span>'
