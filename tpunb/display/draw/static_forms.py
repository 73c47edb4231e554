"""The static forms of a description that a notebook gets."""

from __future__ import annotations

from collections.abc import Callable

from tpunb.display.describe.connection import ConnectionDescription
from tpunb.display.describe.history_description import HistoryDescription
from tpunb.display.describe.replicas import ReplicaValuesDescription
from tpunb.display.describe.topology_description import TopologyDescription
from tpunb.display.draw.connection_text import (
    connection_html,
    connection_text,
)
from tpunb.display.draw.curves_png import curves_png
from tpunb.display.draw.curves_text import curves_text
from tpunb.display.draw.replicas.html import replicas_html
from tpunb.display.draw.replicas.text import replicas_text
from tpunb.display.draw.topology.svg import topology_html
from tpunb.display.draw.topology.text import topology_text
from tpunb.training.curves_figure import DEFAULT_LOOK, CurvesLook

Description = (
    TopologyDescription | ReplicaValuesDescription | ConnectionDescription | HistoryDescription
)

_IN_HTML: tuple[tuple[type, Callable[..., str], Callable[..., str]], ...] = (
    (ConnectionDescription, connection_text, connection_html),
    (ReplicaValuesDescription, replicas_text, replicas_html),
    (TopologyDescription, topology_text, topology_html),
)


def mimebundle(description: Description) -> dict[str, str | bytes]:
    """Return all static forms of a description.

    Front ends prefer HTML to a picture, so a description with a picture gets no HTML.

    Args:
        description: A topology, replica values, a connection or histories.

    Returns:
        `text/plain` and either `image/png` (as bytes) or `text/html`. The same
        description gives the same bytes.
    """
    if isinstance(description, HistoryDescription):
        return curves_forms(description)
    for kind, as_text, as_html in _IN_HTML:
        if isinstance(description, kind):
            return {"text/plain": as_text(description), "text/html": as_html(description)}
    raise TypeError(f"{type(description).__name__} is not a description")


def curves_forms(
    description: HistoryDescription, look: CurvesLook = DEFAULT_LOOK
) -> dict[str, str | bytes]:
    """Return the text of training curves and, if there is something to draw, the picture.

    Args:
        description: The curves.
        look: The settings of the figure.
    """
    text = curves_text(description)
    if not description.panels:
        return {"text/plain": text}
    try:
        picture = curves_png(description, look)
    except ImportError as error:
        return {"text/plain": f"{text}\nNo picture: {error}. Run: pip install matplotlib"}
    return {"text/plain": text, "image/png": picture}
