"""The live topology: the drawing, whose cores can be pointed at and selected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import traitlets

from tpunb._util.units import byte_count
from tpunb.display.describe.connection import memory_per_core
from tpunb.display.describe.topology_description import (
    TopologyDescription,
    describe_accelerator,
    describe_device_assignment,
    describe_topology,
)
from tpunb.display.draw.static_forms import mimebundle
from tpunb.display.draw.topology_colours import Colouring, by_memory, colourings, size_phrase
from tpunb.display.draw.topology_svg import TopologyDrawing, drawing_phrases, topology_drawing
from tpunb.display.widgets.live_widget import LiveWidget
from tpunb.display.widgets.page_data import es_module, pack
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
        zoom: The size of the drawing, as a multiple of the size that fits, 1 to 40.

    Raises:
        TypeError: The value has no topology, or `memory` cannot be called.
        AcceleratorTypeError: The TPU type does not exist.
        ValueError: The cores of a description do not fit on its mesh.
    """

    _esm = es_module("topology.js")

    header = traitlets.Dict().tag(sync=True)
    cores = traitlets.Bytes().tag(sync=True)
    drawing = traitlets.Unicode().tag(sync=True)
    colour = traitlets.Enum(["host", "replica", "logical", "memory", "program"], "host").tag(
        sync=True
    )
    plane = traitlets.Int(-1, min=-1).tag(sync=True)
    zoom = traitlets.Float(1.0, min=1.0, max=40.0).tag(sync=True)

    def __init__(
        self, value: Any, *, memory: Memory | None = None, link: str = "", **state: Any
    ) -> None:
        if memory is not None and not callable(memory):
            raise TypeError(f"memory is a function or None, not a {type(memory).__name__}")
        self._description = description = _described(value)
        self._strategy = getattr(value, "strategy", None)
        self._memory = memory if self._strategy is None else memory or self._variables
        header, cores, drawing = _payload(description, connected=self._memory is not None)
        if description.usable_bytes:
            state = {"colour": "program", **state}
        super().__init__(header=header, cores=cores, drawing=drawing, link=link, **state)
        self.on_msg(self._on_request)

    @property
    def description(self) -> TopologyDescription:
        """The displayed description; it can be set to anything that can be described."""
        return self._description

    @description.setter
    def description(self, value: Any) -> None:
        description = _described(value)
        header, cores, drawing = _payload(description, connected=self._memory is not None)
        if description.usable_bytes and not self._description.usable_bytes:
            self.colour = "program"
        mesh_differs = description.mesh != self._description.mesh
        self._description = description
        with self.hold_sync():
            self.header, self.cores, self.drawing = header, cores, drawing
            known = description.num_replicas or description.num_cores
            self.selected = [replica for replica in self.selected if replica < known]
            if mesh_differs:
                self.plane, self.zoom = -1, 1.0

    def update(self, value: Any) -> bool:
        """Show another topology in place; settings that still fit stay."""
        self.description = value
        return True

    def static_bundle(self) -> dict[str, Any]:
        """Return the topology as text and as a picture in HTML."""
        return dict(mimebundle(self._description))

    def _variables(self) -> Sequence[int]:
        """Return the memory of the connection's variables on each core."""
        return memory_per_core(self._strategy, self._description)

    def _on_request(self, _: Any, content: Any, buffers: Any) -> None:
        """Answer a view that requests the memory of variables."""
        del buffers
        if self._memory is None or content != {"request": "memory"}:
            return
        try:
            sizes = np.asarray(self._memory(), np.float64)
            if sizes.shape != (self._description.num_cores,):
                raise ValueError(f"{sizes.size} sizes for {self._description.num_cores} cores")
        except Exception as error:  # a user's function may raise anything, and the view waits
            self.send({"memory": None, "error": f"{type(error).__name__}: {error}"})
            return
        colouring = by_memory(self._description, sizes.astype(np.int64).tolist())
        different, held = np.unique(sizes, return_inverse=True)
        phrases = [f"variables {size_phrase(self._description, int(size))}" for size in different]
        layout, buffer = pack({"held": _small(held), "places": _small(colouring.places)})
        self.send({"memory": {**_words(colouring), "sizes": phrases, "layout": layout}}, [buffer])


def _described(value: Any) -> TopologyDescription:
    """Return the description of anything that has a topology."""
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


def _payload(
    description: TopologyDescription, *, connected: bool
) -> tuple[dict[str, Any], bytes, str]:
    """Return words and sizes as JSON, the cores' properties as one buffer, and the drawing.

    Args:
        description: The topology to show.
        connected: Whether there is a strategy, which runs a replica on every core
            unless there is a device assignment.
    """
    _check(description)
    facts, drawing = drawing_phrases(description), topology_drawing(description)
    if connected and not description.num_replicas:  # the facts and labels do not repeat it
        cores = range(description.num_cores)
        description = replace(description, replicas=tuple(cores), logical_devices=(0,) * len(cores))
    usable = f", {byte_count(description.usable_bytes)} usable" if description.usable_bytes else ""
    hbm = f"HBM {byte_count(description.hbm_bytes)}{usable}" if description.hbm_bytes else ""
    colours = colourings(description)
    layout, buffer = pack(_columns(description, drawing, colours))
    header = {
        "name": description.name or "TPU topology",
        "facts": facts,
        "mesh": list(description.mesh),
        "cores_per_chip": description.cores_per_chip,
        "hbm": hbm,
        "hosts": description.num_hosts,
        "replicas": description.num_replicas,
        "logical_devices": description.num_logical_devices,
        "memory": connected,
        "program": f"program needs {byte_count(description.needed_bytes)}" if usable else "",
        "level": drawing.level,
        "page": list(drawing.page),
        "planes": [list(plane) for plane in drawing.planes],
        "core": list(drawing.core),
        "colours": [_words(colouring) for colouring in colours],
        "columns": layout,
    }
    return header, buffer, drawing.svg


def _words(colouring: Colouring) -> dict[str, Any]:
    """Return a colouring without the cores' own colours."""
    return {name: value for name, value in asdict(colouring).items() if name != "places"}


def _columns(
    description: TopologyDescription, drawing: TopologyDrawing, colours: Sequence[Colouring]
) -> dict[str, npt.NDArray[Any]]:
    """Return the cores' properties, in as few bytes as possible.

    A core's position is a single number: `((z * height + y) * width + x) * cores + core`.
    """
    width, height, _ = description.mesh
    x, y, z, core = np.asarray(description.coordinates, np.int64).T
    columns: dict[str, Any] = {
        "place": ((z * height + y) * width + x) * description.cores_per_chip + core,
        "host": description.hosts,
        "ordinal": description.ordinals,
    }
    if description.num_replicas:
        columns |= {"replica": description.replicas, "logical": description.logical_devices}
    columns |= {f"colour.{colouring.name}": colouring.places for colouring in colours}
    small = {name: _small(column) for name, column in columns.items()}
    return {"corner": drawing.corners.reshape(-1), **small}


def _small(column: Sequence[int] | npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return whole numbers in the smallest type that has them all."""
    numbers = np.asarray(column)
    least, most = int(numbers.min()), int(numbers.max())
    return numbers.astype(np.min_scalar_type(-most - 1 if least < 0 else most))


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
