"""What the wheel has besides the package: README.md as PyPI shows it, and files of the notebooks.

PyPI has no files beside README.md, so relative links become absolute. They lead to the release's
tag, whose pages and pictures belong to the release for good.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

PAGES = "https://github.com/tpunb/tpunb/blob/{tag}/"
PICTURES = "https://raw.githubusercontent.com/tpunb/tpunb/{tag}/"

RELATIVE = re.compile(r"(\]\(|\bhref=\"|\bsrc=\"|\bsrcset=\")(?!https?:|#)")


IN_REPOSITORY = re.compile(
    r"<!-- in the repository only -->\n.*?<!-- everywhere -->\n\n?", re.DOTALL
)


class LongDescription(MetadataHookInterface):
    """Makes the project's long description from README.md."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the field `readme`."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        tag = f"v{_version(self.root)}"
        text = absolute(on_index(text), tag)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


class Quickstart(BuildHookInterface[Any]):
    """Puts the quickstart notebook into the wheel, where `tpunb demo` finds it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file, except to an editable install, which has the checkout's file."""
        if version == "standard":
            source = Path(self.root, "notebooks", "00_quickstart.ipynb")
            build_data["force_include"][str(source)] = "tpunb/cli/quickstart.ipynb"


def on_index(text: str) -> str:
    """Return README.md as for somebody who has a package index, and no clone."""
    return IN_REPOSITORY.sub("", text)


def absolute(text: str, tag: str) -> str:
    """Return Markdown with absolute links to a tag.

    Pictures become raw files, and all else becomes pages on GitHub. The badges open the notebooks
    of the tag.
    """
    for address in ("github/tpunb/tpunb/blob/", "gh/tpunb/tpunb/"):
        text = text.replace(f"{address}main", f"{address}{tag}")
    bases = {True: PICTURES.format(tag=tag), False: PAGES.format(tag=tag)}
    return RELATIVE.sub(lambda found: found[1] + bases["src" in found[1]], text)


def _version(root: str) -> str:
    text = Path(root, "tpunb", "version.py").read_text(encoding="utf-8")
    return re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)[0]
