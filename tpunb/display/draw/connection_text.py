"""A connection as plain text and as HTML."""

from __future__ import annotations

from collections.abc import Iterable

from tpunb._util.plain_text import aligned, plain
from tpunb._util.tables import GREEN, ORANGE, Markup, badge, block, escaped, table
from tpunb._util.units import byte_count, counted
from tpunb.display.describe.connection import ConnectionDescription
from tpunb.display.draw.topology.text import links_phrase


def connection_title(connection: ConnectionDescription) -> str:
    """Return the kind of TPU, in words."""
    name = connection.accelerator or connection.tpu
    if connection.kind == "virtual":
        framework = "" if connection.framework == "TensorFlow" else f" for {connection.framework}"
        return f"virtual TPU {name}".rstrip() + f"{framework} (simulated on CPU)"
    return f"TPU hardware {name}".rstrip()


def arithmetic_rows(connection: ConnectionDescription) -> Iterable[tuple[str, str]]:
    """Yield a row if a virtual TPU has a TPU's arithmetic."""
    if connection.kind == "virtual" and connection.arithmetic == "tpu":
        yield "arithmetic", "tpu: float32 factors rounded to bfloat16, sums in float32"


def replicas_phrase(connection: ConnectionDescription) -> str:
    """Return the number of replicas; empty if a display of the topology shows it."""
    if connection.topology is not None and connection.topology.num_replicas:
        return ""
    if not connection.replicas:
        return counted(connection.cores, "device")
    return _replicas(connection, counted(connection.replicas, "replica"))


def _replicas(connection: ConnectionDescription, count: str) -> str:
    devices = connection.logical_devices
    return f"{count} of {devices} logical devices each" if devices > 1 else count


def connection_rows(connection: ConnectionDescription) -> Iterable[tuple[str, str]]:
    """Yield the summary's rows: a name and a value each."""
    if connection.tpu and connection.tpu != connection.accelerator:
        yield "name", connection.tpu
    if connection.replicas:
        yield "replicas", _replicas(connection, str(connection.replicas))
    yield "cores", f"{connection.cores} on {counted(connection.hosts, 'host')}"
    topology = connection.topology
    if topology is not None:
        yield "topology", f"{counted(topology.num_chips, 'chip')}, {links_phrase(topology)}"
        if topology.hbm_bytes:
            yield "HBM", f"{byte_count(topology.hbm_bytes)} per core"
    yield from arithmetic_rows(connection)
    if connection.versions:
        yield "versions", ", ".join(f"{name} {version}" for name, version in connection.versions)


def connection_text(connection: ConnectionDescription) -> str:
    """Return the summary of a connection."""
    rows = aligned(connection_rows(connection), "  ")
    return plain("\n".join([connection_title(connection), *rows, *connection.notes]))


def introduction_text(connection: ConnectionDescription) -> str:
    """Return the introduction of a connection, beside a display of its topology."""
    parts = (connection_title(connection), replicas_phrase(connection))
    return plain("\n".join([" · ".join(filter(None, parts)), *connection.notes]))


_BADGES = {"virtual": ORANGE, "hardware": GREEN}


def connection_html(connection: ConnectionDescription) -> str:
    """Return the summary of a connection, with the kind of TPU first."""
    title = badge(connection_title(connection), _BADGES[connection.kind])
    rows = table(connection_rows(connection), named=True)
    notes = "".join(block(note) for note in connection.notes)
    return f"<div>{block(title)}{rows}{notes}</div>"


def introduction_html(connection: ConnectionDescription) -> str:
    """Return the introduction of a connection, beside a display of its topology."""
    title = badge(connection_title(connection), _BADGES[connection.kind])
    line = Markup(f"{title} {escaped(replicas_phrase(connection))}")
    notes = "".join(block(note) for note in connection.notes)
    return f"<div>{block(line)}{notes}</div>"


def facts_html(headline: str, rows: Iterable[tuple[str, str]]) -> str:
    """Return names and values in two columns under a headline."""
    return f"<div>{block(headline, bold=True)}{table(rows, named=True)}</div>"
