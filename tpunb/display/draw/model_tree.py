"""A model as text, and as HTML whose layers fold."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence

from tpunb._util.plain_text import aligned, plain, shortened
from tpunb._util.tables import LINED, ORANGE, Markup, badge, block, folded, scrolled, table
from tpunb._util.units import and_more, byte_count, counted, grouped, shape_phrase
from tpunb.display.describe.model_description import LayerNode, ModelVariable

_MAX_LINES = 200
_WIDTH = 110
_OPEN_LAYERS = 6
"""A model of more layers shows its layers folded."""

_WHOLE = dataclasses.replace(
    LINED,
    heading=f"{LINED.heading};white-space:normal",
    cell=f"{LINED.cell};white-space:nowrap",
)
"""Shapes and ranges of cores stay in one line; names wrap, and then the table scrolls."""

_NUMBERED = re.compile(r"(?P<name>.*\D)(?P<number>\d+)")
_HEAD = ("variable", "type", "shape", "parameters", "on", "copies")


def model_text(model: LayerNode) -> str:
    """Return a line for each layer and each variable."""
    lines = list(_lines(model, ""))
    if (more := len(lines) - _MAX_LINES) > 0:
        lines[_MAX_LINES:] = [and_more(more)]
    return plain("\n".join(shortened(line, _WIDTH) for line in lines))


def _lines(layer: LayerNode, indent: str) -> Iterator[str]:
    yield f"{indent}{_title(layer)}"
    yield from aligned(map(_cells, layer.variables), f"{indent}    ")
    for inner in layer.layers:
        yield from _lines(inner, f"{indent}  ")
    if layer.omitted:
        yield f"{indent}  {and_more(layer.omitted)}"


def model_html(model: LayerNode) -> str:
    """Return the layers as sections that fold, each with a table of its variables."""
    is_small = _count(model) <= _OPEN_LAYERS
    return f"<div>{_section(model, is_open=True, inner_open=is_small)}</div>"


def _section(layer: LayerNode, *, is_open: bool, inner_open: bool) -> Markup:
    title = _title(layer)
    if not (layer.variables or layer.layers or layer.omitted):
        return block(title)
    parts = []
    if layer.variables:
        rows = [_cells(variable) for variable in layer.variables]
        columns = [column for column in range(len(_HEAD)) if any(row[column] for row in rows)]
        body = [
            [
                badge(row[column], ORANGE) if "≠" in row[column] else row[column]
                for column in columns
            ]
            for row in rows
        ]
        parts.append(
            scrolled(
                table(body, head=[_HEAD[column] for column in columns], named=True, style=_WHOLE)
            )
        )
    parts += [
        _section(inner, is_open=inner_open or _differs(inner), inner_open=inner_open)
        for inner in layer.layers
    ]
    parts.append(block(and_more(layer.omitted) if layer.omitted else ""))
    content = f'<div style="margin-left:16px">{"".join(parts)}</div>'
    return folded(title, content, is_open=is_open)


def _title(layer: LayerNode) -> str:
    """Return a layer's class, name, result and parameters, and whether its copies are equal."""
    parts = [f"{layer.type_name} {layer.name}", layer.output]
    if layer.shared:
        return " · ".join([parts[0], "shared with the layer of that name above"])
    variables = layer.all_variables()
    if variables:
        count = sum(variable.parameters for variable in variables)
        size = 0
        for variable in variables:  # one copy of each, with the bits in its dtype's name
            bits = re.search(r"\d+", variable.dtype)
            size += math.ceil(variable.parameters * (int(bits[0]) if bits else 8) / 8)
        parts.append(f"{counted(count, 'parameter')}, {byte_count(size)}")
        fixed = sum(variable.parameters for variable in variables if not variable.trainable)
        if fixed:
            parts.append(f"{grouped(fixed)} not trainable")
        copied = [variable for variable in variables if variable.differs is not None]
        if _differs(layer):
            parts.append("copies ≠")
        elif copied and len(copied) == len(variables):
            parts.append("all copies equal")
    return " · ".join(filter(None, parts))


def _cells(variable: ModelVariable) -> tuple[str, ...]:
    copies = variable.cut
    if not copies and len(variable.devices) > 1:
        copies = f"{len(variable.devices)} copies"
        if variable.differs == ():
            copies += ", equal"
        elif variable.differs:
            named = ", ".join(map(str, variable.differs[:4]))
            rest = len(variable.differs) - 4
            copies += f": replica {named}{f' {and_more(rest)}' if rest > 0 else ''} ≠ replica 0"
    return (
        variable.name + ("" if variable.trainable else " (not trainable)"),
        variable.dtype,
        shape_phrase(variable.shape),
        grouped(variable.parameters),
        devices_phrase(variable.devices),
        copies,
    )


def devices_phrase(devices: Sequence[str]) -> str:
    """Return cores or devices in a few words: `"cores 0 to 7"` for consecutive numbers."""
    unique = list(dict.fromkeys(devices))
    matches = [_NUMBERED.fullmatch(device) for device in unique]
    named = [(match["name"], int(match["number"])) for match in matches if match]
    if len(named) == len(unique) > 2:
        name, begin = named[0]
        if named == [(name, begin + place) for place in range(len(named))]:
            several = "cores " if name == "core " else name
            return f"{several}{begin} to {named[-1][1]}"
    if len(unique) > 4:
        return f"{unique[0]}, {unique[1]}, … {unique[-1]}"
    return ", ".join(unique)


def _differs(layer: LayerNode) -> bool:
    return any(variable.differs for variable in layer.all_variables())


def _count(layer: LayerNode) -> int:
    return len(layer.layers) + sum(map(_count, layer.layers))
