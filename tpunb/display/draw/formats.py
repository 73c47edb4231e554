"""Numbers and phrases that text, tables and pictures have in common."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tpunb._util.units import byte_count, counted, grouped
from tpunb.display.describe.connection import ConnectionDescription
from tpunb.display.describe.replicas import (
    ReplicaValue,
    ReplicaValuesDescription,
    Section,
    Statistics,
)
from tpunb.display.describe.topology import UNASSIGNED, TopologyDescription

__all__ = [
    "and_more",
    "arithmetic_rows",
    "assignment_phrase",
    "connection_rows",
    "connection_title",
    "core_label",
    "facts",
    "flags",
    "links_phrase",
    "nested_values",
    "number",
    "program_phrase",
    "replicas_phrase",
    "replicas_title",
    "sampled_phrase",
    "section_title",
    "shape_phrase",
    "topology_facts",
]

_THOUSAND, _TEN_MILLION = 1e3, 1e7
_EXACT = 2**53
"""Up to here a page's numbers hold every integer."""

Number = int | float | bool
Nested = list["Nested"] | Number


def number(value: Number | None) -> str:
    """A number in a form that does not change from run to run."""
    if value is None:
        return "–"
    if isinstance(value, bool | int):
        return str(value) if abs(value) < _EXACT else f"{float(value):.4g}"
    if math.isnan(value):
        return "nan"
    # All seven digits of 32 bits: 12345.68 rounded to 12346 would look like an integer.
    return f"{value:.7g}" if _THOUSAND <= abs(value) < _TEN_MILLION else f"{value:.4g}"


def sampled_phrase(rows: int, columns: int = 1, *, of: str = "") -> str:
    """Which part of a value is drawn: `"1 in 2 rows drawn"`; empty where all of it is.

    Args:
        rows: One in so many of the rows, or of what `of` says.
        columns: The same of the columns.
        of: What the rows are called instead.
    """
    steps = ((rows, of or "rows"), (columns, "columns"))
    parts = [f"1 in {step} {what}" for step, what in steps if step > 1]
    return f"{' and '.join(parts)} drawn" if parts else ""


def and_more(count: int) -> str:
    """The last line of a list that is cut off: `"and 3 more"`."""
    return f"and {grouped(count)} more"


def shape_phrase(shape: tuple[int | None, ...] | None) -> str:
    """A shape as `"[2, 3]"`; `"None"` for an axis of unequal lengths."""
    return "" if shape is None else f"[{', '.join(map(str, shape))}]"


def topology_facts(topology: TopologyDescription) -> str:
    """The totals: `"8 chips · 8 cores · 1 host · 16 GiB HBM per core"`."""
    cores = counted(topology.num_cores, "core")
    parts = [
        counted(topology.num_chips, "chip"),
        *([] if topology.name == cores else [cores]),  # the name of a TPU of no type
        counted(topology.num_hosts, "host"),
    ]
    if topology.hbm_bytes:
        total = byte_count(topology.hbm_bytes * topology.num_cores)
        each = byte_count(topology.hbm_bytes)
        parts.append(
            f"{each} HBM" if topology.num_cores == 1 else f"{each} HBM per core, {total} in all"
        )
    return " · ".join(parts)


def links_phrase(topology: TopologyDescription) -> str:
    """The mesh and which axes close to a ring."""
    axes = [axis for axis, wraps in zip("xyz", topology.wraps, strict=True) if wraps]
    mesh = "×".join(str(side) for side in topology.mesh)
    phrase = f"mesh {mesh} (x, y, z)"
    if axes:
        phrase += f", links wrap around along {_listed(axes)}"
    return f"{phrase}; a chip's 2 TensorCores act as one core" if topology.merged else phrase


def _listed(words: list[str]) -> str:
    if len(words) == 1:
        return words[0]
    return f"{', '.join(words[:-1])} and {words[-1]}"


def assignment_phrase(topology: TopologyDescription) -> str:
    """The device assignment in a line; empty without one."""
    if not topology.num_replicas:
        return ""
    phrase = counted(topology.num_replicas, "replica")
    if topology.num_logical_devices > 1:
        phrase += f" of {topology.num_logical_devices} logical devices (replica.device)"
    idle = sum(replica == UNASSIGNED for replica in topology.replicas)
    return f"{phrase}, {counted(idle, 'core')} unassigned" if idle else phrase


def program_phrase(topology: TopologyDescription) -> str:
    """What the compiled program takes of a core's memory; empty without one."""
    if not topology.usable_bytes:
        return ""
    needed, usable = byte_count(topology.needed_bytes), byte_count(topology.usable_bytes)
    over = topology.needed_bytes - topology.usable_bytes
    end = f": {byte_count(over)} too much" if over > 0 else ""
    return f"the compiled program needs {needed} of {usable} usable a core{end}"


def core_label(topology: TopologyDescription, core: int) -> str:
    """What is written on a core: its number, or its part of a replica."""
    if not topology.num_replicas:
        return str(core)
    replica = topology.replicas[core]
    if replica == UNASSIGNED:
        return "–"
    if topology.num_logical_devices == 1:
        return f"r{replica}"
    return f"r{replica}.{topology.logical_devices[core]}"


def replicas_title(description: ReplicaValuesDescription) -> str:
    """The whole's class and how many replicas it has."""
    if not description.num_replicas:
        return description.type_name
    return f"{description.type_name} of {counted(description.num_replicas, 'replica')}"


def section_title(section: Section, *, alone: bool) -> str:
    """Where a leaf is and what all of its values have in common."""
    values = section.values
    parts = [] if alone else [section.path, section.type_name if section.distributed else ""]
    # A repr already shows the type's name.
    kinds = {(value.kind, value.dtype, value.shape) for value in values}
    if len(kinds) == 1:
        kind, dtype, shape = kinds.pop()
        parts += ["" if kind in ("numeric", "string", "none", "object") else kind]
        parts += ["" if kind == "none" else f"{dtype} {shape_phrase(shape)}".strip()]
    if section.all_equal:
        parts.append(f"all {grouped(len(values))} replicas equal")
    return " · ".join(part for part in parts if part)


def facts(value: ReplicaValue) -> str:
    """Minimum, mean, maximum and standard deviation in a line; empty where there are none.

    Truth values are counted: `"2 of 3 True"`.
    """
    statistics = value.statistics
    if statistics is None or statistics.mean is None:
        return ""
    sides = value.shape or ()
    if value.dtype == "bool" and None not in sides:
        count = math.prod(side for side in sides if side is not None)
        return f"{grouped(round(statistics.mean * count))} of {grouped(count)} True"
    return (
        f"min {number(statistics.minimum)}  mean {number(statistics.mean)}  "
        f"max {number(statistics.maximum)}  std {number(statistics.deviation)}"
    )


def flags(statistics: Statistics | None) -> str:
    """How many elements are no finite numbers; empty if none."""
    if statistics is None:
        return ""
    parts = [
        f"{grouped(count)} {name}"
        for count, name in ((statistics.nans, "NaN"), (statistics.infs, "Inf"))
        if count
    ]
    return ", ".join(parts)


def nested_values(value: ReplicaValue) -> str:
    """The elements of a small value in brackets, on one line."""
    if value.preview is None or value.preview.kind != "values":
        more = f", … {grouped(value.omitted)} more" if value.omitted > 0 else ""
        text = ", ".join(value.texts) + more
        bracketed = value.shape and value.texts and value.kind in ("string", "numeric")
        return f"[{text}]" if bracketed else text
    prefix = f"{value.texts[0]}: " if value.texts else ""
    return prefix + _bracketed(value.preview.array().tolist())


def _bracketed(values: Nested) -> str:
    if isinstance(values, list):
        return f"[{', '.join(_bracketed(item) for item in values)}]"
    return number(values)


def connection_title(connection: ConnectionDescription) -> str:
    """What kind of TPU this is, in words."""
    name = connection.accelerator or connection.tpu
    if connection.kind == "virtual":
        return f"virtual TPU {name}".rstrip() + " (simulated on CPU)"
    return f"TPU hardware {name}".rstrip()


def arithmetic_rows(connection: ConnectionDescription) -> Iterable[tuple[str, str]]:
    """That a virtual TPU has a TPU's arithmetic: a row, or none."""
    if connection.kind == "virtual" and connection.arithmetic == "tpu":
        yield "arithmetic", "tpu: float32 factors rounded to bfloat16, sums in float32"


def replicas_phrase(connection: ConnectionDescription) -> str:
    """How many replicas there are; empty where a display of the topology says it."""
    if connection.topology is not None and connection.topology.num_replicas:
        return ""
    return _replicas(connection, counted(connection.replicas, "replica"))


def _replicas(connection: ConnectionDescription, count: str) -> str:
    devices = connection.logical_devices
    return f"{count} of {devices} logical devices each" if devices > 1 else count


def connection_rows(connection: ConnectionDescription) -> Iterable[tuple[str, str]]:
    """The summary's rows: a name and a value each."""
    if connection.tpu and connection.tpu != connection.accelerator:
        yield "name", connection.tpu
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
