"""A page to draw on, measured in pixels from its top left corner.

Matplotlib is imported only when something is drawn, never through pyplot: a
display must not touch the user's figures, backend or style.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

from tpunb.display.draw.colours import INK

DPI = 100

ON_LIGHT = "#1f2328"
"""The colour of text on what is filled with a light colour."""

POINTS = 72 / DPI
"""Points of a pixel: matplotlib measures lines and letters in these."""

_TEXT_LAYER = 10


def ascii_text(text: str) -> str:
    """Printable ASCII, for which the picture's font has all glyphs; other characters escaped."""
    safe = "".join(char if char.isprintable() else " " for char in text)
    return safe.encode("ascii", "backslashreplace").decode("ascii")


class Canvas:
    """A figure with one axis that covers it, one unit a pixel, y downwards.

    Args:
        width: In pixels.
        height: The same; it can be set when everything is drawn.

    Attributes:
        figure: Matplotlib's figure.
        width: In pixels.
        height: In pixels.
    """

    def __init__(self, width: float, height: float = 1) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.width = round(width)
        self.figure = Figure(dpi=DPI, facecolor="none")
        self._agg: Any = FigureCanvasAgg(self.figure)
        self._axes: Any = self.figure.add_axes((0, 0, 1, 1))
        self._axes.set_axis_off()
        self._axes.set_autoscale_on(False)
        self._axes.set_xlim(0, self.width)
        self._placed: list[tuple[Any, tuple[float, float, float, float]]] = []
        self.set_height(height)

    def set_height(self, height: float) -> None:
        """Makes the page as high as needed; what is drawn stays at its distance from the top."""
        self.height = round(height)
        self.figure.set_size_inches(self.width / DPI, self.height / DPI)
        self._axes.set_ylim(self.height, 0)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 12,
        colour: str = INK,
        bold: bool = False,
        mono: bool = False,
        across: Literal["left", "center", "right"] = "left",
        down: Literal["top", "center", "baseline"] = "top",
    ) -> None:
        """Writes text, of a size in pixels; a dollar sign starts no mathematics."""
        self._axes.text(
            x,
            y,
            text,
            fontsize=size * POINTS,
            color=colour,
            weight="bold" if bold else "normal",
            family="DejaVu Sans Mono" if mono else "DejaVu Sans",
            ha=across,
            va=down,
            parse_math=False,
            clip_on=False,
            zorder=_TEXT_LAYER,
        )

    def boxes(
        self,
        corners: list[tuple[float, float]],
        size: tuple[float, float],
        *,
        fills: list[Any],
        edges: list[Any] | str = "none",
        radius: float = 0,
        line: float = 1,
        layer: float = 1,
    ) -> None:
        """Draws boxes of one size with rounded corners in one go."""
        from matplotlib.collections import PathCollection
        from matplotlib.patches import BoxStyle
        from matplotlib.transforms import Affine2D

        outline = BoxStyle.Round(pad=0, rounding_size=min(radius, *(side / 2 for side in size)))
        collection = PathCollection(
            [outline(0, 0, *size, 1)],
            offsets=corners,
            offset_transform=self._axes.transData,
            facecolors=fills,
            edgecolors=edges,
            linewidths=line * POINTS,
            zorder=layer,
        )
        # The path is in pixels with y downwards; the offset places its top left corner.
        collection.set_transform(Affine2D().scale(1, -1))
        self._axes.add_collection(collection, autolim=False)

    def lines(
        self,
        ends: Sequence[tuple[tuple[float, float], tuple[float, float]]],
        *,
        colour: str,
        width: float = 1.5,
        dashed: bool = False,
        layer: float = 1,
    ) -> None:
        """Draws straight lines in one go."""
        from matplotlib.collections import LineCollection

        style: Any = (0, (1.5, 1.2)) if dashed else "solid"
        self._axes.add_collection(
            LineCollection(
                ends,
                colors=colour,
                linewidths=width * POINTS,
                linestyles=style,
                zorder=layer,
            ),
            autolim=False,
        )

    def image(self, pixels: Any, box: tuple[float, float, float, float], layer: float = 1) -> None:
        """Draws an array of colours into a box of left, top, width, height."""
        left, top, width, height = box
        self._axes.imshow(
            pixels,
            extent=(left, left + width, top + height, top),
            aspect="auto",
            interpolation="nearest",
            zorder=layer,
        )

    def new_axes(self, box: tuple[float, float, float, float]) -> Any:
        """Matplotlib's own axes, in a box of left, top, width, height."""
        axes: Any = self.figure.add_axes((0, 0, 1, 1))
        self._placed.append((axes, box))
        axes.set_facecolor("none")
        axes.tick_params(which="both", length=0, labelsize=10.5 * POINTS, labelcolor=INK, pad=4)
        return axes

    def png(self, *, palette: bool = False) -> bytes:
        """The picture as a PNG file without any metadata; the same drawing gives the same bytes.

        Args:
            palette: Whether to keep 256 colours only, in a third of the bytes.
        """
        from PIL import Image

        for axes, (left, top, width, height) in self._placed:
            corner = left / self.width, 1 - (top + height) / self.height
            axes.set_position((*corner, width / self.width, height / self.height))
        self._agg.draw()
        image = Image.fromarray(np.ascontiguousarray(self._agg.buffer_rgba()))
        if palette:
            image = image.quantize(method=Image.Quantize.FASTOCTREE)
        buffer = io.BytesIO()
        image.save(buffer, "png")
        return buffer.getvalue()


@contextmanager
def new_canvas(width: float, height: float = 1) -> Iterator[Canvas]:
    """A canvas in our style, whatever the user's is."""
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams["font.family"] = ["DejaVu Sans"]
        yield Canvas(width, height)
