"""Annotations of model parallelism as text and as an HTML table."""

from __future__ import annotations

from collections.abc import Sequence

from tpunb._util.plain_text import plain, shortened
from tpunb._util.tables import escaped, table
from tpunb._util.units import counted
from tpunb.display.draw import formats
from tpunb.tpu.annotations import Annotation, Annotations

__all__ = ["annotations_html", "annotations_text"]

_MAX_ROWS = 64
_MAX_NAME = 80
_HEAD = ("", "name", "type", "logical device", "where")


def annotations_text(annotations: Annotations) -> str:
    """A line for each annotation, under one that counts them."""
    rows = [_row(annotation, annotations.logical_devices) for annotation in _shown(annotations)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [_line(row, widths) for row in rows]
    return plain("\n".join([_title(annotations), *lines, *_more(annotations)]))


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
    return f"  {'  '.join(cells)}".rstrip()


def annotations_html(annotations: Annotations) -> str:
    """A table with a row for each annotation; what comes from the user is escaped."""
    rows = [_row(annotation, annotations.logical_devices) for annotation in _shown(annotations)]
    parts = [f"<div>{escaped(_title(annotations))}</div>"]
    if rows:
        parts.append(table(rows, head=_HEAD))
    parts += [f"<div>{escaped(line)}</div>" for line in _more(annotations)]
    return f"<div>{''.join(parts)}</div>"


def _shown(annotations: Annotations) -> tuple[Annotation, ...]:
    return annotations[:_MAX_ROWS]


def _more(annotations: Annotations) -> list[str]:
    rest = len(annotations) - _MAX_ROWS
    return [formats.and_more(rest)] if rest > 0 else []


def _title(annotations: Annotations) -> str:
    variables = sum(annotation.variable for annotation in annotations)
    tensors = len(annotations) - variables
    place = f"{counted(annotations.logical_devices, 'logical device')} in a replica"
    if not annotations:
        return f"No annotations; {place}."
    return f"{counted(tensors, 'annotated tensor')} and {counted(variables, 'variable')} · {place}"


def _row(annotation: Annotation, devices: int) -> tuple[str, ...]:
    shape = "[?]" if annotation.shape is None else formats.shape_phrase(annotation.shape)
    return (
        "variable" if annotation.variable else "tensor",
        shortened(annotation.name, _MAX_NAME),
        f"{annotation.dtype} {shape}",
        _place(annotation, devices),
        shortened(annotation.where, _MAX_NAME),
    )


def _place(annotation: Annotation, devices: int) -> str:
    if annotation.kind == "assigned":
        return str(annotation.device)
    everywhere = "0" if devices == 1 else f"0–{devices - 1}"
    if annotation.kind == "replicated":
        return f"{everywhere}, the whole on each"
    times = "×".join(map(str, annotation.tiling or ()))
    return f"{everywhere}, split {times} into {formats.shape_phrase(annotation.part)}"
