"""Displays of values: live if a front end runs widgets, otherwise in their static form."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from IPython.display import display

from tpunb.errors import AcceleratorTypeError, CellError

if TYPE_CHECKING:
    from tpunb.connection.tpu_connection import TpuConnection
    from tpunb.display.widgets.live_widget import AutoDisplays, LiveWidget
    from tpunb.training.history import History

Bundle = dict[str, Any]
Forms = Bundle | tuple[Bundle, Bundle]
"""Forms by MIME type, alone or with their metadata."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Described:
    """A value that shows a description.

    Attributes:
        description: A description from `tpunb.display.describe`.
        connection: The connection that the description belongs to, if any.
    """

    description: Any
    connection: TpuConnection | None = None

    def __repr__(self) -> str:
        return str(_static(self.description)["text/plain"])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Bundle:
        del include, exclude
        return _static(self.description)


def refuse_targets(targets: Sequence[slice], replicas: int) -> None:
    """Refuse chosen replicas that do not exist, before a cell runs.

    Raises:
        CellError: One of the replicas does not exist.
    """
    from tpunb.display.describe.replicas import chosen_ids

    try:
        chosen_ids(targets, replicas)
    except IndexError as error:
        raise CellError(str(error), fix=f"-t {replicas - 1}, the last one.") from None


def chosen_replicas(value: Any, targets: Sequence[slice]) -> Described:
    """Show a value of only some replicas, which exist."""
    from tpunb.display.describe.replicas import describe_chosen_replicas

    return Described(describe_chosen_replicas(value, targets))


def show(value: Any) -> LiveWidget | None:
    """Show a value live, even if its earlier display was frozen.

    Example:
        >>> widget = tpunb.show("v5e-4")
        v5e-4 · 4 chips · 4 cores · 1 host · 16 GiB HBM per core, 64 GiB in all
        ...

        In a notebook, this is a picture of the chips and cores.

    Args:
        value: A distributed value, a variable, a tensor, or tuples, lists and
            mappings of these; a topology, a device assignment, a connection or a
            TPU type such as `"v4-32"`; a training history or the record that Keras's `fit`
            returns; a list of these, or a dict with a name for each, to compare the runs; a
            compiled program or a list of them; a drawing, such as `tpunb.draw.chip` returns; or a
            frozen tpunb widget.

    Returns:
        The displayed widget; its `freeze` replaces it by the static form.
        If widgets cannot run, the static form is shown at once. None for a drawing.
    """
    from tpunb.connection.tpu_connection import TpuConnection, latest_connection
    from tpunb.display import widgets
    from tpunb.display.drawing import Drawing
    from tpunb.display.widgets.live_widget import LiveWidget

    connection = value if isinstance(value, TpuConnection) else latest_connection()
    link = connection.link if connection is not None else ""
    runs, programs = _runs(value), _programs(value)
    widget: LiveWidget
    if isinstance(value, Drawing):
        display(value)
        return None
    if isinstance(value, LiveWidget):
        widget = value
    elif runs is not None:
        widget = widgets.CurvesWidget(runs[0], names=runs[1], link=link)
    elif programs:
        widget = widgets.ProgramsWidget(programs, link=link)
    elif _is_topology(value):
        widget = widgets.TopologyWidget(value, link=link)
    else:
        widget = widgets.ReplicasWidget(value, link=link)
    widget.show_once()
    return widget


def _programs(value: Any) -> list[Any]:
    """Return the programs in a value; an empty list for other values."""
    from tpunb.compiler.program import TpuProgram, TpuPrograms

    several = list(value) if isinstance(value, list | tuple) else [value]
    if not all(isinstance(item, TpuProgram | TpuPrograms) for item in several):
        return []
    groups = [[item] if isinstance(item, TpuProgram) else item for item in several]
    return [program for group in groups for program in group]


def _runs(value: Any) -> tuple[list[History], list[str] | None] | None:
    """Return the histories in a value, and the names that it gives them; None for other values."""
    from tpunb.training.fit_history import history_of_fit, is_fit_history
    from tpunb.training.history import History

    names = [str(name) for name in value] if isinstance(value, dict) else None
    several = value.values() if isinstance(value, dict) else value
    several = list(several) if isinstance(value, dict | list | tuple) else [value]
    if not several or not all(isinstance(run, History) or is_fit_history(run) for run in several):
        return None
    runs = [run if isinstance(run, History) else history_of_fit(run) for run in several]
    return runs, names


def _is_topology(value: Any) -> bool:
    from tpunb.connection.tpu_connection import TpuConnection
    from tpunb.display.describe.topology_description import TopologyDescription
    from tpunb.tpu.types import Accelerator, accelerator

    if isinstance(value, str):
        try:
            accelerator(value)
        except AcceleratorTypeError:
            return False
        return True
    # TensorFlow's topology or device assignment, or an object with the same attributes.
    duck = hasattr(value, "device_coordinates") or hasattr(value, "core_assignment")
    return duck or isinstance(value, Accelerator | TopologyDescription | TpuConnection)


class Displays:
    """The displays of one shell's values: live if the shell's front end runs widgets.

    Args:
        connection: Returns the open connection, or None.
    """

    def __init__(self, connection: Callable[[], TpuConnection | None]) -> None:
        self._connection = connection
        self._automatic: AutoDisplays | None = None

    def introduce(self, connection: TpuConnection, shell: Any) -> None:
        """Show a new connection, with the kind of TPU first.

        The cell's result does not show the connection again. A terminal writes `Out[3]:` before it
        asks for the result's form, and so gets the name of the connection.
        """
        from tpunb.display.draw.connection_text import introduction_html, introduction_text
        from tpunb.display.widgets import frontend

        described = connection.describe()
        text, html = introduction_text(described), introduction_html(described)
        display({"text/plain": text, "text/html": html}, raw=True)
        display(Described(described.topology, connection))
        formatter = shell.display_formatter
        if frontend.is_kernel():
            printers = formatter.ipython_display_formatter.type_printers
            printers[type(connection)] = lambda _: None
        else:
            printers = formatter.mimebundle_formatter.type_printers
            printers[type(connection)] = lambda value, **_: {"text/plain": repr(value)}

        def end(*_: Any) -> None:
            printers.pop(type(connection), None)
            shell.events.unregister("post_run_cell", end)

        shell.events.register("post_run_cell", end)

    def formatters(self) -> tuple[tuple[str, str, Callable[..., Forms | None]], ...]:
        """Return the module, class and mimebundle function of each type that gets a display.

        The types are named rather than imported, because TensorFlow may not be loaded yet.
        """
        return (
            *((*name, self.of_values) for name in _DISTRIBUTED),
            ("tensorflow.python.tpu.topology", "Topology", self.of_topology),
            ("tensorflow.python.tpu.device_assignment", "DeviceAssignment", self.of_topology),
            ("tpunb.notebook.displays", "Described", self.of_described),
            ("tpunb.training.history", "History", self.of_history),
            ("tpunb.compiler.program", "TpuProgram", self.of_programs),
            ("tpunb.compiler.program", "TpuPrograms", self.of_programs),
            ("keras.src.backend.common.variables", "Variable", self.of_values),
            *(("builtins", kind, self.of_nest) for kind in ("tuple", "list", "dict")),
        )

    def of_values(self, value: Any, **_: Any) -> Forms:
        """Return the display of a value with a part on each replica."""
        from tpunb.display.describe.replicas import describe_replica_values

        return self._live("ReplicasWidget", value) or _static(describe_replica_values(value))

    def of_nest(self, value: Any, **_: Any) -> Forms | None:
        """Return the display of a tuple, list or dict that holds distributed values; else None."""
        return self.of_values(value) if _holds_distributed(value, depth=3) else None

    def nest_printer(self, before: Callable[..., Any] | None) -> Callable[..., None]:
        """Return an IPython printer for tuples, lists or dicts; others are printed as before."""

        def print_nest(value: Any, printer: Any, cycle: bool) -> None:
            if not cycle and _holds_distributed(value, depth=3):
                from tpunb.display.describe.replicas import describe_replica_values
                from tpunb.display.draw.replicas.text import replicas_text

                printer.text(replicas_text(describe_replica_values(value)))
            elif before is not None:
                before(value, printer, cycle)
            else:
                printer.text(repr(value))

        return print_nest

    def of_topology(self, value: Any, **_: Any) -> Forms:
        """Return the display of TensorFlow's topology or device assignment."""
        from tpunb.display.describe.topology_description import (
            describe_device_assignment,
            describe_topology,
        )

        is_assignment = hasattr(value, "core_assignment")
        describe = describe_device_assignment if is_assignment else describe_topology
        return self._live("TopologyWidget", value) or _static(describe(value))

    def of_described(self, value: Described, **_: Any) -> Forms:
        """Return the display of a description."""
        from tpunb.display.describe.replicas import ReplicaValuesDescription
        from tpunb.display.describe.topology_description import TopologyDescription

        live: Forms | None = None
        if isinstance(value.description, TopologyDescription):
            of = value.connection
            memory = of.memory_per_core if of is not None else None
            # Another TPU's cores do not belong to the open connection.
            link = of.link if of is not None else ""
            live = self._live("TopologyWidget", value.description, memory=memory, link=link)
        elif isinstance(value.description, ReplicaValuesDescription):
            live = self._live("ReplicasWidget", value.description)
        return live or _static(value.description)

    def of_history(self, value: Any, **_: Any) -> Forms:
        """Return the display of a training history."""
        from tpunb.display.describe.history_description import describe_history

        if live := self._live("CurvesWidget", value):
            return live
        from tpunb.display.draw.curves_text import last_values_text
        from tpunb.display.widgets import frontend

        description = describe_history(value)
        forms = frontend.for_terminal(_static(description), last_values_text(description))
        return forms, frontend.with_alternative_text(forms, {})

    def of_programs(self, value: Any, **_: Any) -> Forms:
        """Return the display of compiled programs."""
        return self._live("ProgramsWidget", value) or dict(value._repr_mimebundle_())

    def close(self) -> None:
        """Release the values that live displays hold."""
        if self._automatic is not None:
            self._automatic.close()

    def _live(self, name: str, value: Any, **state: Any) -> Forms | None:
        """Return the live form with the static forms; None if the front end shows no widgets."""
        # Import at the first display, because NumPy alone would double the time of loading.
        from tpunb.display.widgets import frontend

        if not frontend.shows_widgets():
            return None
        from tpunb.display import widgets
        from tpunb.display.widgets.live_widget import AutoDisplays

        connection = self._connection()
        state.setdefault("link", connection.link if connection is not None else "")
        kind = getattr(widgets, name)
        self._automatic = self._automatic or AutoDisplays()
        widget = self._automatic.widget(kind, value, lambda: kind(value, **state))
        return widget.live_bundle() if widget is not None else None


def _static(description: Any) -> Bundle:
    from tpunb.display.draw.static_forms import mimebundle

    return dict(mimebundle(description))


_DISTRIBUTED = (
    ("tensorflow.python.distribute.values", "DistributedValues"),
    ("tpunb.virtual.per_replica", "PerReplica"),
)


def _holds_distributed(value: Any, depth: int) -> bool:
    """Return whether there is a distributed value among the first items of a structure."""
    if isinstance(value, dict | tuple | list):
        items = value.values() if isinstance(value, dict) else value
        return depth > 0 and any(
            _holds_distributed(item, depth - 1) for item in itertools.islice(items, 64)
        )
    return any((kind.__module__, kind.__name__) in _DISTRIBUTED for kind in type(value).__mro__)
