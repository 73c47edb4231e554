"""Descriptions as text, pictures and HTML tables, and bundles of these."""

from tpunb.draw.annotations import annotations_html, annotations_text
from tpunb.draw.bundle import mimebundle
from tpunb.draw.picture import replicas_png, topology_png
from tpunb.draw.table import connection_html, replicas_html
from tpunb.draw.text import connection_text, replicas_text, topology_text

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
