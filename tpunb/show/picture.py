"""Descriptions as PNG pictures."""

from __future__ import annotations

from tpunb.show.replicas_picture import replicas_png
from tpunb.show.topology_picture import topology_png

__all__ = ["replicas_png", "topology_png"]
