"""Build the documentation as a site with `make site`, with the notebooks as they were saved.

The site shows the pages that GitHub shows, and builds from the repository's folder, so that a link
leads to the same place in both. This file adds what only a site has: navigation and a first page.
"""

from __future__ import annotations

import posixpath
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]

project = "tpunb"
html_title = project
html_theme = "furo"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False

root_doc = "README"
extensions = ["myst_nb"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
include_patterns = ["*.md", "docs/*.md", "notebooks/*.ipynb", "notebooks/found/*.ipynb"]
include_patterns += ["notebooks/course/*.ipynb", "notebooks/course/solutions/*.ipynb"]
exclude_patterns = [".*", "build", "tests", "tpunb"]  # Sphinx does not enter these folders
myst_heading_anchors = 4
# GitHub accepts headings that skip a level, and highlights magics that have no lexer here.
suppress_warnings = ["myst.header", "misc.highlighting_failure"]

nb_execution_mode = "off"
nb_ipywidgets_js: dict[str, object] = {}  # shows the static forms and fetches nothing
nb_mime_priority_overrides = [
    ("html", "application/vnd.jupyter.widget-view+json", None),
    ("html", "text/html", 0),
]

_LINK = re.compile(r"\]\(([\w./-]+\.(?:md|ipynb))\)")
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)


def setup(app: Sphinx) -> None:
    """Connect the changes made to pages while they are built."""
    app.connect("source-read", _read)
    app.connect("build-finished", _finish)


def _read(app: Sphinx, name: str, source: list[str]) -> None:
    """Add the contents to the first page, and link its HTML to pages instead of sources."""
    if name == root_doc:
        text = re.sub(r'(href="[\w/-]+)\.md', r"\1.html", source[0])
        source[0] = f"{text}\n\n{_contents()}"


def _contents() -> str:
    """Return the navigation: a tree for each section of the documentation's index."""
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    _, *sections = _HEADING.split(index)
    trees = [
        _tree(title, [posixpath.normpath(f"docs/{page}") for page in _LINK.findall(body)])
        for title, body in zip(sections[::2], sections[1::2], strict=True)
    ]
    project_pages = ["docs/README.md", "CHANGELOG.md", "CONTRIBUTING.md"]
    trees += [_tree("Course", _lessons()), _tree("Project", project_pages)]
    return "\n\n".join(trees)


def _lessons() -> list[str]:
    """Return the exercises of the course, each followed by its solution."""
    course = ROOT / "notebooks" / "course"
    exercises = sorted(path.name for path in course.glob("*.ipynb"))
    folders = ("notebooks/course", "notebooks/course/solutions")
    return [f"{folder}/{name}" for name in exercises for folder in folders]


def _tree(caption: str, pages: list[str]) -> str:
    listed = "\n".join(page.rpartition(".")[0] for page in pages)
    return f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}\n```"


def _finish(app: Sphinx, error: Exception | None) -> None:
    """Copy the pictures to the place that the pages' HTML expects, and write index.html."""
    if error is not None:
        return
    site = Path(app.outdir)
    shutil.copytree(ROOT / "docs" / "images", site / "docs" / "images", dirs_exist_ok=True)
    shutil.copyfile(site / f"{root_doc}.html", site / "index.html")
