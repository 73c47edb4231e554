"""Claims about the stop button and about connecting again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tpunb._util.interrupts import Stopped
from tpunb.cells.settings import RunSettings
from tpunb.errors import NotConnectedError
from tpunb.tensorflow.connection.connection import Connection
from tpunb.tensorflow.verification.strategy_suite import StrategySuite
from tpunb.verification.pressing import pressed_when
from tpunb.verification.suite import NotRunError, Outcome, close, compared, equal

_MOST_STEPS = 10**6
_ROUNDS = 10**6
"""Rounds of a long step: minutes on a CPU, and seconds on a TPU if nothing ends it."""
_INTO_A_STEP = 1.0
"""Seconds from the start of a step whose function is traced to a moment within the step."""


class Interrupting(StrategySuite):
    """Claims about the stop button."""

    group = "interrupting"
    on_main_thread = True

    def between_steps(self) -> Outcome:
        """Check that the stop button ends a run between two steps, and that no step is lost."""
        count = self._counter()
        run = self._steps(lambda: _count_up(count), _MOST_STEPS)
        with pressed_when(lambda: run.done >= 3):
            run.go()
        how = "within a step" if run.is_half_done else "between two steps"
        found = f"stopped {how}" if run.stopped else "not stopped"
        return equal(
            f"stopped between two steps, {run.done} of {run.done} kept",
            f"{found}, {count.numpy():.0f} of {run.done} kept",
        )

    def within_a_step(self) -> Outcome:
        """Check that the stop button ends a step of a million rounds, and the next one runs."""
        count, rounds = self._counter(), self.variable(3)

        def step() -> None:
            for _ in tf.range(rounds):
                _count_up(count)

        self._steps(step, 1).go()  # traces the function
        rounds.assign(_ROUNDS)
        run = self._steps(step, 1)
        due = time.monotonic() + _INTO_A_STEP
        stopped = False
        with pressed_when(lambda: time.monotonic() >= due):
            try:
                run.go()
            except Stopped:
                stopped = True
        if run.done and not stopped:
            raise NotRunError("the step ended before it was interrupted")
        rounds.assign(4)
        count.assign(0.0)
        self.connection.run(step, steps=1)
        how = "stopped" if stopped or run.stopped else "not stopped"
        after = "; the next step counts to"
        return equal(f"stopped{after} 4", f"{how}{after} {count.numpy():.0f}")

    def _counter(self) -> Any:
        return self.variable(0.0, aggregation=tf.VariableAggregation.MEAN)

    def _steps(self, step: Callable[[], Any], count: int) -> Any:
        settings = RunSettings(steps=count, steps_per_loop=1)
        return self.connection.cells.steps(step, settings=settings)


class Reconnecting(StrategySuite):
    """Claims about closing the connection and about the next connection."""

    group = "reconnecting"
    _former: Connection | None = None

    def connected_again(self) -> Outcome:
        """Check that the TPU still has the same mesh and the same replicas."""
        former, before = self.connection, self._facts()
        former.close()
        self.tpu.connection = self.tpu.connect()
        self._former = former
        return equal(before, self._facts())

    def running_again(self) -> Outcome:
        """Check that variables and collectives work on the new connection."""
        self._need_former()
        variable = self.variable(2.0)
        found = self.on_ranks(
            lambda x: tf.distribute.get_replica_context().all_reduce("SUM", x * variable)
        )
        return close(self.everywhere(self.ranks.sum() * 2.0), found)

    def closed(self) -> Outcome:
        """Check that a closed connection runs nothing."""
        try:
            self._need_former().run_cell("1", {})
        except NotConnectedError as error:
            return compared(True, "NotConnectedError", type(error).__name__, str(error))
        return compared(False, "NotConnectedError", "it runs")

    def _facts(self) -> list[Any]:
        return [[int(size) for size in self.connection.topology.mesh_shape], self.replicas]

    def _need_former(self) -> Connection:
        """Return the connection before the current one. Without it, the claim is not tried."""
        if self._former is None:
            raise NotRunError("connecting again has failed")
        return self._former


def _count_up(count: Any) -> None:
    """Add 1 to a variable, in a replica function."""
    count.assign_add(tf.distribute.get_replica_context().all_reduce("MEAN", 1.0))
