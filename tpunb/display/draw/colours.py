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

VIRIDIS = (
    "#440154", "#48186a", "#472d7b", "#424086", "#3b528b", "#33638d", "#2c728e", "#26828e",
    "#21918c", "#1fa088", "#28ae80", "#3fbc73", "#5ec962", "#84d44b", "#addc30", "#d8e219",
    "#fde725",
)  # fmt: skip
"""The stops of Matplotlib's scale for numbers of one sign."""

DIVERGING = (
    "#053061", "#2065ab", "#4393c3", "#90c4dd", "#d1e5f0", "#f7f6f6", "#fddbc7", "#f3a481",
    "#d6604d", "#b1182b", "#67001f",
)  # fmt: skip
"""The stops of Matplotlib's RdBu_r, for numbers of both signs."""

NAN, INF = "#ff2fa4", "#ffb000"
"""The colours of elements that are not finite, which no scale has."""


def rgb(colour: str) -> tuple[int, int, int]:
    """Return the red, green and blue of a colour such as `"#0072b2"`."""
    red, green, blue = bytes.fromhex(colour[1:])
    return red, green, blue
