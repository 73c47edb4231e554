"""The picture of training curves, drawn by Matplotlib in tpunb's own style."""

from __future__ import annotations

import io
import textwrap
from dataclasses import replace
from typing import Any

from tpunb.display.describe.history_description import HistoryDescription
from tpunb.display.draw.colours import FRAME, HOST_COLOURS, INK
from tpunb.display.draw.curves_text import curves_heading
from tpunb.training.curves_figure import DEFAULT_LOOK, CurvesLook, Panel, curves_figure

_CHARACTERS = 72
"""The largest number of characters in a line of the heading."""

_STYLE: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.edgecolor": FRAME,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.titleweight": "bold",
    "axes.titlesize": "medium",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": INK,
    "grid.alpha": 0.25,  # matplotlib 3.8 ignores the colour's own alpha
}


def curves_png(description: HistoryDescription, look: CurvesLook = DEFAULT_LOOK) -> bytes:
    """Draw training curves as a PNG that can be read on a page of 400 pixels.

    Args:
        description: The curves.
        look: The settings of the figure.

    Returns:
        The PNG file; the same curves give the same bytes.

    Raises:
        ImportError: Matplotlib is not installed.
    """
    import matplotlib as mpl
    from cycler import cycler

    lines = [textwrap.fill(line, _CHARACTERS) for line in curves_heading(description)]
    panels = [_with_known_glyphs(panel) for panel in description.panels]
    buffer = io.BytesIO()
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({**_STYLE, "axes.prop_cycle": cycler(color=HOST_COLOURS)})
        figure = curves_figure(panels, _known("\n".join(lines)), look)
        # By default the file names matplotlib's release.
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _with_known_glyphs(panel: Panel) -> Panel:
    lines = tuple(replace(line, label=_known(line.label)) for line in panel.lines)
    return Panel(_known(panel.title), lines)


def _known(text: str) -> str:
    """Return text with an escape for each character that the picture's font may not have."""
    return "".join(
        char if char in "\n·…–" or " " <= char <= "~" else ascii(char)[1:-1] for char in text
    )
