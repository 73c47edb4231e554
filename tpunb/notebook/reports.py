"""The reports of magics: facts in two columns, and sentences."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from tpunb._util.plain_text import plain, shortened
from tpunb._util.units import byte_count, counted, duration

if TYPE_CHECKING:
    from tpunb.cells import CellResult, RunSettings, Steps
    from tpunb.notebook.session import Status

Bundle = dict[str, Any]
_MAX_ERROR = 300


class Report:
    """Facts in two columns, under a headline."""

    def facts(self) -> tuple[str, list[tuple[str, str]]]:
        """The headline and the rows."""
        raise NotImplementedError

    def __repr__(self) -> str:
        headline, rows = self.facts()
        width = max((len(name) for name, _ in rows), default=0)
        lines = [headline, *(f"  {name:<{width}}  {value}" for name, value in rows)]
        return plain("\n".join(lines))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Bundle:
        from tpunb.display.draw.connection_text import facts_html

        del include, exclude
        return {"text/plain": repr(self), "text/html": facts_html(*self.facts())}


class StatusReport(Report):
    """Reports the session's connection and what it holds."""

    def __init__(self, status: Status) -> None:
        self.status = status

    def facts(self) -> tuple[str, list[tuple[str, str]]]:
        """The connection, its age and its contents."""
        from tpunb.display.draw.connection_text import arithmetic_rows

        status = self.status
        failed = (
            [("last error", shortened(status.last_error, _MAX_ERROR))] if status.last_error else []
        )
        if status.connection is None:
            return "Not connected: run %tpu_connect", failed
        described = status.connection.describe()
        headline = repr(status.connection).strip("<>")
        return headline[0].upper() + headline[1:], [
            ("replicas", str(described.replicas)),
            ("cores", f"{described.cores} on {counted(described.hosts, 'host')}"),
            *arithmetic_rows(described),
            ("connected for", duration(status.uptime)),
            ("variables", f"{byte_count(status.bytes_per_core)} on each core"),
            ("cells traced", str(status.cells_traced)),
            *((name, version) for name, version in versions()),
            *failed,
        ]


class CellReport(Report):
    """Reports how a cell ran, for `--time` and `--verbose`."""

    def __init__(self, result: CellResult, *, timed: bool, verbose: bool) -> None:
        self.result = result
        self.timed = timed
        self.verbose = verbose

    def facts(self) -> tuple[str, list[tuple[str, str]]]:
        """Times, and why the cell was traced."""
        rows = []
        if self.timed:
            rows += self._times()
        if self.verbose:
            rows.append(("traced", self.result.trace_reason or "no, as before"))
            if self.result.withheld:
                rows.append(("stays in the cell", ", ".join(self.result.withheld)))
        return "tpu_run", rows

    def _times(self) -> list[tuple[str, str]]:
        timings = self.result.timings
        if timings.trace is None:
            return [("step", duration(timings.step))]
        return [("trace", duration(timings.trace)), ("first step", duration(timings.step))]


def ran_line(result: CellResult, settings: RunSettings, replicas: int) -> str:
    """The line under a cell that shows no value: combined names, replicas and the time."""
    names = dict.fromkeys([*(settings.reduce or ()), *(settings.gather or ())])
    combined = {name: result.assigned[name] for name in names if name in result.assigned}
    timings = result.timings
    seconds = timings.step + (timings.trace or 0.0)
    how = "traced and run" if result.traced else "run as traced before"
    facts = [f"{name} {_in_short(value)}" for name, value in combined.items()]
    return " · ".join([*facts, f"{counted(replicas, 'replica')}, {how}", duration(seconds)])


def _in_short(value: Any) -> str:
    """A number as such, another tensor by its dtype and shape."""
    from tpunb.display.draw.number_format import number_text

    shape = getattr(value, "shape", None)
    if shape is None or len(shape):
        dtype = getattr(getattr(value, "dtype", None), "name", type(value).__name__)
        return f"{dtype} {list(shape)}" if shape is not None else str(dtype)
    return number_text(value.numpy().item())


class StepsReport(Report):
    """Reports how long a run of many steps has taken, for `--time`."""

    def __init__(self, run: Steps) -> None:
        self.run = run

    def facts(self) -> tuple[str, list[tuple[str, str]]]:
        """Times, and where they went."""
        times = self.run.timings
        rows = []
        if times.trace is not None:
            rows.append(("trace", duration(times.trace)))
        if times.first_step is not None:
            rows.append(("first step", duration(times.first_step)))
        if times.steady_step is not None:
            rows.append(("steady step", duration(times.steady_step)))
        rows.append(("steps per loop", str(times.steps_per_loop)))
        rows.append(("in all", f"{counted(times.steps, 'step')} in {duration(times.seconds)}"))
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
        return plain(self.text)


def versions() -> list[tuple[str, str]]:
    """The versions of TensorFlow and of the Keras that the notebook uses."""
    modules = [(name, sys.modules.get(name)) for name in ("tensorflow", "keras", "tf_keras")]
    found = [(name, getattr(module, "__version__", None)) for name, module in modules]
    return [(name, version) for name, version in found if isinstance(version, str)]
