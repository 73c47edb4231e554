"""Read HTML as a browser does."""

from __future__ import annotations

import re
from html.parser import HTMLParser


def without_pictures(html: str) -> str:
    """Return HTML without tpunb's own pictures."""
    return re.sub(r'<img alt="[^"<>]*" style="[^"<>]*" src="data:image/svg[^"<>]*"/>', "", html)


class Tags(HTMLParser):
    """The elements, attributes and text of some HTML, in which every tag must be closed."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(markup)
        self.close()
        assert not self._open

    @property
    def names(self) -> set[str]:
        """The names of the elements."""
        return {tag for tag, _ in self.found}

    @property
    def attributes(self) -> set[str]:
        """The names of their attributes."""
        return {name for _, attributes in self.found for name in attributes}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag != "wbr":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)
