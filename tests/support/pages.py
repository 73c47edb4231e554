"""Sections of the documentation's pages, and their Python code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def section(heading: str, page: str = "docs/README.md") -> str:
    """Return the section of a page below a heading of the second level."""
    text = (ROOT / page).read_text(encoding="utf-8")
    _, found, rest = text.partition(f"\n## {heading}\n")
    assert found, f"{page} has no section {heading}"
    return rest.partition("\n## ")[0]


def run_code(heading: str) -> None:
    """Run the Python code of a section of the start page, as one program."""
    blocks = re.findall(r"^```python\n(.*?)^```", section(heading), re.DOTALL | re.MULTILINE)
    assert blocks
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile("\n".join(blocks), heading, "exec"), names)
