"""Descriptions as PNG pictures."""

from __future__ import annotations

from tpunb.draw.replicas_picture import replicas_png
from tpunb.draw.topology_picture import topology_png

__all__ = ["replicas_png", "topology_png"]
