"""What the wheel has besides the package: README.md as PyPI shows it, and the quickstart notebook.

PyPI has no files beside README.md, so relative links become absolute.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

PAGES = "https://github.com/tpunb/tpunb/blob/main/"
PICTURES = "https://raw.githubusercontent.com/tpunb/tpunb/main/"

RELATIVE = re.compile(r"(\]\(|\bhref=\"|\bsrc=\"|\bsrcset=\")(?!https?:|#)")


class LongDescription(MetadataHookInterface):
    """Makes the project's long description from README.md."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the field `readme`."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text)}


class Quickstart(BuildHookInterface[Any]):
    """Puts the quickstart notebook into the wheel, where `tpunb demo` finds it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file, except to an editable install, which has the checkout's file."""
        if version == "standard":
            source = Path(self.root, "notebooks", "00_quickstart.ipynb")
            build_data["force_include"][str(source)] = "tpunb/cli/quickstart.ipynb"


def absolute(text: str) -> str:
    """Markdown with absolute links: pictures as raw files, all else as pages on GitHub."""
    return RELATIVE.sub(lambda found: found[1] + (PICTURES if "src" in found[1] else PAGES), text)
