"""The state that the magics of one shell share: the connection, its names, the last error."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from tpunb import framework
from tpunb._util.interrupts import StopButton, explaining_interrupts
from tpunb.connection.tpu_connection import is_of_tensorflow
from tpunb.display.live_progress import CellDisplay, CompilationDisplay, RunDisplay
from tpunb.errors import CellError, NotConnectedError, WorkerError
from tpunb.errors.base import hint
from tpunb.machine.framework import JAX, installed_frameworks
from tpunb.machine.import_tensorflow import require_tensorflow
from tpunb.notebook.bound_names import BoundNames, notice_of_kept, notice_of_strategy

if TYPE_CHECKING:
    from tpunb.cells.settings import CompileSettings, RunSettings
    from tpunb.cells.step_run import StepRun
    from tpunb.compiler.program import TpuProgram, TpuPrograms
    from tpunb.connection.plan import Plan
    from tpunb.connection.tpu_connection import TpuConnection
    from tpunb.errors.catalogue import Explanation
    from tpunb.tensorflow.checks.rule_check import CheckReport
    from tpunb.tensorflow.connection.connection import Connection
    from tpunb.tensorflow.virtual.runtime.stoppable import StoppableCalls

_AGAIN = "Already connected: the connection is used again."
_WORKER_GONE = "14"
"""The catalogue's entry for TensorFlow's errors about values whose worker is gone."""
_UNCHECKED = "before the check was done; nothing was run."


class Session:
    """One shell's connection.

    Args:
        namespace: The shell's namespace. Connecting binds the strategy in it.

    Attributes:
        connected_at: The time of connecting, by `time.monotonic`.
        last_error: The last error that a cell raised, as one line; or None.
        last_explanation: The last explanation that was shown under an error; or None.
    """

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace
        self.last_error: str | None = None
        self.last_explanation: Explanation | None = None
        self._connection: TpuConnection | None = None
        self.connected_at = 0.0
        self._names = BoundNames(namespace)
        self._runs = 0
        self._paused: StepRun | None = None
        self._last_closed = ""  # the target of the last connection whose values went with it

    @property
    def connection(self) -> TpuConnection:
        """The connection.

        Raises:
            NotConnectedError: No connection is open.
        """
        if (connection := self.open_connection) is None:
            raise _not_connected()
        return connection

    @property
    def open_connection(self) -> TpuConnection | None:
        """The connection; None if no connection is open."""
        connection = self._connection
        return None if connection is None or connection.closed else connection

    def require_framework(self) -> None:
        """Check that a framework is installed on whose replicas cells can run.

        Raises:
            ConnectError: Neither TensorFlow nor JAX is installed.
        """
        if self.open_connection is None and JAX not in installed_frameworks():
            require_tensorflow("%%tpu_run")

    def of_tensorflow(self, door: str = "") -> Connection:
        """Return the connection, which has to be TensorFlow's.

        Args:
            door: The magic that needs it, for the message.

        Raises:
            NotConnectedError: No connection is open.
            ConnectError: TensorFlow is not installed.
            CellError: The connection is JAX's.
        """
        self.require_tensorflow(door)
        if (connection := self.open_of_tensorflow) is None:
            raise _not_connected()
        return connection

    def require_tensorflow(self, door: str = "") -> None:
        """Check that a connection is TensorFlow's, or can be.

        Args:
            door: The magic that needs it, for the message.

        Raises:
            ConnectError: TensorFlow is not installed.
            CellError: The connection is JAX's.
        """
        connection = self.open_connection
        if connection is None:
            require_tensorflow(door)
        elif not is_of_tensorflow(connection):
            raise CellError(
                f"{door or 'This'} is for TensorFlow, and this virtual TPU is JAX's.",
                fix="Call the function itself, or run it by %%tpu_run: the TPU's compiler judges "
                "each program. For TensorFlow: "
                f"%tpu_connect --simulate {connection.tpu} --framework tensorflow",
            )

    def refuse_profile_of_jax(self) -> None:
        """Refuse to profile while the connection is JAX's.

        Raises:
            CellError: It is.
        """
        connection = self.open_connection
        if connection is not None and not is_of_tensorflow(connection):
            raise CellError(
                "%tpu_profile reads the profiler of TensorFlow, and this virtual TPU is JAX's.",
                fix='For JAX: with jax.profiler.trace("profile"): step(params, batch). The time on '
                "a TPU is estimated by %%tpu_compile --speed.",
            )

    @property
    def open_of_tensorflow(self) -> Connection | None:
        """The connection if it is TensorFlow's; None if it is JAX's or none is open."""
        connection = self.open_connection
        return connection if is_of_tensorflow(connection) else None

    def stoppable_calls(self) -> StoppableCalls | None:
        """Return the calls whose TensorFlow functions interrupts end; None without a connection."""
        connection = self.open_of_tensorflow
        return None if connection is None else connection.cells.calls

    def connect(
        self,
        plan: Plan,
        strategy_name: str,
        say: Callable[[str], None] | None = None,
    ) -> tuple[TpuConnection, str]:
        """Connect, or keep the present connection if it fits the plan.

        Args:
            plan: The target and settings of the connection.
            strategy_name: The notebook's name for the strategy.
            say: Receives the name of each step that takes time.

        Returns:
            The connection, and a notice for the user about the previous connection and about names.
        """
        from tpunb.connection.connect import make_connection

        before = self.open_connection
        same = before is not None and before.plan == plan
        lost = before.lost() if before is not None and same else ()
        if before is not None and same and not lost:
            return before, _sentences(_AGAIN, self._bind(before, strategy_name))
        # The old connection ends only when the new connection is ready.
        connection = make_connection(plan, say)
        if before is None:
            notice = ""
        elif connection.plan == before.plan and not lost:
            # There is still no TPU, and the virtual TPU stays.
            if is_of_tensorflow(before) and is_of_tensorflow(connection):
                before.lent = connection.lent
            return before, _sentences(_AGAIN, self._bind(before, strategy_name))
        else:
            why = _gone(lost) if lost else f"The connection to {before.tpu} is closed"
            notice = (
                f"{why}: models, variables and datasets made for it have to be made again in the "
                "new strategy's scope."
                if is_of_tensorflow(before)
                else f"{why}: its arrays can be read, and functions are compiled again."
            )
            # Do not shut down a TPU that has just been initialised for the new connection.
            before.close(shut_down=before.tpu != connection.tpu)
            self.disconnect()
        self._connection = connection
        self.last_error = self.last_explanation = None  # they belonged to the former connection
        self.connected_at = time.monotonic()
        return connection, _sentences(notice, self._bind(connection, strategy_name))

    def disconnect(self) -> None:
        """Close the connection and remove the names that connecting made."""
        connection, self._connection, self._paused = self._connection, None, None
        self._names.remove()
        if connection is not None:
            connection.close()
            self._note_closed(connection)

    def run_once(self, source: str, settings: RunSettings) -> StepRun:
        """Run a cell's body on every replica once, and bind the names that it assigns."""
        cells = self.connection.cells
        with self._short_errors(source), CellDisplay(lambda: cells.calls.phase):
            run: StepRun = cells.steps(source, self.namespace, settings)
            run.once()
        self.namespace.update(run.assigned)
        return run

    def run_steps(
        self,
        source: str,
        settings: RunSettings,
        *,
        restart: bool,
        inspect: Callable[[CheckReport], None] | None = None,
    ) -> StepRun:
        """Run a cell's body step after step, and bind the names that it assigns.

        If the stop button has ended a run of the same cell on the same data, the run continues from
        where it stopped.

        Args:
            source: The cell's body.
            settings: The number of steps, the data, and so on.
            restart: Whether to start over instead.
            inspect: Receives the findings of a check for the TPU before the first step.

        Raises:
            Stopped: The stop button has ended the run; the results so far are bound.
        """
        from tpunb.cells.step_run import raise_if_ended_early

        cells = self.connection.cells
        with self._short_errors(source):
            run = None if restart else self._paused
            if (
                run is None
                or run.calls is not cells.calls
                or run.cell is not cells.parsed(source)
                or not run.settings.is_same(settings)
            ):
                run = cells.steps(source, self.namespace, settings)
                if settings.plot:
                    run.history.name = f"run {self._runs + 1}"
            if inspect is not None:
                with explaining_interrupts(_UNCHECKED):
                    report = framework.tensorflow().check_step(run)
                inspect(report)
            # Catch interrupts to the very end, so that a late interrupt does not break off the
            # output.
            with StopButton() as late:
                self._go(run)
            self._paused = run if run.can_continue else None
            raise_if_ended_early(run, late=late.pressed)
        return run

    def _go(self, run: StepRun) -> None:
        """Run a run's steps, show their progress, and bind the cell's names."""
        plotted = run.history if run.settings.plot else None
        resumed = run.done > 0
        try:
            link, awaited = self.connection.link, run.settings.plot
            with RunDisplay(plotted, run.total, run.done, link, awaited) as shown:
                run.watcher = shown
                run.go()
        finally:
            # A run that has failed before its first step gets no number and no name.
            if plotted is not None and run.done > 0:
                self._runs += not resumed
                self._names.bind_if_free("history", plotted)
            self.namespace.update(run.assigned)
            self.connection.cells.timings = run.timings

    def check(
        self,
        source: str,
        data: Any = None,
        names: Sequence[str] = ("batch",),
        *,
        compare: bool = False,
    ) -> CheckReport:
        """Check whether a cell's body would compile for a TPU, without running it.

        Args:
            source: The cell's body.
            data: The source of the batches.
            names: The cell's names for a batch, or its parts.
            compare: Whether to compare the gradients with those on one replica, too.
        """
        options = {"data": data, "names": names, "compare": compare}
        with self._short_errors(source), explaining_interrupts(_UNCHECKED):
            return self.of_tensorflow("%%tpu_check").check_cell(source, self.namespace, **options)

    def compile(
        self,
        source: str,
        settings: CompileSettings,
        data: Any = None,
        names: Sequence[str] = ("batch",),
    ) -> TpuProgram | TpuPrograms:
        """Compile a cell's body with the TPU's own compiler, without running it.

        Raises:
            CompilationStopped: The stop button has ended it, and some TPU types are done.
        """
        from tpunb.compiler.ask.partial_answers import CompilationStopped, watching

        __tracebackhide__ = True
        doing = "tracing the cell"

        def say(what: str) -> None:
            nonlocal doing
            doing = what

        settings = dataclasses.replace(settings, progress=say)
        stopped = explaining_interrupts(lambda: f"while {doing}; nothing was run.")
        shown = CompilationDisplay(lambda: doing)
        try:
            with self._short_errors(source), shown, watching(shown.known), stopped:
                program = self._compiled(source, settings, data, names)
        except CompilationStopped as interrupted:
            self._remember_program(interrupted.programs)
            raise
        self._remember_program(program)
        return program

    def search(self, source: str, settings: CompileSettings) -> Any:
        """Search the layout of the call at a cell's end, without running it."""
        from tpunb.cells.call_cell import search_call_cell
        from tpunb.cells.reading.source import parse_cell

        __tracebackhide__ = True
        with self._short_errors(source):
            return search_call_cell(parse_cell(source), self.namespace, settings)

    def _remember_program(self, program: TpuProgram | TpuPrograms) -> None:
        if self.open_connection is not None:
            self.open_connection.program = program

    def _compiled(
        self, source: str, settings: CompileSettings, data: Any, names: Sequence[str]
    ) -> TpuProgram | TpuPrograms:
        """Return the program of the call at a cell's end, or of the cell on every replica."""
        from tpunb.cells.call_cell import (
            compile_call_cell,
            ends_with_call,
            is_call_cell,
            largest_batch_call,
            may_be_jax,
        )
        from tpunb.cells.reading.source import parse_cell
        from tpunb.compiler.program import CompileError

        __tracebackhide__ = True
        cell, connection = parse_cell(source), self.open_connection
        of_call = settings
        if not settings.tpus and connection is not None and connection.kind == "virtual":
            of_call = dataclasses.replace(settings, tpus=[connection.tpu])
        is_of_jax = connection is not None and not is_of_tensorflow(connection)
        if is_of_jax and (data is not None or cell.provided or not ends_with_call(cell)):
            cells = self.connection.cells
            program = cells.compile(source, self.namespace, of_call, data=data, names=names)
            return cast("TpuProgram | TpuPrograms", program)
        on_replicas = connection is not None or data is not None  # only replicas read this data
        if is_call_cell(cell, self.namespace, connected=on_replicas):
            if settings.largest_batch:
                raise CompileError(
                    "--largest-batch changes the batch of -d, and this cell is a call, which is "
                    "compiled with its own arguments.",
                    fix=f"Call {largest_batch_call(cell, of_call.tpus)}.",
                )
            if data is not None:
                raise CompileError(
                    "The cell takes its batch from its last call, not from -d.",
                    fix="Leave -d out; tpunb.largest_batch(step, ...) finds the largest batch.",
                )
            return compile_call_cell(cell, self.namespace, of_call)
        if settings.largest_batch and data is None:
            raise CompileError(
                "--largest-batch needs data whose batch it may change.", fix="Name it with -d."
            )
        cells = self.of_tensorflow("%%tpu_compile of a cell").cells
        try:
            program = cells.compile(source, self.namespace, settings, data=data, names=names)
            return cast("TpuProgram | TpuPrograms", program)
        except Exception:
            if data is not None or not may_be_jax(cell, self.namespace):
                raise
            # A function that only calls methods may be JAX's: JAX arrays have some that tensors
            # lack.
            with contextlib.suppress(Exception):
                return compile_call_cell(cell, self.namespace, of_call, by_jax=True)
            raise

    @contextlib.contextmanager
    def _short_errors(self, source: str) -> Iterator[None]:
        """Remember errors of a cell, and show them by the cell's lines."""
        from tpunb.cells.reading.cell_errors import first_line, show_shortly, syntax_error

        try:
            yield
        except SyntaxError as error:
            # IPython shows a SyntaxError with every frame that led to it.
            self.last_error = first_line(error)
            raise syntax_error(error) from None
        except Exception as error:
            self.last_error = first_line(error)
            connection = self.open_connection
            if connection and hasattr(error, "error_code") and (lost := connection.lost()):
                raise WorkerError(
                    f"{_gone(lost)} ({type(error).__name__}).",
                    fix="Run %tpu_connect again, make the model and its data again, and restore "
                    "its checkpoint.",
                    tried=tuple(f"{address} does not answer as before" for address in lost),
                ) from error
            show_shortly(error, source)
            raise

    def about_closed(self, explanation: Explanation) -> str | None:
        """Return a message if a known error is about a value of a closed connection; else None."""
        self._note_closed(self._connection)
        if explanation.code != _WORKER_GONE or not self._last_closed:
            return None
        if (now := self.open_connection) is not None and now.lost():
            return None  # the dead worker belongs to this connection
        return (
            f"This value belongs to the connection to {self._last_closed}, which is closed.\n"
            f"{hint('Connect, and make it again; a checkpoint keeps variables.')}"
        )

    def _note_closed(self, connection: TpuConnection | None) -> None:
        """Remember a closed connection if its values were on a TPU."""
        if not is_of_tensorflow(connection) or not connection.closed:
            return
        if connection.kind == "hardware":
            self._last_closed = connection.phrase

    def remember(self, explanation: Explanation) -> None:
        """Keep the explanation of the last known error."""
        self.last_explanation = explanation

    def _bind(self, connection: TpuConnection, strategy_name: str) -> str:
        """Bind the connection's names in the notebook; return a notice about other names."""
        if not is_of_tensorflow(connection):
            reachable = self._names.bind_if_free("connection", connection)
            value = self.namespace["connection"]
            return "" if reachable else notice_of_kept({"connection": value}, reachable=False)
        hidden = self._names.bind(strategy_name, connection.strategy)
        if hasattr(hidden, "num_replicas_in_sync"):  # one strategy follows another
            hidden = None
        reachable = self._names.bind_if_free("connection", connection)
        others = {"topology": connection.topology, "resolver": connection.resolver}
        kept = {
            name: self.namespace[name]
            for name, value in others.items()
            if name != strategy_name and not self._names.bind_if_free(name, value)
        }
        return _sentences(
            notice_of_strategy(strategy_name, hidden), notice_of_kept(kept, reachable=reachable)
        )


def _not_connected() -> NotConnectedError:
    return NotConnectedError(
        "There is no connection to a TPU.",
        fix="Run %tpu_connect first (or %tpu_connect --simulate v5e-8).",
    )


def _sentences(*sentences: str) -> str:
    return "\n".join(filter(None, sentences))


def _gone(lost: Sequence[str]) -> str:
    """Return the sentence that workers are gone."""
    workers = f"The worker at {lost[0]} is" if len(lost) == 1 else f"{len(lost)} workers are"
    return f"{workers} gone, or restarted, and all that was there is lost"
