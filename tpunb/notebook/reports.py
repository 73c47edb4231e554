"""Reports of magics: facts in two columns, and sentences."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tpunb._util.plain_text import aligned, plain, shortened
from tpunb._util.units import byte_count, counted, duration, number_text
from tpunb.connection.dry_report import dry_run_of
from tpunb.connection.tpu_connection import is_of_tensorflow
from tpunb.machine.framework import installed_frameworks
from tpunb.tpu.families import HARDWARE
from tpunb.tpu.types import accelerator

if TYPE_CHECKING:
    from tpunb.cells.step_run import StepRun
    from tpunb.notebook.session import Session

Bundle = dict[str, Any]
_MAX_ERROR = 300
_MOST_ARRAYS = 5


class Report:
    """Facts in two columns, under a headline.

    Args:
        headline: The headline.
        rows: The facts, each with its name.
        below: What is shown below, as text and as HTML.
    """

    def __init__(
        self,
        headline: str,
        rows: Iterable[tuple[str, str]],
        below: tuple[str, str] = ("", ""),
    ) -> None:
        self.headline, self.rows, self.below = headline, list(rows), below

    def __repr__(self) -> str:
        facts = [self.headline, *aligned(self.rows, "  ")]
        return plain("\n".join([*facts, *filter(None, [self.below[0]])]))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Bundle:
        from tpunb.display.draw.connection_text import facts_html

        del include, exclude
        return {
            "text/plain": repr(self),
            "text/html": facts_html(self.headline, self.rows) + self.below[1],
        }


def status_report(session: Session) -> Report:
    """Report the session's connection, its age and its contents."""
    from tpunb.display.draw.connection_text import arithmetic_rows

    error, connection = session.last_error, session.open_connection
    failed = [("last error", shortened(error, _MAX_ERROR))] if error else []
    if connection is None:
        missing = "neither TensorFlow nor JAX is installed"
        how = "run %tpu_connect" if installed_frameworks() else missing
        return Report(f"Not connected: {how}", failed)
    if not is_of_tensorflow(connection):
        return _jax_report(session, connection, failed)
    described = connection.describe()
    on_a_core = max(connection.memory_per_core(), default=0)  # on the fullest core
    modules = [(name, sys.modules.get(name)) for name in ("tensorflow", "keras", "tf_keras")]
    versions = [(name, getattr(module, "__version__", None)) for name, module in modules]
    rows = [
        ("replicas", str(described.replicas)),
        ("cores", f"{described.cores} on {counted(described.hosts, 'host')}"),
        *arithmetic_rows(described),
        ("connected for", duration(time.monotonic() - session.connected_at)),
        ("variables", f"{byte_count(on_a_core)} on each core"),
        ("cells traced", str(connection.cells.traces)),
        *((name, version) for name, version in versions if isinstance(version, str)),
        *failed,
    ]
    return Report(f"Connection to {connection.phrase}", rows)


def _jax_report(session: Session, connection: Any, failed: list[tuple[str, str]]) -> Report:
    """Report a virtual TPU for JAX: its programs, and the memory of its devices."""
    limit = HARDWARE[accelerator(connection.tpu).family].usable_bytes
    used = max(connection.memory_per_core())
    arrays = connection.live_arrays()
    programs = connection.programs
    rows = [
        ("devices", str(connection.describe().cores)),
        ("connected for", duration(time.monotonic() - session.connected_at)),
        ("memory", f"{byte_count(used)} of {byte_count(limit)} on the fullest device"),
        *((array.name or "without a name", array.phrase) for array in arrays[:_MOST_ARRAYS]),
        ("programs judged", str(len(programs))),
        *(("last program", program.headline) for program in programs[-1:]),
        ("jax", sys.modules["jax"].__version__),
        *failed,
    ]
    return Report(f"Connection to {connection.phrase}", rows, _dry_run(connection))


def _dry_run(connection: Any) -> tuple[str, str]:
    """Return the report of a dry run as text and as HTML; both are empty without one."""
    if (found := dry_run_of(connection)) is None:
        return "", ""
    from tpunb.display.draw.programs.dry_run import dry_run_html, dry_run_text

    return dry_run_text(*found), dry_run_html(*found)


def cell_report(run: StepRun, *, timed: bool, verbose: bool) -> Report:
    """Describe how a cell ran, for `--time` and `--verbose`: times, and why it was traced."""
    rows = []
    trace = run.timings.trace
    step = duration((run.timings.first_step or 0.0) - (trace or 0.0))
    if timed:
        rows += (
            [("step", step)]
            if trace is None
            else [("trace", duration(trace)), ("first step", step)]
        )
    if verbose:
        rows.append(("traced", run.trace_reason or "no, as before"))
        rows += [(name, cut) for name, cut in run.cuts.items()]
        if run.withheld:
            rows.append(("stays in the cell", ", ".join(run.withheld)))
    return Report("tpu_run", rows)


def steps_report(run: StepRun) -> Report:
    """Describe how long a run of many steps took, and where the time went, for `--time`."""
    times = run.timings
    seconds_of = {
        "trace": times.trace,
        "first step": times.first_step,
        "steady step": times.steady_step,
    }
    rows = [
        (name, duration(seconds)) for name, seconds in seconds_of.items() if seconds is not None
    ]
    rows.append(("steps per loop", str(times.steps_per_loop)))
    rows.append(("in all", f"{counted(times.steps, 'step')} in {duration(times.seconds)}"))
    if times.input_wait is not None:
        bound = ": prefetch, parallelise or cache the dataset" if times.input_wait > 0.2 else ""
        rows.append(("waiting for data", f"{times.input_wait:.0%} of the time{bound}"))
    return Report("tpu_run", rows)


def ran_line(run: StepRun) -> str:
    """Return the line under a cell that shows no value: combined names, replicas and the time."""
    names = dict.fromkeys([*(run.settings.reduce or ()), *(run.settings.gather or ())])
    assigned = run.assigned
    combined = {name: assigned[name] for name in names if name in assigned}
    how = "run as traced before" if run.trace_reason is None else "traced and run"
    replicas = run.replicas
    facts = []
    for name, value in combined.items():
        shape = getattr(value, "shape", None)
        if shape is not None and not len(shape):
            facts.append(f"{name} {number_text(value.numpy().item())}")
            continue
        dtype = getattr(getattr(value, "dtype", None), "name", type(value).__name__)
        facts.append(f"{name} {dtype}" if shape is None else f"{name} {dtype} {list(shape)}")
    facts += [f"{counted(replicas, 'replica')}, {how}", duration(run.timings.seconds)]
    return " · ".join(facts)


class Sentence:
    """A sentence that is shown without quotes."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return plain(self.text)
