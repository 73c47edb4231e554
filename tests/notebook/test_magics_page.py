"""docs/magics.md lists exactly the options that the magics have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tpunb.notebook.magics import TpuMagics

PAGE = Path(__file__).parents[2] / "docs" / "magics.md"
SECTIONS = {
    "`%tpu_connect`": ["tpu_connect"],
    "`%%tpu_run`": ["tpu_run"],
    "`%%tpu_compile`": ["tpu_compile"],
    "`%%tpu_profile`": ["tpu_profile"],
    "`%tpu_topology` and `%tpu_doctor`": ["tpu_topology", "tpu_doctor"],
}


@pytest.mark.parametrize("heading", SECTIONS)
def test_the_options_are_listed(heading: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    section = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    cells = "\n".join(line.split("|")[1] for line in section.splitlines() if line.startswith("| `"))
    options = {
        option
        for magic in SECTIONS[heading]
        for action in getattr(TpuMagics, magic).parser._actions
        for option in action.option_strings
    }
    assert set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", cells)) == options - {"-h", "--help"}
