"""README.md as PyPI shows it: PyPI has no files beside it, so relative links become absolute."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PAGES = "https://github.com/tpunb/tpunb/blob/main/"
PICTURES = "https://raw.githubusercontent.com/tpunb/tpunb/main/"

RELATIVE = re.compile(r"(\]\(|\bhref=\"|\bsrc=\"|\bsrcset=\")(?!https?:|#)")


class LongDescription(MetadataHookInterface):
    """Makes the project's long description from README.md."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Sets the field `readme`."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text)}


def absolute(text: str) -> str:
    """Markdown with absolute links: pictures as raw files, all else as pages on GitHub."""
    return RELATIVE.sub(lambda found: found[1] + (PICTURES if "src" in found[1] else PAGES), text)
