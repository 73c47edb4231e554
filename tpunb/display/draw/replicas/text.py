"""Replica values as plain text, and the phrases that their HTML shares."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from tpunb._util.plain_text import plain, shortened_between
from tpunb._util.units import and_more, counted, grouped, number_text, sampled_phrase, shape_phrase
from tpunb.display.describe.replicas import MAX_PREVIEWS, ReplicaValuesDescription, Section
from tpunb.display.describe.statistics import Statistics
from tpunb.display.describe.values import ReplicaValue
from tpunb.display.draw.placement.text import placement_text


def replicas_title(description: ReplicaValuesDescription) -> str:
    """Return the whole's class and its number of replicas."""
    if not description.num_replicas:
        return description.type_name
    return f"{description.type_name} of {counted(description.num_replicas, 'replica')}"


def section_title(section: Section, *, alone: bool) -> str:
    """Return the place of a leaf, and the common facts of all of its values."""
    parts = [] if alone else [section.path, section.type_name if section.distributed else ""]
    parts.append(common_facts(section))
    if section.all_equal:
        parts.append(f"all {grouped(len(section.values))} replicas equal")
    return " · ".join(filter(None, parts))


def common_facts(section: Section) -> str:
    """Return the kind, dtype and shape of a leaf; empty if the replicas' values differ in them."""
    kinds = {(value.kind, value.dtype, value.shape) for value in section.values}
    if len(kinds) != 1:
        return ""
    kind, dtype, shape = kinds.pop()
    # A repr already shows the type's name.
    named = "" if kind in ("numeric", "string", "none", "object") else kind
    typed = "" if kind == "none" else f"{dtype} {shape_phrase(shape)}".strip()
    return " · ".join(filter(None, [named, typed]))


def statistics_phrase(value: ReplicaValue) -> str:
    """Return minimum, mean, maximum and standard deviation in a line; empty without statistics.

    Truth values are counted: `"2 of 3 True"`.
    """
    statistics = value.statistics
    if statistics is None or statistics.mean is None:
        return ""
    sides = value.shape or ()
    if value.dtype == "bool" and None not in sides:
        count = math.prod(side for side in sides if side is not None)
        return f"{grouped(round(statistics.mean * count))} of {grouped(count)} True"
    return (
        f"min {number_text(statistics.minimum)}  mean {number_text(statistics.mean)}  "
        f"max {number_text(statistics.maximum)}  std {number_text(statistics.deviation)}"
    )


def nonfinite_phrase(statistics: Statistics | None) -> str:
    """Count the elements that are not finite; empty if there are none."""
    if statistics is None:
        return ""
    parts = [
        f"{grouped(count)} {name}"
        for count, name in ((statistics.nans, "NaN"), (statistics.infs, "Inf"))
        if count
    ]
    return ", ".join(parts)


def sampled_note(kind: str, steps: Sequence[int]) -> str:
    """Return a phrase for the drawn part of a preview, by its steps; empty if all is drawn."""
    if kind == "values":  # the elements themselves, of any number of axes
        return ""
    sides = steps[-3:-1] if kind == "images" else steps
    return sampled_phrase(*sides, of="points" if len(sides) == 1 else "")


def number_phrases(value: ReplicaValue) -> list[str]:
    """Return the phrases about a value's numbers, without empty ones."""
    return list(filter(None, [statistics_phrase(value), nonfinite_phrase(value.statistics)]))


def nested_values(value: ReplicaValue) -> str:
    """Return the elements of a small value in brackets, on one line."""
    if value.rows:
        return bracketed(rows_of(value))
    if value.preview is None or value.preview.kind != "values":
        more = f", … {grouped(value.omitted)} more" if value.omitted > 0 else ""
        text = ", ".join(value.texts) + more
        is_list = value.shape and value.texts and value.kind in ("string", "numeric")
        return f"[{text}]" if is_list else text
    prefix = f"{value.texts[0]}: " if value.texts else ""
    return prefix + bracketed(value.preview.array().tolist())


def rows_of(value: ReplicaValue) -> list[Any]:
    """Return the elements of a ragged value as nested lists of numbers or texts."""
    items: list[Any] = list(value.texts[1:])
    if value.preview is not None:
        items = value.preview.array().tolist()
    for lengths in reversed(value.rows):
        ends = list(itertools.accumulate(lengths))
        items = [items[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    return items


def bracketed(values: Any) -> str:
    """Return nested lists of numbers or texts in brackets, on one line."""
    if isinstance(values, list):
        return f"[{', '.join(bracketed(item) for item in values)}]"
    return values if isinstance(values, str) else number_text(values)


_MAX_SECTIONS = 16
_WIDTH = 100


def replicas_text(description: ReplicaValuesDescription) -> str:
    """Return where arrays are, and a line for each replica: its elements and statistics."""
    parts = [_values_text(description)]
    if description.placement is not None:
        parts.insert(0, placement_text(description.placement))
    return "\n".join(parts)


def _values_text(description: ReplicaValuesDescription) -> str:
    if description.unread:
        return plain(description.unread)
    alone = len(description.sections) == 1
    if alone and not description.num_replicas:
        return plain("\n".join(_section_lines(description.sections[0], alone=False)))
    lines = [replicas_title(description)]
    for section in description.sections[:_MAX_SECTIONS]:
        lines += [f"  {line}" for line in _section_lines(section, alone=alone)]
    more = description.omitted + max(0, len(description.sections) - _MAX_SECTIONS)
    if more:
        lines.append(f"  {and_more(more)}")
    return plain("\n".join(lines))


def _section_lines(section: Section, *, alone: bool) -> list[str]:
    lines = [section_title(section, alone=alone)]
    same = len({(value.dtype, value.shape) for value in section.values}) == 1
    digits = len(str(max(map(section.replica, range(len(section.values))))))
    labelled = section.distributed and not section.all_equal
    for replica, value in enumerate(section.drawn_values if labelled else section.values[:1]):
        # The statistics of a single number are the number itself.
        single = value.shape == () or value.shape is None
        parts = (
            f"replica {section.replica(replica):>{digits}}" if labelled else "",
            "" if same or not labelled else f"{value.dtype} {shape_phrase(value.shape)}".strip(),
            shortened_between(nested_values(value), 60, ", "),
            *([] if single else number_phrases(value)),
        )
        lines.append("  " + "  ".join(filter(None, parts)))
    if labelled and len(section.values) > MAX_PREVIEWS:
        lines.append(f"  {and_more(len(section.values) - MAX_PREVIEWS)}")
    return [
        shortened_between(line.rstrip(), _WIDTH - 2, "  ", ", ") for line in lines if line.strip()
    ]
