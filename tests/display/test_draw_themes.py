"""The pictures are readable on light and on dark pages."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

from tpunb.display.describe.history_description import describe_history
from tpunb.display.draw.static_forms import mimebundle
from tpunb.training.history import History


def curves() -> Any:
    history = History("run")
    history.extend("loss", range(1, 50), np.linspace(1, 0, 49))
    return describe_history(history)


def luminance(colours: Any) -> Any:
    """Return WCAG's relative luminance of colours from 0 to 255."""
    parts = colours / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def test_a_picture_is_transparent_and_readable_on_any_background() -> None:
    picture = mimebundle(curves())["image/png"]
    assert isinstance(picture, bytes)
    pixels = np.asarray(Image.open(io.BytesIO(picture)).convert("RGBA"))
    assert (pixels[:4, :, 3] == 0).all()
    assert (pixels[:, :, 3] == 0).mean() > 0.15
    heading = pixels[:40].reshape(-1, 4)
    letters = luminance(heading[heading[:, 3] > 240][:, :3])
    assert letters.size > 50
    for ground in (255, 0x11):
        page = luminance(np.full(3, ground))
        light, dark = np.maximum(letters, page) + 0.05, np.minimum(letters, page) + 0.05
        assert np.median(light / dark) > 4
