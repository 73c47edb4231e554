"""The kernels' logo: a board with the eight cores of four chips."""

from __future__ import annotations

import io

# In units of the picture's side, 64: left, top, right, bottom, corner radius, colour.
_Block = tuple[int, int, int, int, int, str]
_BOARD: _Block = (2, 2, 62, 62, 10, "#1d3557")
_CHIPS: tuple[_Block, ...] = tuple(
    (x, y, x + 23, y + 23, 4, "#a8c5e2") for y in (7, 34) for x in (7, 34)
)
_CORES: tuple[_Block, ...] = tuple(
    (x + dx, y + 4, x + dx + 7, y + 19, 2, "#e76f51")
    for y in (7, 34)
    for x in (7, 34)
    for dx in (3, 13)
)
_BLOCKS = (_BOARD, *_CHIPS, *_CORES)
_SIDE = 64
_FINER = 4  # Pillow draws without smoothing: drawn larger, then made smaller


def logos() -> dict[str, bytes]:
    """The files that Jupyter's front ends look for beside kernel.json, by name."""
    from PIL import Image, ImageDraw

    scale = _FINER
    image = Image.new("RGBA", (_SIDE * scale, _SIDE * scale))
    draw = ImageDraw.Draw(image)
    for left, top, right, bottom, radius, colour in _BLOCKS:
        corners = [left * scale, top * scale, right * scale - 1, bottom * scale - 1]
        draw.rounded_rectangle(corners, radius * scale, fill=colour)
    files = {"logo-svg.svg": _svg().encode()}
    for side in (32, 64):
        png = io.BytesIO()
        smaller = image.resize((side, side), Image.Resampling.LANCZOS)
        smaller.save(png, "PNG", optimize=True)
        files[f"logo-{side}x{side}.png"] = png.getvalue()
    return files


def _svg() -> str:
    blocks = "".join(
        f'<rect x="{left}" y="{top}" width="{right - left}" height="{bottom - top}" '
        f'rx="{radius}" fill="{colour}"/>'
        for left, top, right, bottom, radius, colour in _BLOCKS
    )
    box = f'viewBox="0 0 {_SIDE} {_SIDE}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box}>{blocks}</svg>\n'
