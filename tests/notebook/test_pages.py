"""The cells that README.md and docs/virtual-tpu.md show run, and give the output that is shown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.shell import Notebook

pytestmark = pytest.mark.usefixtures("tf")

ROOT = Path(__file__).parents[2]


def cells(page: str, blocks: int) -> Iterator[tuple[str, list[str]]]:
    """The cells of a page's first blocks, and the lines of output below each."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"^```text\n(%.*?)^```", text, re.DOTALL | re.MULTILINE)
    for cell in "\n".join(found[:blocks]).split("\n\n"):
        lines = cell.splitlines()
        shown = [line[2:] for line in lines if line.startswith("│")]
        yield "\n".join(line for line in lines if not line.startswith("│")), shown


@pytest.mark.parametrize(("page", "blocks"), [("README.md", 2), ("docs/virtual-tpu.md", 1)])
def test_the_cells_run(page: str, blocks: int, tmp_path: Path) -> None:
    book = Notebook(tmp_path)
    try:
        book.good("%load_ext tpunb")
        for source, shown in cells(page, blocks):
            printed = [line.rstrip() for line in book.good(source).plain.splitlines()]
            for line in shown:
                assert line.strip() == "..." or line in printed
        assert book.names["x"].values[7].numpy() == 7.0
    finally:
        book.close()
