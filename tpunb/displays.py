"""What magics return: objects that show themselves in a notebook and a terminal."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tpunb.errors import CellError

if TYPE_CHECKING:
    from tpunb.cells import CellResult
    from tpunb.session import Status

__all__ = [
    "FORMATTERS",
    "CellReport",
    "Described",
    "Sentence",
    "StatusReport",
    "chosen_replicas",
    "nest_bundle",
]

Bundle = dict[str, Any]


class Described:
    """Shows a description.

    Args:
        description: One of those in `tpunb.describe`.
    """

    def __init__(self, description: Any) -> None:
        self.description = description

    def __repr__(self) -> str:
        return str(_bundle(self.description)["text/plain"])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Bundle:
        del include, exclude
        return _bundle(self.description)


class Report:
    """Facts in two columns, under a headline."""

    def facts(self) -> tuple[str, list[tuple[str, str]]]:
        """The headline and the rows."""
        raise NotImplementedError

    def __repr__(self) -> str:
        headline, rows = self.facts()
        width = max((len(name) for name, _ in rows), default=0)
        return "\n".join([headline, *(f"  {name:<{width}}  {value}" for name, value in rows)])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Bundle:
        from tpunb.show.table import facts_html

        del include, exclude
        return {"text/plain": repr(self), "text/html": facts_html(*self.facts())}


class StatusReport(Report):
    """Shows how things stand.

    Args:
        status: The session's status.
    """

    def __init__(self, status: Status) -> None:
        self.status = status

    def facts(self) -> tuple[str, list[tuple[str, str]]]:
        """What is connected, for how long, and what it holds."""
        status = self.status
        failed = [("last error", status.last_error)] if status.last_error else []
        if status.connection is None:
            return "Not connected: run %tpu_connect", failed
        from tpunb.show.wording import counted

        described = status.connection.describe()
        headline = repr(status.connection).strip("<>")
        return headline[0].upper() + headline[1:], [
            ("replicas", str(described.replicas)),
            ("cores", f"{described.cores} on {counted(described.hosts, 'host')}"),
            ("connected for", _duration(status.uptime)),
            ("variables", f"{_memory(status.bytes_per_core)} on each core"),
            ("cells traced", str(status.cells_traced)),
            *((name, version) for name, version in versions()),
            *failed,
        ]


class CellReport(Report):
    """Says how a cell ran, for `--time` and `--verbose`.

    Args:
        result: What the run left behind.
        verbose: Whether to say why it was traced and what stayed inside.
    """

    def __init__(self, result: CellResult, *, verbose: bool) -> None:
        self.result = result
        self.verbose = verbose

    def facts(self) -> tuple[str, list[tuple[str, str]]]:
        """Times, and why the cell was traced."""
        rows = []
        timings = self.result.timings
        if timings is not None:
            if timings.trace is not None:
                rows.append(("trace", _duration(timings.trace)))
            what = "step" if timings.trace is None else "first step"
            rows.append((what, _duration(timings.step)))
        if self.verbose:
            rows.append(("traced", self.result.trace_reason or "no, as before"))
            if self.result.withheld:
                rows.append(("stays in the cell", ", ".join(self.result.withheld)))
        return "tpu_run", rows


class Sentence:
    """Shows a sentence as it is."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def chosen_replicas(value: Any, targets: Sequence[slice]) -> Described:
    """Shows a value of only some replicas.

    Raises:
        CellError: None of them exists.
    """
    from tpunb.describe import describe_replica_values, only_replicas

    try:
        return Described(only_replicas(describe_replica_values(value), targets))
    except IndexError as error:
        raise CellError("-t names no replica that exists.", mend=str(error)) from None


def versions() -> list[tuple[str, str]]:
    """The versions of TensorFlow and of the Keras that the notebook uses."""
    modules = [(name, sys.modules.get(name)) for name in ("tensorflow", "keras", "tf_keras")]
    found = [(name, getattr(module, "__version__", None)) for name, module in modules]
    return [(name, version) for name, version in found if isinstance(version, str)]


def _bundle(description: Any) -> Bundle:
    from tpunb.show import mimebundle

    return dict(mimebundle(description))


def _bundle_of(describe: str, value: Any, **_: Any) -> Bundle:
    # Imported at the first display: NumPy alone would double the time of loading.
    from tpunb import describe as descriptions

    return _bundle(getattr(descriptions, describe)(value))


_TYPES = (
    ("tensorflow.python.distribute.values", "DistributedValues", "describe_replica_values"),
    ("tensorflow.python.tpu.topology", "Topology", "describe_topology"),
    ("tensorflow.python.tpu.device_assignment", "DeviceAssignment", "describe_device_assignment"),
)


def nest_bundle(value: Any, **_: Any) -> Bundle | None:
    """The display of a tuple, list or dict with distributed values in it; else None."""
    if not _holds_distributed(value, depth=3):
        return None
    return _bundle_of("describe_replica_values", value)


def _holds_distributed(value: Any, depth: int) -> bool:
    """Whether there is a distributed value among the first items of a structure."""
    if isinstance(value, dict | tuple | list):
        items = value.values() if isinstance(value, dict) else value
        return depth > 0 and any(
            _holds_distributed(item, depth - 1) for item in itertools.islice(items, 64)
        )
    module, name, _ = _TYPES[0]
    return any(kind.__name__ == name and kind.__module__ == module for kind in type(value).__mro__)


FORMATTERS: tuple[tuple[str, str, Callable[..., Bundle]], ...] = (
    *((module, name, functools.partial(_bundle_of, describe)) for module, name, describe in _TYPES),
    # A description already, and a tuple, which IPython would show as one.
    ("tpunb.describe.annotations", "Annotations", lambda value, **_: _bundle(value)),
)
"""Module, class and mimebundle of the types that get a display, TensorFlow's first.

They are named rather than imported: TensorFlow may not be loaded yet.
"""


def _duration(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes = int(seconds // 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _memory(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GiB"
