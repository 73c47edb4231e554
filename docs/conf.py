"""Build the documentation as a site with `make site`, with the notebooks as they were saved.

The site shows the pages that GitHub shows, and builds from the repository's folder, so that a link
leads to the same place in both. This file adds what only a site has: navigation, the reference from
the docstrings, and pictures that follow the theme.
"""

from __future__ import annotations

import inspect
import os
import posixpath
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
REPOSITORY = "https://github.com/tpunb/tpunb"
sys.path.insert(0, str(ROOT))
sys.path.append(str(ROOT / "tests"))
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # TensorFlow's log is not about the documentation

from generated_pages import PROGRAMS, PYODIDE, with_generated  # noqa: E402
from live_displays import LIVE, scripts  # noqa: E402

import tpunb  # noqa: E402

project = "tpunb"
version = release = tpunb.__version__
html_title = f"tpunb {release}"
html_theme = "furo"
html_logo = html_favicon = "../tpunb/notebook/kernels/logo-svg.svg"
html_theme_options = {
    "source_repository": REPOSITORY,
    "source_branch": "main",
    "source_directory": "",
    "top_of_page_buttons": ["view"],
}
html_static_path = ["static", "../tests/browser/host.js"]
html_css_files = ["site.css"]
html_search_scorer = str(ROOT / "docs" / "scorer.js")
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False

root_doc = "docs/README"
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.linkcode",
    "sphinx_copybutton",
]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
include_patterns = ["*.md", "docs/*.md", "docs/*/*.md"]
include_patterns += ["notebooks/*.ipynb", "notebooks/**/*.ipynb"]
exclude_patterns = [".*", "build", "tests", "tpunb"]  # Sphinx does not enter these folders
myst_heading_anchors = 4
# GitHub accepts headings that skip a level, and highlights magics that have no lexer here.
suppress_warnings = ["myst.header", "misc.highlighting_failure"]

autodoc_member_order = "groupwise"
autosummary_generate = False
default_role = "py:obj"  # docstrings write `name`
toc_object_entries_show_parents = "hide"
python_maximum_signature_line_length = 80
python_use_unqualified_type_names = True

copybutton_exclude = ".linenos, .gp, .go"

nb_execution_mode = "off"
nb_ipywidgets_js: dict[str, object] = {}  # shows the static forms and fetches nothing
nb_mime_priority_overrides = [
    ("html", "application/vnd.jupyter.widget-view+json", None),
    ("html", "text/html", 0),
]

_LINK = re.compile(r"\]\(([\w./-]+\.(?:md|ipynb))\)")
_HEADING = re.compile(r"^### (.+)$", re.MULTILINE)
_PICTURE = re.compile(
    r'<picture>\s*<source [^>]*srcset="(?P<dark>[^"]+)">'
    r'\s*<img src="(?P<light>[^"]+)"(?P<rest>[^>]*)>\s*</picture>'
)
_DISPLAY = re.compile(r'<img class="only-dark" src="images/docs-([\w-]+)-dark\.png".*')
_BADGE = re.compile(r"\[!\[([^\]]+)\]\(https:[^)]+\)\]")
_ANCHOR = re.compile(r'^<a id="([\w-]+)"></a>\n', re.MULTILINE)
_SCRIPTS = {
    "docs/gallery": '<script defer src="../_static/host.js"></script>\n'
    '<script defer src="../_static/live.js"></script>',
    "docs/browser": '<script type="module" src="../_static/browser.js"></script>'
    if PYODIDE.is_dir()
    else "",
}
_RECORDS = ROOT / "docs" / "maintainers"
_PROJECT = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md"]


def linkcode_resolve(domain: str, info: dict[str, str]) -> str | None:
    """Return the address of the source of a name, if it is a class, a function or a property."""
    value: Any = sys.modules.get(info["module"])
    try:
        for part in info["fullname"].split("."):
            value = getattr(value, part)
        value = inspect.unwrap(value.fget if isinstance(value, property) else value)
        file, (_, line) = inspect.getsourcefile(value), inspect.getsourcelines(value)
    except (AttributeError, OSError, TypeError):  # an attribute or an instance
        return None
    path = Path(file or "")
    if not path.is_relative_to(ROOT):
        return None
    return f"{REPOSITORY}/blob/main/{path.relative_to(ROOT).as_posix()}#L{line}"


def setup(app: Sphinx) -> None:
    """Connect the changes made to pages while they are built."""
    app.connect("source-read", _read)
    app.connect("build-finished", _finish)


def _read(app: Sphinx, name: str, source: list[str]) -> None:
    """Add what only the site has to a page."""
    text = _without_badges(_pictures(with_generated(source[0])))
    text = _ANCHOR.sub(r"(\1)=\n", text)
    if name == "docs/gallery":
        text = _DISPLAY.sub(_live, text)
    text += f"\n{_SCRIPTS.get(name, '')}"
    if name.endswith("README"):  # its HTML links to sources
        text = re.sub(r'(href="[\w/-]+)\.md', r"\1.html", text)
    source[0] = f"{text}\n\n{_contents()}" if name == root_doc else text


def _pictures(text: str) -> str:
    """Replace each picture by two. The theme shows one of them."""
    return _PICTURE.sub(
        r'<img class="only-dark" src="\g<dark>"\g<rest>>'
        r'<img class="only-light" src="\g<light>"\g<rest>>',
        text,
    )


def _live(pictures: re.Match[str]) -> str:
    """Return the place of a live display, with the pictures that are there until it is drawn."""
    name = pictures[1]
    return f'<div data-display="{name}">{pictures[0]}</div>' if name in LIVE else pictures[0]


def _without_badges(text: str) -> str:
    """Replace the pictures of badges, which other sites would serve, by their texts."""
    return _BADGE.sub(r"[\1]", text)


def _contents() -> str:
    """Return the navigation: a tree for each section of the index's list of pages."""
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    _, *sections = _HEADING.split(index.partition("\n## All pages\n")[2])
    named = dict(zip(sections[::2], map(_LINK.findall, sections[1::2]), strict=True))
    trees = [_tree(title, _paths(pages)) for title, pages in named.items()]
    records = sorted(f"docs/maintainers/{path.name}" for path in _RECORDS.glob("*.md"))
    trees += [_tree("Course", _lessons()), _tree("Project", [*_PROJECT, *records])]
    return "\n\n".join(trees)


def _paths(pages: list[str]) -> list[str]:
    """Return the paths of pages from the repository's folder, without README.md."""
    paths = [posixpath.normpath(f"docs/{page}") for page in pages]
    return [path for path in paths if path not in _PROJECT]


def _lessons() -> list[str]:
    """Return the exercises of the course and the puzzles, each followed by its solution."""
    notebooks = ROOT / "notebooks"
    solutions = sorted(notebooks.glob("*/solutions/*.ipynb"))
    exercises = [path.parents[1] / path.name for path in solutions]
    pairs = zip(exercises, solutions, strict=True)
    return [path.relative_to(ROOT).as_posix() for pair in pairs for path in pair]


def _tree(caption: str, pages: list[str]) -> str:
    listed = "\n".join(f"/{page.rpartition('.')[0]}" for page in dict.fromkeys(pages))
    return f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}\n```"


def _finish(app: Sphinx, error: Exception | None) -> None:
    """Write what the pages' HTML expects: the pictures, the live displays, and index.html."""
    if error is not None:
        return
    site = Path(app.outdir)
    shutil.copytree(ROOT / "docs" / "images", site / "docs" / "images", dirs_exist_ok=True)
    _add_python(site / "_static")
    live = site / "_static" / "live"
    live.mkdir(exist_ok=True)
    for name, script in scripts():
        (live / f"{name}.js").write_text(script, encoding="ascii")
    first = f"{root_doc}.html"
    (site / "index.html").write_text(
        f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={first}">'
        f'<title>{project}</title><a href="{first}">{project}</a>\n',
        encoding="utf-8",
    )


def _add_python(folder: Path) -> None:
    """Add Pyodide, tpunb and the saved programs, which `browser.js` runs, if Pyodide is there."""
    if not PYODIDE.is_dir():
        return
    python = folder / "pyodide"
    python.mkdir(exist_ok=True)
    for pattern in ("*.mjs", "*.wasm", "*.zip", "pyodide-lock.json"):
        for file in PYODIDE.glob(pattern):
            shutil.copyfile(file, python / file.name)
    with tempfile.TemporaryDirectory() as files:
        shutil.copytree(PROGRAMS, files, dirs_exist_ok=True)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "tpunb", Path(files) / "tpunb", ignore=ignored)
        shutil.make_archive(str(folder / "browser"), "zip", files)
