"""The documentation is consistent: every link has a target, and the index lists every page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
REPOSITORY = "https://github.com/tpunb/tpunb/blob/main/"

LONG = 1500
"""The number of words above which a page needs a table of contents."""

LINK = re.compile(r"(?:\]\(|\b(?:href|src|srcset)=\")([^)\"\s]+)")


def prose(path: Path) -> str:
    """Return the text of a page in Markdown, without its code blocks."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub gives to a page's headings, and those of the page itself."""
    headings = re.findall(r"^#+ (.+)$", prose(path), flags=re.MULTILINE)
    named = re.findall(r'<a id="([\w-]+)">', prose(path))
    return {
        *named,
        *(re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings),
    }


def has_target(page: Path, link: str) -> bool:
    target, _, anchor = link.partition("#")
    path = ROOT / target.removeprefix(REPOSITORY) if REPOSITORY in target else page.parent / target
    path = path if target else page
    return path.exists() and (not anchor or anchor in anchors(path))


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS], ids=lambda path: path.name)
def test_links_have_targets(page: Path) -> None:
    links = [
        link
        for link in LINK.findall(prose(page))
        if link.startswith(REPOSITORY) or not re.match(r"https?:|attachment:", link)
    ]
    assert [link for link in links if not has_target(page, link)] == []


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda path: path.name)
def test_a_page_starts_with_a_sentence_and_has_an_example(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    title, sentence = text.split("\n\n")[:2]
    assert title.startswith("# ")
    assert re.match(r"[A-Z`]", sentence)
    assert re.search(r"^```", text, re.MULTILINE)


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda path: path.name)
def test_a_long_page_has_contents(page: Path) -> None:
    contents = [link for link in LINK.findall(prose(page)) if link.startswith("#")]
    assert len(prose(page).split()) < LONG or len(contents) >= 3


def test_the_index_has_every_page() -> None:
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", prose(DOCS / "README.md")))
    assert listed == {path.name for path in DOCS.glob("*.md")} - {"README.md"}


def test_the_readme_on_pypi_has_no_relative_links() -> None:
    pytest.importorskip("hatchling")
    from hatchling.metadata.core import ProjectMetadata
    from hatchling.plugin.manager import PluginManager

    core = ProjectMetadata(str(ROOT), PluginManager()).core
    assert core.readme_content_type == "text/markdown"
    links = LINK.findall(core.readme)
    assert len(links) == len(LINK.findall((ROOT / "README.md").read_text(encoding="utf-8")))
    assert [link for link in links if not link.startswith("https://")] == []
    raw = [link for link in links if link.startswith("https://raw.githubusercontent.com/")]
    assert len(raw) == 2
    assert all((ROOT / link.partition("/main/")[2]).is_file() for link in raw)
