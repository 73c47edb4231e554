"""The live topology: the drawing, whose cores can be selected, from the view that is chosen."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import traitlets

from tpunb._util.tables import Markup, escaped
from tpunb._util.units import byte_count
from tpunb.display.describe.topology_description import (
    UNASSIGNED,
    TopologyDescription,
    describe_accelerator,
    describe_device_assignment,
    describe_topology,
)
from tpunb.display.draw.static_forms import mimebundle
from tpunb.display.draw.topology.colours import Colouring, by_memory, colourings, size_phrase
from tpunb.display.draw.topology.svg import drawing_phrases, has_dots, topology_drawing
from tpunb.display.draw.view_markup import button, choice, legend_of, page
from tpunb.display.widgets.live_widget import LiveWidget
from tpunb.display.widgets.page_data import es_module
from tpunb.tpu.types import Accelerator, accelerator

Memory = Callable[[], Sequence[int]]


class TopologyWidget(LiveWidget):
    """Chips on their mesh, cores in chips, hosts by colour; cores can be selected.

    Without a device assignment, core `k` means replica `k` in a selection, because every core is
    then a replica of its own.

    Args:
        value: A description, a TPU type such as `"v4-32"` or an `Accelerator`,
            TensorFlow's `Topology` or `DeviceAssignment`, or a connection.
        memory: Returns the bytes that variables hold on each core; by default a
            connection's variables are counted, and nothing else.
        link: Widgets with the same link share their selection.
        **state: First values of the attributes below.

    Attributes:
        colour: The property that the colours show: `"host"`, `"replica"`, `"logical"` devices,
            `"memory"` of variables, or the memory that a compiled `"program"` needs.
        plane: The z of the displayed plane; -1 for all planes.
        zoom: The size of the drawing, as a multiple of the size that fits, 1 to 32.
        asked: How often the memory of variables was read.

    Raises:
        TypeError: The value has no topology, or `memory` cannot be called.
        AcceleratorTypeError: The TPU type does not exist.
        ValueError: The cores of a description do not fit on its mesh.
    """

    _esm = es_module("topology.js")

    html = traitlets.Unicode().tag(sync=True)
    colour = traitlets.Enum(["host", "replica", "logical", "memory", "program"], "host").tag(
        sync=True
    )
    plane = traitlets.Int(-1, min=-1).tag(sync=True)
    zoom = traitlets.Float(1.0, min=1.0, max=32.0).tag(sync=True)
    asked = traitlets.Int(0).tag(sync=True)

    def __init__(
        self, value: Any, *, memory: Memory | None = None, link: str = "", **state: Any
    ) -> None:
        if memory is not None and not callable(memory):
            raise TypeError(f"memory is a function or None, not a {type(memory).__name__}")
        self._description = description = _described(value)
        self._memory = memory or getattr(value, "memory_per_core", None)
        if description.usable_bytes:
            state = {"colour": "program", **state}
        super().__init__(link=link, **state)
        self.observe(self._draw, ["colour", "plane", "zoom", "asked"])

    @property
    def description(self) -> TopologyDescription:
        """The displayed description; it can be set to anything that can be described."""
        return self._description

    @description.setter
    def description(self, value: Any) -> None:
        former, self._description = self._description, _described(value)
        description = self._description
        with self.hold_trait_notifications():
            if description.usable_bytes and not former.usable_bytes:
                self.colour = "program"
            known = description.num_replicas or description.num_cores
            self.selected = [replica for replica in self.selected if replica < known]
            if description.mesh != former.mesh:
                self.plane, self.zoom = -1, 1.0
        self._draw()

    def update(self, value: Any) -> bool:
        """Show another topology in place; settings that still fit stay."""
        self.description = value
        return True

    def static_bundle(self) -> dict[str, Any]:
        """Return the topology as text and as a picture in HTML."""
        return dict(mimebundle(self._description))

    @traitlets.default("html")
    def _drawn(self) -> str:
        """Return the chosen view: facts, controls, the drawing and what the colours mean."""
        topology = drawn = self._description
        if self._memory is not None and not topology.num_replicas:
            # Every core runs a replica; the facts and the labels do not repeat it.
            cores = tuple(range(topology.num_cores))
            drawn = replace(topology, replicas=cores, logical_devices=(0,) * len(cores))
        known = {each.name: each for each in colourings(drawn)}
        names = {name: each.label for name, each in known.items()}
        if self._memory is not None:
            names["memory"] = "memory"
        colour = self.colour if self.colour in names else "host"
        depth = topology.mesh[2]
        plane = self.plane if 1 < depth > self.plane else -1
        lines = [_core_lines(drawn, core) for core in range(topology.num_cores)]
        legend = Markup("")
        if colour == "memory":
            known[colour], legend = self._coloured_by_memory(lines, known["host"])
        planes = {-1: "all", **{z: str(z) for z in range(depth)}}
        zooms = {2.0**power: f"{2**power}×" for power in range(6)}
        controls = (
            choice("z", "plane", planes if depth > 1 else {}, plane),
            choice("Colour by", "colour", names, colour),
            choice("Zoom", "zoom", zooms, self.zoom),
        )
        numbers = {
            "chips": topology.num_chips,
            "cores": topology.num_cores,
            "replicas": drawn.num_replicas,
            "level": "dots" if has_dots(topology) else "chips",
            "colour": colour,
            "plane": "all" if plane < 0 else plane,
            "zoom": f"{self.zoom:g}",
        }
        named = functools.partial(_named, drawn, lines)
        svg = topology_drawing(topology, known[colour], plane=plane, zoom=self.zoom, named=named)
        return page(
            topology.name or "TPU topology",
            drawing_phrases(topology),
            controls,
            f'<div class="tpunb-mesh">{svg}</div>',
            legend_of(known[colour].legend) + legend,
            **numbers,
        )

    def _draw(self, _: Any = None) -> None:
        self.html = self._drawn()

    def _coloured_by_memory(
        self, lines: Sequence[list[str]], otherwise: Colouring
    ) -> tuple[Colouring, Markup]:
        """Return colours by the variables' memory, and what to say and offer below the drawing.

        Args:
            lines: What is said about each core; the memory is added.
            otherwise: The colours if the memory cannot be read.
        """
        assert self._memory is not None
        topology = self._description
        refresh = button("Refresh", "Read again what variables hold", "asked", self.asked + 1)
        try:
            sizes = np.asarray(self._memory(), np.float64)
            if sizes.shape != (topology.num_cores,):
                raise ValueError(f"{sizes.size} sizes for {topology.num_cores} cores")
        except Exception as error:  # a user's function may raise anything
            text = escaped(f"No answer: {type(error).__name__}: {error}")
            return otherwise, Markup(f'<span role="status">{text}</span>{refresh}')
        of_cores = [int(size) for size in sizes]
        for line, size in zip(lines, of_cores, strict=True):
            line.append(f"variables {size_phrase(topology, size)}")
        return by_memory(topology, of_cores), refresh


def _described(value: Any) -> TopologyDescription:
    """Return the description of anything that has a topology.

    Raises:
        TypeError: The value has no topology.
        ValueError: The description has no cores, or its parts differ in length.
    """
    description = _description_of(value)
    _check(description)
    return description


def _description_of(value: Any) -> TopologyDescription:
    if isinstance(value, TopologyDescription):
        return value
    if isinstance(value, str | int):
        value = accelerator(value)
    if isinstance(value, Accelerator):
        return describe_accelerator(value)
    if not isinstance(value, type):
        if hasattr(value, "core_assignment") and hasattr(value, "topology"):
            return describe_device_assignment(value)
        if hasattr(value, "mesh_shape") and hasattr(value, "device_coordinates"):
            return describe_topology(value)
        connection = value.describe() if callable(getattr(value, "describe", None)) else value
        topology = getattr(connection, "topology", None)
        if isinstance(topology, TopologyDescription):
            return topology
    raise TypeError(
        "A topology is shown of a TPU type such as 'v4-32', a topology, a device assignment or "
        f"a connection, not of a {type(value).__name__}"
    )


def _core_lines(topology: TopologyDescription, core: int) -> list[str]:
    """Return what the title of a core says about it, below its number."""
    x, y, z, slot = topology.coordinates[core]
    host, ordinal, replica = (
        each[core] for each in (topology.hosts, topology.ordinals, topology.replicas)
    )
    part = f", logical device {topology.logical_devices[core]}"
    usable = f", {byte_count(topology.usable_bytes)} usable" if topology.usable_bytes else ""
    needed = usable and f"program needs {byte_count(topology.needed_bytes)}"
    named = f"replica {replica}{part if topology.num_logical_devices > 1 else ''}"
    if replica == UNASSIGNED:
        named, needed = ("in no replica", "") if topology.num_replicas else ("", needed)
    lines = [
        f"chip ({x}, {y}, {z}){f', core {slot} of it' if topology.cores_per_chip > 1 else ''}",
        f"host {host}",
        f"/job:worker/replica:0/task:{host}/device:TPU:{ordinal}",
        named,
        f"HBM {byte_count(topology.hbm_bytes)}{usable}" if topology.hbm_bytes else "",
        needed,
    ]
    return [line for line in lines if line]


def _named(
    topology: TopologyDescription, lines: Sequence[Sequence[str]], cores: Sequence[int]
) -> tuple[str, str]:
    """Return the attributes and the title of a part of the drawing: what all its cores share."""
    of_cores = topology.replicas if topology.num_replicas else range(topology.num_cores)
    chosen = " ".join(str(of_cores[core]) for core in cores if of_cores[core] != UNASSIGNED)
    first, *others = (lines[core] for core in cores)
    common = [line for line in first if all(line in other for other in others)]
    title = f"Core{'s' if others else ''} {', '.join(map(str, cores))}"
    return f' data-part="{chosen}"', "\n".join([title, *common])


def _check(description: TopologyDescription) -> None:
    """Reject a description that no page could draw.

    Raises:
        ValueError: The columns differ in length, or a core is not on the mesh.
    """
    count = description.num_cores
    of_cores = (description.hosts, description.ordinals)
    of_replicas = (description.replicas, description.logical_devices)
    if not count or any(len(column) != count for column in (*of_cores, *of_replicas)):
        raise ValueError("A topology describes at least one core, and each of them in full.")
    places = np.asarray(description.coordinates)
    bounds = np.array([*description.mesh, description.cores_per_chip])
    if places.shape != (count, 4) or (places < 0).any() or (places >= bounds).any():
        raise ValueError(
            f"A core's coordinates (x, y, z, core) lie on the mesh {description.mesh} with "
            f"{description.cores_per_chip} cores a chip; some of these do not."
        )
