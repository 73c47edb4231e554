"""What the wheel has besides the package: README.md as PyPI shows it, and files of the notebooks.

PyPI has no files beside README.md, so relative links become absolute. They lead to the release's
tag, whose pages and pictures belong to the release for good.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

PAGES = "https://github.com/tpunb/tpunb/blob/{tag}/"
PICTURES = "https://raw.githubusercontent.com/tpunb/tpunb/{tag}/"

RELATIVE = re.compile(r"(\]\(|\bhref=\"|\bsrc=\"|\bsrcset=\")(?!https?:|#)")


NEWEST_COMMIT = " @ git+https://github.com/tpunb/tpunb"
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


class Examples(BuildHookInterface[Any]):
    """Puts the files of the notebooks into the wheel, where `tpunb.examples` finds them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files, except to an editable install, which has the checkout's files."""
        if version != "standard":
            return
        for source, name in _examples(self.root).items():
            build_data["force_include"][str(source)] = f"tpunb/example_files/{name}"


def on_index(text: str) -> str:
    """Return README.md as for somebody who has a package index, and no clone."""
    return IN_REPOSITORY.sub("", text).replace(NEWEST_COMMIT, "")


def absolute(text: str, tag: str) -> str:
    """Return Markdown with absolute links to a tag.

    Pictures become raw files, and all else becomes pages on GitHub. The badges open the newest
    notebooks, whose first cell installs the newest commit.
    """
    bases = {True: PICTURES.format(tag=tag), False: PAGES.format(tag=tag)}
    return RELATIVE.sub(lambda found: found[1] + bases["src" in found[1]], text)


def _examples(root: str) -> dict[Path, str]:
    """Return the sources and names of `tpunb.examples.FILES`, without an import of the package."""
    text = Path(root, "tpunb", "examples.py").read_text(encoding="utf-8")
    table = next(
        node.value
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FILES"
    )
    files: dict[str, str] = ast.literal_eval(table)
    return {Path(root, "notebooks", source): name for name, source in files.items()}


def _version(root: str) -> str:
    text = Path(root, "tpunb", "version.py").read_text(encoding="utf-8")
    return re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)[0]
