"""A connection to a TPU, real or virtual, and the code that runs on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tpunb import framework
from tpunb._util.logs import logger
from tpunb._util.units import counted
from tpunb.connection.tpu_connection import TpuConnection
from tpunb.framework import ChecksCells
from tpunb.machine.framework import TENSORFLOW
from tpunb.virtual import current_strategy
from tpunb.virtual.installation import Installation

if TYPE_CHECKING:
    from tpunb.connection.plan import Plan
    from tpunb.display.describe.connection import ConnectionDescription
    from tpunb.tensorflow.checks.rule_check import CheckReport
    from tpunb.training.checkpoint_settings import CheckpointSettings
    from tpunb.training.run_result import RunResult

_log = logger("connection")


class Connection(TpuConnection):
    """A TPU, real or virtual, with the TensorFlow strategy that runs on it.

    Attributes:
        strategy: The `tf.distribute.TPUStrategy`.
        resolver: The cluster resolver.
        topology: The `tf.tpu.experimental.Topology`.
        device_assignment: The cores of each replica; None if every core is a replica.
        lent: The patches of TensorFlow's names, with `patch=True`.
    """

    framework = TENSORFLOW

    def __init__(
        self, plan: Plan, strategy: Any, resolver: Any, topology: Any, assignment: Any
    ) -> None:
        super().__init__(plan, plan.tpu, plan.notes)
        self.strategy = strategy
        self.resolver = resolver
        self.topology = topology
        self.device_assignment = assignment
        self.lent: Installation | None = None
        from tpunb.tensorflow.checks import fit_notes

        fit_notes.opened(strategy)

    def lost(self) -> tuple[str, ...]:
        """Return the addresses of workers that have gone or restarted since connecting.

        Their values are lost. Connect again, then make models and datasets again.
        """
        if self.kind == "virtual":
            return ()
        from tpunb.tensorflow.connection import hardware

        return hardware.lost(self.resolver)

    def memory_per_core(self) -> tuple[int, ...]:
        """Return the bytes of the strategy's variables on each core, in the cores' order."""
        from tpunb.display.describe.connection import memory_per_core

        topology = self.describe().topology
        assert topology is not None
        return memory_per_core(self.strategy, topology)

    @property
    def replicas(self) -> int:
        """The number of the strategy's replicas."""
        return int(self.strategy.num_replicas_in_sync)

    def _new_cells(self) -> ChecksCells:
        return framework.tensorflow().cell_runner(self.strategy)

    def check_cell(
        self,
        cell: str | Callable[..., Any],
        namespace: dict[str, Any] | None = None,
        *,
        data: Any = None,
        names: Sequence[str] = ("batch",),
        compare: bool = False,
    ) -> CheckReport:
        """Check whether a cell would compile for a TPU, without running it, as `%%tpu_check` does.

        Example::

            report = connection.check_cell("tf.zeros([tf.cast(x[0], tf.int32)])", {"x": x})
            report.ok, [problem.code for problem in report.errors]
            report.raise_if_refused()

        Args:
            cell: The Python source of a cell's body, or a function whose call is the body.
            namespace: The mapping to read names from; it does not change. A function reads its
                own globals.
            data: The source of the batches, as for `run`, of which only the first is read.
            names: The cell's name for a batch; several for its parts.
            compare: Whether to compare the gradients with those on one replica, too: see
                `tpunb.compare`.

        Raises:
            CheckError: The TPU is real: only a virtual TPU checks cells.
            NotConnectedError: The connection is closed.
            Exception: The error that the cell raises when it is traced.
        """
        report: CheckReport = self.cells.check(
            cell, namespace, data=data, names=names, compare=compare
        )
        return report

    def run(
        self,
        fn: Callable[..., Any],
        data: Any = None,
        *,
        steps: int | None = None,
        steps_per_loop: int | None = None,
        plot: str | Sequence[str] = (),
        reduce: Mapping[str, str] | None = None,
        gather: Mapping[str, int] | None = None,
        checkpoint: str | CheckpointSettings | None = None,
    ) -> RunResult:
        """Run a function on every replica, step after step, as `%%tpu_run` does with a cell.

        Steps are made in loops inside one `tf.function`, so that the host's cost of a call is
        paid once for many steps. The first interrupt ends the run between two loops and loses
        nothing; the result reports it. A step that does not end in time is cancelled.

        Args:
            fn: The step of one replica. It takes a batch, or the parts of a batch if it has
                several parameters. Without data it takes no argument.
            data: A `tf.data.Dataset` of global batches, a `DistributedDataset`, an
                iterator over either, a dataset function, arrays, or an iterable of
                global batches.
            steps: The number of steps. By default one step, or all steps of the data.
            steps_per_loop: The number of steps in one call; None to choose it by measuring.
            plot: Keys of the dict that `fn` returns, whose numbers to record in every step;
                any one name if `fn` returns a single number.
            reduce: Keys to combine over the replicas, by `"mean"` or `"sum"`.
            gather: Keys to concatenate over the replicas, with the axis.
            checkpoint: A folder. The run is saved there, and continues from there after a
                restart. A `tpunb.training.checkpoint_settings.CheckpointSettings` also says
                when to save.

        Returns:
            The value of the last step, and the history of the plotted values.

        Raises:
            CellError: The settings contradict each other, the function or the data.
            NotConnectedError: The connection is closed.
            Stopped: An interrupt ended the run inside a step.
            Exception: The error of the function or the data. Completed steps are kept.
        """
        return self.run_cell(
            fn,
            data=data,
            steps=steps,
            steps_per_loop=steps_per_loop,
            plot=plot,
            reduce=reduce,
            gather=gather,
            checkpoint=checkpoint,
        )

    def describe(self) -> ConnectionDescription:
        """Return a description of the connection, for displays and programs."""
        from tpunb.display.describe.connection import ConnectionDescription
        from tpunb.display.describe.topology_description import (
            describe_device_assignment,
            describe_topology,
        )

        name = self.tpu if self.kind == "virtual" else ""
        extended = self.strategy.extended
        topology = (
            describe_topology(self.topology, name)
            if self.device_assignment is None
            else describe_device_assignment(self.device_assignment, name)
        )
        return ConnectionDescription(
            kind=self.kind,
            tpu="" if self.kind == "virtual" else self.tpu,
            accelerator=name,
            replicas=self.strategy.num_replicas_in_sync,
            cores=topology.num_cores,
            hosts=extended.num_hosts,
            logical_devices=max(1, topology.num_logical_devices),
            topology=topology,
            arithmetic=getattr(extended, "arithmetic", "tpu"),
            notes=self.notes,
        )

    def close(self, *, shut_down: bool = True) -> None:
        """Close the connection and drop all traces.

        Args:
            shut_down: Whether to shut down a real TPU's system. Pass False if another
                connection uses it already.
        """
        if self.closed:
            return
        _log.debug("close %r", self)
        from tpunb.tensorflow.checks import fit_notes
        from tpunb.virtual.installer import give_back

        self.closed = True
        current_strategy.forget(self.strategy)
        fit_notes.closed(self.strategy)
        give_back(self.lent)
        if self._cells is not None:
            self._cells.close()
            self._cells = None
        if self.kind == "hardware" and shut_down:
            from tpunb.tensorflow.connection import hardware

            hardware.disconnect(self.resolver)

    @property
    def phrase(self) -> str:
        """The TPU and its replicas: `"virtual TPU v3-8, 8 replicas"`."""
        return f"{self.target}, {counted(self.strategy.num_replicas_in_sync, 'replica')}"
