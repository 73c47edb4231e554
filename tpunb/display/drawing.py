"""A drawing: a picture in a notebook, and text in a terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Drawing:
    """A picture that a notebook shows as the value of a cell's last line.

    `print` shows its plain text. `tpunb.show(drawing)` shows it anywhere in a cell.

    Args:
        description: The plain data that is drawn.
        as_text: Returns the text of the description.
        as_html: Returns the HTML of the description.

    Attributes:
        description: The argument `description`.
    """

    def __init__(
        self, description: Any, as_text: Callable[[Any], str], as_html: Callable[[Any], str]
    ) -> None:
        self.description = description
        self._as_text, self._as_html = as_text, as_html

    def __repr__(self) -> str:
        return self._as_text(self.description)

    def _repr_html_(self) -> str:
        return str(self._as_html(self.description))
