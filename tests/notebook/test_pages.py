"""The cells on the documentation's pages run, and docs/magics.md lists the existing options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.shell import Notebook

from tpunb.notebook.magics import TpuMagics

ROOT = Path(__file__).parents[2]


def cells(page: str, blocks: int) -> Iterator[tuple[str, list[str]]]:
    """Yield the cells of a page's first blocks for TensorFlow, with the lines of output below."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks_of_cells = re.findall(r"^```text\n(%.*?)^```", text, re.DOTALL | re.MULTILINE)
    for_tensorflow = [block for block in blocks_of_cells if "--framework jax" not in block]
    for cell in "\n".join(for_tensorflow[:blocks]).split("\n\n"):
        lines = cell.splitlines()
        expected = [line[2:] for line in lines if line.startswith("│")]
        yield "\n".join(line for line in lines if not line.startswith("│")), expected


PAGES = [("README.md", 2), ("docs/README.md", 2), ("docs/virtual-tpu.md", 1)]


@pytest.mark.usefixtures("tf")
@pytest.mark.parametrize(("page", "blocks"), PAGES)
def test_the_cells_run(page: str, blocks: int, book: Notebook) -> None:
    book.good("%load_ext tpunb")
    for source, expected in cells(page, blocks):
        printed = [line.rstrip() for line in book.good(source).plain.splitlines()]
        for line in expected:
            assert line.strip() == "..." or line in printed
    assert book.names["x"].values[7].numpy() == 7.0


SECTIONS = {
    "`%tpu_connect`": ["tpu_connect"],
    "`%%tpu_run`": ["tpu_run"],
    "`%%tpu_compile`": ["tpu_compile"],
    "`%%tpu_profile`": ["tpu_profile"],
    "`%tpu_topology` and `%tpu_doctor`": ["tpu_topology", "tpu_doctor"],
}


@pytest.mark.parametrize("heading", SECTIONS)
def test_the_options_are_listed(heading: str) -> None:
    text = (ROOT / "docs" / "magics.md").read_text(encoding="utf-8")
    section = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    cells = "\n".join(line.split("|")[1] for line in section.splitlines() if line.startswith("| `"))
    options = {
        option
        for magic in SECTIONS[heading]
        for action in getattr(TpuMagics, magic).parser._actions
        for option in action.option_strings
    }
    assert set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", cells)) == options - {"-h", "--help"}
