"""The common part of all connections to a TPU, and the list of open connections."""

from __future__ import annotations

import abc
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeGuard

from tpunb.errors import NotConnectedError
from tpunb.machine.framework import TENSORFLOW

if TYPE_CHECKING:
    from typing_extensions import Self

    from tpunb.compiler.program import TpuProgram, TpuPrograms
    from tpunb.connection.plan import Plan
    from tpunb.display.describe.connection import ConnectionDescription
    from tpunb.framework import RunsCells
    from tpunb.tensorflow.connection.connection import Connection
    from tpunb.training.checkpoint_settings import CheckpointSettings
    from tpunb.training.run_result import RunResult, Timings

_opened: list[weakref.ref[TpuConnection]] = []


def latest_connection() -> TpuConnection | None:
    """Return the latest connection that is still open, or None."""
    return next(reversed(open_connections()), None)


def open_connections() -> list[TpuConnection]:
    """Return the open connections of this process, the oldest first."""
    connections = [opened for ref in _opened if (opened := ref()) is not None and not opened.closed]
    _opened[:] = [weakref.ref(connection) for connection in connections]
    return connections


def is_of_tensorflow(connection: TpuConnection | None) -> TypeGuard[Connection]:
    """Return whether a connection is TensorFlow's: with a strategy, and not with JAX's devices."""
    return connection is not None and connection.framework == TENSORFLOW


class TpuConnection(abc.ABC):
    """A TPU, real or virtual. It is also a context manager that closes it.

    Attributes:
        framework: `TENSORFLOW` or `JAX`, of `tpunb.machine.framework`.
        kind: `"virtual"` or `"hardware"`.
        tpu: The simulated TPU type, or the TPU that was connected to.
        request: The options.
        plan: The resolved request.
        notes: Sentences to show to the user.
        closed: Whether `close` was called.
        program: The latest result of `%%tpu_compile`, a `TpuProgram` or several; or None.
        link: The id of the connection's live displays, which may outlive the connection.
    """

    framework: ClassVar[str]

    def __init__(self, plan: Plan, tpu: str, notes: tuple[str, ...]) -> None:
        self.request = plan.request
        self.plan = plan
        self.kind = plan.kind
        self.tpu = tpu
        self.notes = notes
        self.closed = False
        self.program: TpuProgram | TpuPrograms | None = None
        self._cells: RunsCells | None = None
        self.link = uuid.uuid4().hex
        _opened.append(weakref.ref(self))

    @property
    def target(self) -> str:
        """The TPU in words: `"virtual TPU v3-8"`."""
        return f"virtual TPU {self.tpu}" if self.kind == "virtual" else f"TPU {self.tpu}"

    @property
    @abc.abstractmethod
    def phrase(self) -> str:
        """The TPU and what runs on it: `"virtual TPU v3-8, 8 replicas"`."""

    @property
    @abc.abstractmethod
    def replicas(self) -> int:
        """The number of replicas. A cell runs on each replica."""

    @property
    def cells(self) -> Any:
        """The runner that runs cells on every replica and keeps their traces.

        Raises:
            NotConnectedError: The connection is closed.
        """
        self._refuse_closed()
        if self._cells is None:
            self._cells = self._new_cells()
        return self._cells

    @abc.abstractmethod
    def _new_cells(self) -> RunsCells:
        """Return a new runner of cells."""

    @property
    def timings(self) -> Timings | None:
        """The times of the last run of many steps; None before the first run."""
        return None if self._cells is None else self._cells.timings

    def run_cell(
        self,
        cell: str | Callable[..., Any],
        namespace: dict[str, Any] | None = None,
        *,
        data: Any = None,
        names: Sequence[str] = ("batch",),
        steps: int | None = None,
        steps_per_loop: int | None = None,
        plot: str | Sequence[str] = (),
        reduce: Mapping[str, str] | None = None,
        gather: Mapping[str, int] | None = None,
        checkpoint: str | CheckpointSettings | None = None,
    ) -> RunResult:
        """Run a cell's body or a function on every replica, as `%%tpu_run` does.

        Example::

            result = connection.run_cell("y = x * 2.0", globals(), reduce={"y": "sum"})
            result.assigned["y"]

        Args:
            cell: The Python source of a cell's body, or a function whose call is the body.
            namespace: The mapping to read names from and to store assigned names in, such as
                `globals()`. If the run fails, it stays as it was. A function reads its own
                globals.
            data: The source of the batches, as for `run`; by default the cell has no batch.
            names: The cell's name for a batch; several for its parts.
            steps: The number of steps. By default one step, or all steps of the data.
            steps_per_loop: The number of steps in one call; None to choose it by measuring.
            plot: Names whose numbers to record in every step.
            reduce: Names to combine over the replicas, by `"mean"` or `"sum"`.
            gather: Names to concatenate over the replicas, with the axis.
            checkpoint: A folder, as for `run`.

        Returns:
            The value of the last expression, the assigned names, and the times.

        Raises:
            SyntaxError: The source is not Python.
            CellError: The cell cannot run on the replicas.
            NotConnectedError: The connection is closed.
            Stopped: An interrupt ended the run inside a step.
            Exception: The error of the cell or the data. If a TPU refuses the cell, its `code`
                is the name of the rule.
        """
        result: RunResult = self.cells.run(
            cell,
            namespace,
            data=data,
            names=names,
            steps=steps,
            steps_per_loop=steps_per_loop,
            plot=(plot,) if isinstance(plot, str) else plot,
            reduce=reduce,
            gather=gather,
            checkpoint=checkpoint,
        )
        if namespace is not None and isinstance(cell, str):
            namespace.update(result.assigned)
        return result

    @abc.abstractmethod
    def lost(self) -> tuple[str, ...]:
        """Return the addresses of workers that have gone or restarted since connecting."""

    @abc.abstractmethod
    def memory_per_core(self) -> tuple[int, ...]:
        """Return the bytes in use on each core, in the cores' order."""

    @abc.abstractmethod
    def describe(self) -> ConnectionDescription:
        """Return a description of the connection, for displays and programs."""

    @abc.abstractmethod
    def close(self, *, shut_down: bool = True) -> None:
        """Close the connection.

        Args:
            shut_down: Whether to shut down a real TPU's system. Pass False if another
                connection uses it already.
        """

    def _refuse_closed(self) -> None:
        if self.closed:
            raise NotConnectedError("This connection is closed.", fix="Connect again.")

    def __enter__(self) -> Self:
        self._refuse_closed()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed connection" if self.closed else "connection"
        return f"<{state} to {self.phrase}>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        del include, exclude
        from tpunb.display.draw.static_forms import mimebundle

        return {"text/plain": repr(self)} if self.closed else dict(mimebundle(self.describe()))
