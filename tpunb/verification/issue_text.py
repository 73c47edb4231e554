"""The text of an issue on GitHub with a report."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby

from tpunb.verification.report import VerifyReport
from tpunb.verification.suite import Outcome

ADDRESS = "https://github.com/tpunb/tpunb/issues/new"
"""The page on which the text is pasted."""

_MOST = 55_000
"""Characters. GitHub takes 65,536."""


def issue_title(report: VerifyReport) -> str:
    """Return the title of an issue with a report."""
    kind, tpu = report.facts.get("type", ""), report.facts["TPU"]
    return f"{report.headline} on {tpu}{f' ({kind})' if kind and kind not in tpu else ''}"


def issue_text(report: VerifyReport, file: str) -> str:
    """Return the text of an issue, as Markdown.

    Args:
        report: The report.
        file: The name of the JSON file that the reader should attach.
    """
    parts = [
        f"<!-- {ADDRESS}: paste this text, and attach {file}. -->",
        f"Title: {issue_title(report)}",
        _table(("", ""), report.facts.items()),
        *_details("Claims that differ", report.differences),
        *_reasons(report.not_run),
        *_names(report.outcomes),
    ]
    text = "\n\n".join(parts)
    cut = f"\n\n… The rest is in {file}."
    return f"{text}\n" if len(text) < _MOST else f"{text[: _MOST - len(cut)]}{cut}\n"


def _details(title: str, outcomes: Iterable[Outcome]) -> list[str]:
    rows = [
        (f"{each.group}: {each.name}", each.says, each.expected, f"{each.found} {each.message}")
        for each in outcomes
    ]
    if not rows:
        return ["No claim differs."]
    return [f"### {title}", _table(("claim", "says", "expected", "found"), rows)]


def _reasons(outcomes: Iterable[Outcome]) -> list[str]:
    """Return the claims that were not run, by reason."""
    by_reason = sorted(outcomes, key=lambda each: each.found)
    rows = [
        (reason, ", ".join(each.name for each in group))
        for reason, group in groupby(by_reason, key=lambda each: each.found)
    ]
    return ["### Claims that were not run", _table(("because", "claims"), rows)] if rows else []


def _names(outcomes: Iterable[Outcome]) -> list[str]:
    """Return the names of the claims that hold, by group."""
    holding = [each for each in outcomes if each.status == "holds"]
    rows = [
        (group, ", ".join(each.name for each in members))
        for group, members in groupby(holding, key=lambda each: each.group)
    ]
    return ["### Claims that hold", _table(("group", "claims"), rows)] if rows else []


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    """Return a text for a cell of a table: one line, with no marks of Markdown or HTML."""
    return re.sub(r"([|<>`*_\\])", r"\\\1", " ".join(text.split()))
