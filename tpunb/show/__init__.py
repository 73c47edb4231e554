"""Descriptions as text, pictures and HTML tables, and bundles of these."""

from tpunb.show.annotations import annotations_html, annotations_text
from tpunb.show.bundle import mimebundle
from tpunb.show.picture import replicas_png, topology_png
from tpunb.show.table import connection_html, replicas_html
from tpunb.show.text import connection_text, replicas_text, topology_text

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
