"""The documentation is consistent: every link has a target, and the index lists every page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import interface
import pytest
from generated_pages import with_generated

from tpunb import __version__
from tpunb.errors.catalogue import ENTRIES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FOR_USERS = sorted(DOCS.glob("*.md"))
RECORDS = sorted((DOCS / "maintainers").glob("*.md"))
PAGES = [*sorted(ROOT.glob("*.md")), *FOR_USERS, *RECORDS, *sorted((DOCS / "api").glob("*.md"))]
GITHUB = sorted((ROOT / ".github").rglob("*.yml")) + sorted((ROOT / ".github").rglob("*.md"))
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))
REPOSITORY = "https://github.com/tpunb/tpunb/blob/main/"
OTHER_DOORS = {
    "https://colab.research.google.com/github/tpunb/tpunb/blob/main/": "",
    "https://mybinder.org/v2/gh/tpunb/tpunb/main?urlpath=lab/tree/": "",
    "https://raw.githubusercontent.com/tpunb/tpunb/main/": "",
    "https://tpunb.github.io/tpunb/": ".html",
}
"""Addresses of files in this repository, each with the suffix of a page in Markdown there."""

BADGES = {
    "https://colab.research.google.com/github/tpunb/tpunb/blob/main/notebooks/09_jax_on_a_virtual_tpu.ipynb",
    "https://mybinder.org/v2/gh/tpunb/tpunb/main?urlpath=lab/tree/notebooks/00_quickstart.ipynb",
}

LONG = 1500
"""The number of words above which a page needs a table of contents."""

LINK = re.compile(r"(?:\]\(|\b(?:href|src|srcset)=\")([^)\"\s]+)")


def prose(path: Path) -> str:
    """Return the text of a page in Markdown, as the site has it, without its code blocks."""
    text = with_generated(path.read_text(encoding="utf-8"))
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


def is_ours(link: str) -> bool:
    """Return whether a link leads into this repository, or to a copy of its files."""
    inside = link.startswith((REPOSITORY, *OTHER_DOORS))
    return inside or not re.match(r"[a-z]+:", link)


def has_target(page: Path, link: str) -> bool:
    target, _, anchor = link.partition("#")
    for door, suffix in OTHER_DOORS.items():
        if target.startswith(door):
            inside = target.removeprefix(door)
            sources = [
                inside,
                inside.removesuffix(suffix) + ".md",
                inside.removesuffix(suffix) + ".ipynb",
            ]
            return any((ROOT / source).exists() for source in sources)
    path = ROOT / target.removeprefix(REPOSITORY) if REPOSITORY in target else page.parent / target
    path = path if target else page
    return path.exists() and (not anchor or anchor in anchors(path))


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS], ids=lambda path: str(path.relative_to(ROOT)))
def test_links_have_targets(page: Path) -> None:
    links = filter(is_ours, LINK.findall(prose(page)))
    assert [link for link in links if not has_target(page, link)] == []


@pytest.mark.parametrize("page", GITHUB, ids=lambda path: path.name)
def test_links_on_github_have_targets(page: Path) -> None:
    links = re.findall(r"https://[^\s)\"'>]+", page.read_text(encoding="utf-8"))
    ours = [link for link in links if link.startswith((REPOSITORY, *OTHER_DOORS))]
    assert [link for link in ours if not has_target(page, link)] == []


@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda path: path.name)
def test_pictures_of_notebooks_are_inside(page: Path) -> None:
    """A cell's picture is an attachment, and an output loads nothing from elsewhere."""
    for cell in json.loads(page.read_text(encoding="utf-8"))["cells"]:
        attached = set(cell.get("attachments", {}))
        assert set(re.findall(r"\(attachment:([^)\s]+)\)", "".join(cell["source"]))) <= attached
        shown = [output.get("data", {}).get("text/html", "") for output in cell.get("outputs", [])]
        loaded = re.findall(r"\bsrc=[\"']([^\"']+)", "".join(map("".join, shown)))
        assert [link for link in loaded if not link.startswith("data:")] == []


@pytest.mark.parametrize("page", [*FOR_USERS, *RECORDS], ids=lambda path: path.name)
def test_a_page_starts_with_a_sentence_and_has_an_example(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    title, sentence = text.split("\n\n")[:2]
    assert title.startswith("# ")
    assert re.match(r"[A-Z`]", sentence)
    assert re.search(r"^```", text, re.MULTILINE)


@pytest.mark.parametrize("page", [*FOR_USERS, *RECORDS], ids=lambda path: path.name)
def test_a_long_page_has_contents(page: Path) -> None:
    contents = [link for link in LINK.findall(prose(page)) if link.startswith("#")]
    assert len(prose(page).split()) < LONG or len(contents) >= 3


def test_the_index_has_every_page() -> None:
    _, _, pages = prose(DOCS / "README.md").partition("\n## All pages\n")
    assert set(re.findall(r"\]\(([\w-]+\.md)\)", pages)) == {path.name for path in FOR_USERS} - {
        "README.md"
    }
    listed = re.findall(r"\]\(docs/maintainers/([\w-]+\.md)\)", prose(ROOT / "CONTRIBUTING.md"))
    assert set(listed) == {path.name for path in RECORDS}


def test_every_error_and_every_command_has_an_anchor() -> None:
    """Messages print addresses such as errors.html#error-24."""
    assert {entry.anchor for entry in ENTRIES.values()} <= anchors(DOCS / "errors.md")
    commands = {name.replace(" ", "-") for name in interface.commands()}
    assert {*commands, "pytest"} <= anchors(DOCS / "magics.md")


@pytest.fixture(scope="module")
def on_index() -> str:
    """Return README.md as the package index shows it."""
    pytest.importorskip("hatchling")
    from hatchling.metadata.core import ProjectMetadata
    from hatchling.plugin.manager import PluginManager

    core = ProjectMetadata(str(ROOT), PluginManager()).core
    assert core.readme_content_type == "text/markdown"
    return str(core.readme)


def test_links_on_the_package_index_lead_to_the_tag(on_index: str) -> None:
    tag = f"v{__version__}"
    links = LINK.findall(on_index)
    assert [link for link in links if not link.startswith("https://")] == []
    of_us = [link for link in links if "tpunb/tpunb" in link and link not in BADGES]
    assert [link for link in of_us if f"/{tag}" not in link] == []
    pages = f"https://github.com/tpunb/tpunb/blob/{tag}/"
    pictures = f"https://raw.githubusercontent.com/tpunb/tpunb/{tag}/"
    inside = [
        link.removeprefix(base) for base in (pages, pictures) for link in of_us if base in link
    ]
    assert len(inside) > 20
    assert [link for link in inside if not has_target(ROOT / "README.md", link)] == []
    assert all((ROOT / link).is_file() for link in inside if link.endswith(".png"))


def test_the_package_index_shows_no_word_about_clones(on_index: str) -> None:
    assert not re.search(r"clone|checkout|make demo|not on PyPI|git\+https|<!--", on_index)
    assert 'pip install "tpunb[jax]"' in on_index
    assert 'pip install "tpunb[cpu,demo]"' in on_index


def test_the_version_is_in_the_changelog_with_a_date() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(__version__)} \(\d{{4}}-\d\d-\d\d\)$", text, re.MULTILINE)
    assert "Unreleased" not in text
