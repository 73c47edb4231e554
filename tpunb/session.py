"""What the magics of one shell share: the connection, its names, the last error."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tpunb.connecting import make_connection
from tpunb.connection import Connection
from tpunb.errors import NotConnectedError, WorkerError
from tpunb.failures import first_line, show_shortly, syntax_error
from tpunb.interrupts import Stopped
from tpunb.progress import RunDisplay
from tpunb.request import Request

if TYPE_CHECKING:
    from tpunb.cells import CellResult, CellRunner, Steps
    from tpunb.checking import CheckReport
    from tpunb.diagnosis import Explanation

__all__ = ["Session", "Status", "StepsRequest"]

_AGAIN = "Already connected: the connection is used again."


@dataclasses.dataclass(frozen=True, slots=True)
class Status:
    """How things stand.

    Attributes:
        connection: The connection, or None.
        uptime: Seconds since connecting.
        cells_traced: How many times a cell has been traced.
        bytes_per_core: Memory that the strategy's variables hold on a core, the fullest one's.
        last_error: The last error that a cell raised, in a line.
    """

    connection: Connection | None
    uptime: float = 0.0
    cells_traced: int = 0
    bytes_per_core: int = 0
    last_error: str | None = None


@dataclasses.dataclass(frozen=True)
class StepsRequest:
    """What a run of many steps is to be.

    Attributes:
        source: The cell's body.
        data: Where the batches come from; None for steps without data.
        names: What a batch, or its parts, are called in the cell.
        steps: How many; None to the end of the data.
        steps_per_loop: How many to make in one call; None to choose by measuring.
        plot: Names whose values make curves.
        reduce: Names to combine over the replicas.
        gather: Names to concatenate over the replicas.
        timed: Whether to measure how long steps wait for batches.
    """

    source: str
    data: Any = None
    names: tuple[str, ...] = ("batch",)
    steps: int | None = None
    steps_per_loop: int | None = None
    plot: tuple[str, ...] = ()
    reduce: Mapping[str, str] = dataclasses.field(default_factory=dict)
    gather: Mapping[str, int] = dataclasses.field(default_factory=dict)
    timed: bool = False

    def is_same(self, other: StepsRequest) -> bool:
        """Whether this is the same request, of the very same data."""
        mine, theirs = (
            each.data if isinstance(each.data, tuple) else (each.data,) for each in (self, other)
        )
        same_data = len(mine) == len(theirs) and all(
            a is b for a, b in zip(mine, theirs, strict=True)
        )
        return same_data and dataclasses.replace(self, data=None) == dataclasses.replace(
            other, data=None
        )


class Session:
    """One shell's connection.

    Args:
        namespace: The shell's namespace, into which connecting puts the strategy.

    Attributes:
        last_error: The last error that a cell raised, in a line; or None.
        last_explanation: The last explanation that was shown under an error; or None.
    """

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace
        self.last_error: str | None = None
        self.last_explanation: Explanation | None = None
        self._connection: Connection | None = None
        self._since = 0.0
        self._bound: dict[str, Any] = {}
        self._runs = 0
        self._paused: tuple[StepsRequest, CellRunner, Steps] | None = None

    @property
    def connection(self) -> Connection:
        """The connection.

        Raises:
            NotConnectedError: There is none.
        """
        if (connection := self.open_connection) is None:
            raise NotConnectedError(
                "There is no connection to a TPU.",
                mend="Run %tpu_connect first (or %tpu_connect --simulate v5e-8).",
            )
        return connection

    @property
    def open_connection(self) -> Connection | None:
        """The connection; None where there is none that is open."""
        connection = self._connection
        return None if connection is None or connection.closed else connection

    def connect(
        self,
        request: Request,
        strategy_name: str,
        say: Callable[[str], None] | None = None,
    ) -> tuple[Connection, str]:
        """Connects, or keeps the connection if it is what is asked for.

        Args:
            request: What to connect to.
            strategy_name: The notebook's name for the strategy.
            say: Is told what is being done, where it takes time.

        Returns:
            The connection, and what the user should know about the one before.
        """
        before = self.open_connection
        same = before is not None and before.request == request
        lost = before.lost() if before is not None and same else ()
        if before is not None and same and not lost:
            self._bind(before, strategy_name)
            return before, _AGAIN
        # Only a new connection that stands ends the old one.
        connection = make_connection(request, say)
        if before is None:
            said = ""
        elif connection.request == before.request and not lost:
            # Again a virtual TPU has to stand in.
            before.lent = connection.lent
            self._bind(before, strategy_name)
            return before, _AGAIN
        else:
            said = _changed(before, lost)
            # The same TPU has just been initialised for the new connection.
            before.close(shut_down=before.tpu != connection.tpu)
            self.disconnect()
        self._connection = connection
        self._since = time.monotonic()
        self._bind(connection, strategy_name)
        return connection, said

    def disconnect(self) -> None:
        """Closes the connection and removes the names that connecting made."""
        connection, self._connection, self._paused = self._connection, None, None
        for name, value in self._bound.items():
            if self.namespace.get(name) is value:
                del self.namespace[name]
        self._bound = {}
        if connection is not None:
            connection.close()

    def run(
        self,
        source: str,
        *,
        filename: str | None = None,
        reduce: Mapping[str, str],
        gather: Mapping[str, int],
        timed: bool,
    ) -> CellResult:
        """Runs a cell's body on every replica and binds the names it assigns."""
        cells = self.connection.cells
        with self._short_errors(source):
            result = cells.run(
                source,
                self.namespace,
                filename=filename,
                reduce=reduce,
                gather=gather,
                timed=timed,
            )
        self.namespace.update(result.assigned)
        return result

    def run_steps(
        self,
        request: StepsRequest,
        *,
        restart: bool,
        inspect: Callable[[CheckReport], None] | None = None,
    ) -> Steps:
        """Runs a cell's body step after step, and binds the names it assigns.

        A run of the same cell on the same data that the stop button has ended is taken
        up where it stopped.

        Args:
            request: What to run.
            restart: Whether to begin anew all the same.
            inspect: Is shown, before the first step, what a check for the TPU finds.

        Raises:
            Stopped: The stop button has ended it; what was done is bound.
        """
        cells = self.connection.cells
        with self._short_errors(request.source):
            run = None if restart else self._resumed(request, cells)
            if run is None:
                run = self._new_run(request, cells)
            if inspect is not None:
                inspect(run.check())
            plotted = run.history if request.plot else None
            try:
                with RunDisplay(plotted, run.total, run.done, self.connection.link) as shown:
                    run.watcher = shown
                    run.go()
                    shown.stopped = run.stopped
            finally:
                self.namespace.update(run.assigned)
                self.connection.timings = run.timings
            self._paused = (request, cells, run) if run.stopped else None
            if run.stopped:
                raise Stopped(_stopped(run))
            run.refuse_early_end()
        return run

    def _resumed(self, request: StepsRequest, cells: CellRunner) -> Steps | None:
        """The run that was stopped, if this is the same again."""
        if self._paused is None:
            return None
        before, runner, run = self._paused
        return run if runner is cells and before.is_same(request) else None

    def _new_run(self, request: StepsRequest, cells: CellRunner) -> Steps:
        from tpunb.histories import remember

        run = cells.steps(
            request.source,
            self.namespace,
            data=request.data,
            names=request.names,
            steps=request.steps,
            steps_per_loop=request.steps_per_loop,
            plot=request.plot,
            reduce=request.reduce,
            gather=request.gather,
            timed=request.timed,
        )
        if request.plot:
            self._runs += 1
            run.history.name = f"run {self._runs}"
            remember(run.history)
        return run

    def check(self, source: str) -> CheckReport:
        """Checks whether a cell's body would compile for a TPU; runs nothing."""
        cells = self.connection.cells
        with self._short_errors(source):
            return cells.check(source, self.namespace)

    @contextlib.contextmanager
    def _short_errors(self, source: str) -> Iterator[None]:
        """Errors of a cell are remembered, and shown by the cell's lines."""
        try:
            yield
        except SyntaxError as error:
            # IPython shows a SyntaxError with every frame that led to it.
            self.last_error = first_line(error)
            raise syntax_error(error) from None
        except Exception as error:
            self.last_error = first_line(error)
            if lost := self._lost(error):
                raise WorkerError(
                    f"{_gone(lost)} ({type(error).__name__}).",
                    mend="Run %tpu_connect again, make the model and its data anew, and restore "
                    "its checkpoint.",
                    tried=tuple(f"{address} does not answer as before" for address in lost),
                ) from error
            show_shortly(error, source)
            raise

    def _lost(self, error: Exception) -> tuple[str, ...]:
        """The workers whose end can be what is behind an error of TensorFlow's."""
        connection = self.open_connection
        return connection.lost() if connection and hasattr(error, "error_code") else ()

    def remember(self, explanation: Explanation) -> None:
        """Keeps the explanation of the last known error."""
        self.last_explanation = explanation

    def status(self) -> Status:
        """How things stand."""
        if (connection := self.open_connection) is None:
            return Status(None, last_error=self.last_error)
        return Status(
            connection,
            time.monotonic() - self._since,
            connection.cells.traces,
            max(connection.memory_per_core(), default=0),
            self.last_error,
        )

    def _bind(self, connection: Connection, strategy_name: str) -> None:
        names = {
            strategy_name: connection.strategy,
            "resolver": connection.resolver,
            "topology": connection.topology,
        }
        self.namespace.update(names)
        self._bound.update(names)


def _gone(lost: Sequence[str]) -> str:
    """That workers are gone, in words."""
    workers = f"The worker at {lost[0]} is" if len(lost) == 1 else f"{len(lost)} workers are"
    return f"{workers} gone, or started anew, and all that was there is lost"


def _changed(before: Connection, lost: Sequence[str]) -> str:
    """What the user should know about a connection that has been replaced."""
    why = f"The connection to {before.tpu} is closed"
    if lost:
        why = _gone(lost)
    return (
        f"{why}: models, variables and datasets made for it have to be made again in the new "
        "strategy's scope."
    )


def _stopped(run: Steps) -> str:
    """What was done when the stop button was pressed, and how to go on."""
    of = "" if run.total is None else f" of {run.total:,}"
    return (
        f"after {run.done:,}{of} steps. Variables, curves and the place in the data are kept: run "
        "the cell again to go on, or with --restart to begin anew."
    )
