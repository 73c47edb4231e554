"""The live display of compiled programs: the saved page, with tables that can be sorted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import traitlets

from tpunb.display.draw.programs.html import programs_bundle, programs_html
from tpunb.display.widgets.live_widget import LiveWidget
from tpunb.display.widgets.page_data import es_module
from tpunb.tpu.compiled_program import Program


class ProgramsWidget(LiveWidget):
    """A compiled program, or several side by side.

    Args:
        value: A compiled program, or several.
        link: Widgets with the same link share their selection.
        **state: Other traits.

    Attributes:
        html: The page.

    Raises:
        TypeError: The value is not a program, and not several programs.
    """

    _esm = es_module("programs.js")

    html = traitlets.Unicode().tag(sync=True)

    def __init__(self, value: Any, *, link: str = "", **state: Any) -> None:
        self._programs = _programs(value)
        super().__init__(html=programs_html(self._programs), link=link, **state)

    def update(self, value: Any) -> bool:
        """Show another program in place; sections that are open stay open."""
        self._programs = _programs(value)
        self.html = programs_html(self._programs)
        return True

    def static_bundle(self) -> dict[str, Any]:
        """Return the programs as text and as HTML."""
        return programs_bundle(self._programs)


def _programs(value: Any) -> tuple[Program, ...]:
    several = [value] if isinstance(value, Program) else value
    programs = tuple(several) if isinstance(several, Iterable) else ()
    if not programs or not all(isinstance(program, Program) for program in programs):
        raise TypeError(
            "Compiled programs are shown, as tpunb.compile returns them, "
            f"not a {type(value).__name__}"
        )
    return programs
