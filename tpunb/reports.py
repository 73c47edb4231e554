"""What magics say in words: facts in two columns, and sentences."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpunb.cells import CellResult, Steps
    from tpunb.session import Status

__all__ = ["CellReport", "Sentence", "StatusReport", "StepsReport"]

Bundle = dict[str, Any]


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
        from tpunb.draw.table import facts_html

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
        from tpunb.draw.wording import counted

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


class StepsReport(Report):
    """Says what a run of many steps has taken, for `--time`.

    Args:
        run: The run.
    """

    def __init__(self, run: Steps) -> None:
        self.run = run

    def facts(self) -> tuple[str, list[tuple[str, str]]]:
        """Times, and where they went."""
        times = self.run.timings
        rows = []
        if times.trace is not None:
            rows.append(("trace", _duration(times.trace)))
        if times.first_step is not None:
            rows.append(("first step", _duration(times.first_step)))
        if times.steady_step is not None:
            rows.append(("steady step", _duration(times.steady_step)))
        rows.append(("steps per loop", str(times.steps_per_loop)))
        rows.append(("in all", f"{times.steps:,} steps in {_duration(times.seconds)}"))
        if times.input_wait is not None:
            share = f"{times.input_wait:.0%} of the time"
            bound = ": prefetch, parallelise or cache the dataset" if times.input_wait > 0.2 else ""
            rows.append(("waiting for data", share + bound))
        return "tpu_run", rows


class Sentence:
    """Shows a sentence as it is."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def versions() -> list[tuple[str, str]]:
    """The versions of TensorFlow and of the Keras that the notebook uses."""
    modules = [(name, sys.modules.get(name)) for name in ("tensorflow", "keras", "tf_keras")]
    found = [(name, getattr(module, "__version__", None)) for name, module in modules]
    return [(name, version) for name, version in found if isinstance(version, str)]


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
