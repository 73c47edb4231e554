"""The page of claims that only hardware can prove: `docs/maintainers/claims.md`."""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tpunb import framework as port
from tpunb.machine.framework import JAX, TENSORFLOW

PAGE = Path(__file__).parents[2] / "docs" / "maintainers" / "claims.md"
REPORTS = Path(__file__).parents[1] / "hardware_reports"
"""The reports that volunteers sent, as `tpunb verify --json` wrote them."""

TITLES = {JAX: "## Claims about JAX", TENSORFLOW: "## Claims about TensorFlow"}
_WORDS = {"holds": "held", "differs": "differed"}
_NOT_TRIED = "not tried"


def section(framework: str, reports: Sequence[Mapping[str, Any]]) -> str:
    """Return the part of the page about a framework's claims.

    Args:
        framework: The framework, which is installed here.
        reports: Reports from hardware.
    """
    lines = [TITLES[framework], ""]
    for suite in port.of(framework).suites():
        lines += [f"### {suite.group[0].upper()}{suite.group[1:]}", ""]
        lines += ["| claim | in words | on hardware |", "|---|---|---|"]
        for name, says in suite.claims().items():
            state = state_of(suite.group, name, reports)
            lines.append(f"| {name} | {_cell(says)} | {state} |")
        lines.append("")
    return "\n".join(lines)


def state_of(group: str, name: str, reports: Sequence[Mapping[str, Any]]) -> str:
    """Return where a claim held and where it differed: `"held on v5e-1 (2026-11-28)"`."""
    found: dict[str, list[str]] = collections.defaultdict(list)
    for report in reports:
        facts = report["facts"]
        where = f"{facts['type']} ({facts['date']})"
        for claim in report["claims"]:
            if (claim["group"], claim["name"]) == (group, name) and claim["status"] in _WORDS:
                found[_WORDS[claim["status"]]].append(where)
    states = [f"{word} on {', '.join(places)}" for word, places in sorted(found.items())]
    return "; ".join(states) or _NOT_TRIED


def reports() -> list[dict[str, Any]]:
    """Return the reports from hardware, the oldest first."""
    read = [json.loads(path.read_text(encoding="utf-8")) for path in REPORTS.glob("*.json")]
    return sorted(read, key=lambda report: str(report["facts"]["date"]))


def with_section(page: str, framework: str, text: str) -> str:
    """Return the page with another text about a framework's claims."""
    pattern = re.compile(rf"^{TITLES[framework]}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    return pattern.sub(lambda _: f"{text}\n", page).rstrip("\n") + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
