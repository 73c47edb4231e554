"""Annotations of model parallelism as text and as an HTML table."""

from __future__ import annotations

import html
from collections.abc import Sequence

from tpunb.describe.annotations import Annotation, Annotations
from tpunb.draw import table, wording

__all__ = ["annotations_html", "annotations_text"]

_MAX_ROWS = 64
_HEAD = ("", "name", "type", "logical device", "where")


def annotations_text(annotations: Annotations) -> str:
    """A line for each annotation, under one that counts them."""
    rows = [_row(annotation, annotations.logical_devices) for annotation in _shown(annotations)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [_line(row, widths) for row in rows]
    return "\n".join([_title(annotations), *lines, *_more(annotations)])


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
    return f"  {'  '.join(cells)}".rstrip()


def annotations_html(annotations: Annotations) -> str:
    """A table with a row for each annotation; what comes from the user is escaped."""
    rows = [_row(annotation, annotations.logical_devices) for annotation in _shown(annotations)]
    parts = [f"<div>{html.escape(_title(annotations))}</div>"]
    if rows:
        parts.append(table.rows_html(_HEAD, rows))
    parts += [f"<div>{html.escape(line)}</div>" for line in _more(annotations)]
    return f"<div>{''.join(parts)}</div>"


def _shown(annotations: Annotations) -> tuple[Annotation, ...]:
    return annotations[:_MAX_ROWS]


def _more(annotations: Annotations) -> list[str]:
    rest = len(annotations) - _MAX_ROWS
    return [f"and {rest} more"] if rest > 0 else []


def _title(annotations: Annotations) -> str:
    variables = sum(annotation.variable for annotation in annotations)
    tensors = len(annotations) - variables
    place = f"{wording.counted(annotations.logical_devices, 'logical device')} in a replica"
    if not annotations:
        return f"No annotations; {place}."
    return (
        f"{wording.counted(tensors, 'annotated tensor')} and "
        f"{wording.counted(variables, 'variable')} · {place}"
    )


def _row(annotation: Annotation, devices: int) -> tuple[str, ...]:
    shape = "[?]" if annotation.shape is None else wording.shape_phrase(annotation.shape)
    return (
        "variable" if annotation.variable else "tensor",
        annotation.name,
        f"{annotation.dtype} {shape}",
        _place(annotation, devices),
        annotation.where,
    )


def _place(annotation: Annotation, devices: int) -> str:
    if annotation.kind == "assigned":
        return str(annotation.device)
    everywhere = "0" if devices == 1 else f"0–{devices - 1}"
    if annotation.kind == "replicated":
        return f"{everywhere}, the whole on each"
    times = "×".join(map(str, annotation.tiling or ()))
    return f"{everywhere}, split {times} into {wording.shape_phrase(annotation.part)}"
