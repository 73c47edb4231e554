"""Descriptions as text, pictures and HTML tables, and bundles of these."""

from tpunb.display.draw.annotations import annotations_html, annotations_text
from tpunb.display.draw.bundle import mimebundle
from tpunb.display.draw.replicas_picture import replicas_png
from tpunb.display.draw.table import connection_html, replicas_html
from tpunb.display.draw.text import connection_text, replicas_text, topology_text
from tpunb.display.draw.topology_picture import topology_png

__all__ = [
    "annotations_html",
    "annotations_text",
    "connection_html",
    "connection_text",
    "mimebundle",
    "replicas_html",
    "replicas_png",
    "replicas_text",
    "topology_png",
    "topology_text",
]
