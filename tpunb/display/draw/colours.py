"""Colours that displays share."""

from __future__ import annotations

# A picture has a transparent background, and so the page's theme shows through. Its grey can be
# read on both themes: a contrast of 4.5 with white, and of 4.1 with JupyterLab's dark #111111.
INK = "#70777f"
FRAME = "#8c959fa0"
GRID = "#8c959f48"

HOST_COLOURS = (
    "#0072b2",
    "#d55e00",
    "#008f68",
    "#b3578c",
    "#7f6a00",
    "#3d8fc4",
    "#5b4b9a",
    "#8a4b2d",
)
"""Okabe and Ito's palette for the colour-blind, darkened if white text needs it."""
