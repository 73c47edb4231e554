"""Claims about the stop button, and about connecting again."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from tpunb.connection.connection import Connection
from tpunb.errors import NotConnectedError
from tpunb.training.stop_button import Stopped, interrupt_main
from tpunb.verification.bench import Bench
from tpunb.verification.claims import Claims
from tpunb.verification.observation import NotRunError, Observation
from tpunb.verification.observing import close, equal

__all__ = ["INTERRUPTING", "RECONNECTING"]

INTERRUPTING = Claims("interrupting")
RECONNECTING = Claims("reconnecting")

_LOOK = 0.01
_MOST_STEPS = 10**6
_ROUNDS = 10**6
"""Rounds of a long step: minutes on a CPU, seconds on a TPU, should that not end it."""
_INTO_A_STEP = 1.0
"""Seconds from the start of a step of which the function is traced, to within it."""


@contextlib.contextmanager
def _pressed_when(holds: Callable[[], bool]) -> Iterator[None]:
    """Presses the stop button, once, as soon as something holds."""
    if threading.current_thread() is not threading.main_thread():
        raise NotRunError("interrupts reach the main thread only, and this is another one")
    over = threading.Event()

    def watch() -> None:
        while not holds():
            if over.wait(_LOOK):
                return
        if not over.is_set():
            interrupt_main()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _counter(bench: Bench) -> Any:
    import tensorflow as tf

    return bench.variable(0.0, aggregation=tf.VariableAggregation.MEAN)


def _steps(bench: Bench, step: Callable[[], Any], count: int) -> Any:
    from tpunb.cells import RunSettings

    settings = RunSettings(steps=count, steps_per_loop=1)
    return bench.connection.cells.steps_of_function(step, settings)


@INTERRUPTING.claim(
    "between steps",
    "the stop button ends a run between two steps: variables hold all that were made",
    on_main_thread=True,
)
def _(bench: Bench) -> Observation:
    import tensorflow as tf

    count = _counter(bench)

    def step() -> None:
        count.assign_add(tf.distribute.get_replica_context().all_reduce("MEAN", 1.0))

    run = _steps(bench, step, _MOST_STEPS)
    with _pressed_when(lambda: run.done >= 3):
        run.go()
    made = float(count.numpy())
    expected = f"stopped between two steps, {run.done} of {run.done} kept"
    how = "within a step" if run.is_half_done else "between two steps"
    found = f"stopped {how}" if run.stopped else "not stopped"
    return equal(expected, f"{found}, {made:.0f} of {run.done} kept")


@INTERRUPTING.claim(
    "within a step",
    "the stop button ends a step of a million rounds, and the next step runs",
    on_main_thread=True,
)
def _(bench: Bench) -> Observation:
    import tensorflow as tf

    count, rounds = _counter(bench), bench.variable(3)

    def step() -> None:
        for _ in tf.range(rounds):
            count.assign_add(tf.distribute.get_replica_context().all_reduce("MEAN", 1.0))

    run = _steps(bench, step, 1)
    run.go()  # traces it
    stopped = _stopped_within(bench, step, rounds)
    rounds.assign(4)
    count.assign(0.0)
    bench.connection.run(step, steps=1)
    how = "stopped" if stopped else "not stopped"
    after = "; the next step counts to"
    return equal(f"stopped{after} 4", f"{how}{after} {count.numpy():.0f}")


def _stopped_within(bench: Bench, step: Callable[[], Any], rounds: Any) -> bool:
    """Whether a long step was stopped."""
    rounds.assign(_ROUNDS)
    run = _steps(bench, step, 1)
    due = time.monotonic() + _INTO_A_STEP
    with _pressed_when(lambda: time.monotonic() >= due):
        try:
            run.go()
        except Stopped:
            return True
    if run.done:
        raise NotRunError("the step has ended before it was interrupted")
    return bool(run.stopped)


def _former(bench: Bench) -> Connection:
    """The connection before the one that is open."""
    if bench.former is None:
        raise NotRunError("connecting again has failed")
    return bench.former


@RECONNECTING.claim("connected again", "the TPU has the same mesh and the same replicas")
def _(bench: Bench) -> Observation:
    def facts() -> list[Any]:
        return [[int(size) for size in bench.connection.topology.mesh_shape], bench.replicas]

    before = facts()
    bench.reconnect()
    return equal(before, facts())


@RECONNECTING.claim("running again", "variables and collectives work on the new connection")
def _(bench: Bench) -> Observation:
    import tensorflow as tf

    _former(bench)
    variable = bench.variable(2.0)
    found = bench.on_ranks(
        lambda x: tf.distribute.get_replica_context().all_reduce("SUM", x * variable)
    )
    return close([bench.ranks.sum() * 2.0] * bench.replicas, found)


@RECONNECTING.claim("closed", "a closed connection runs nothing")
def _(bench: Bench) -> Observation:
    try:
        _former(bench).run_cell("1", {})
    except NotConnectedError as error:
        return Observation(True, "NotConnectedError", type(error).__name__, str(error))
    return Observation(False, "NotConnectedError", "it runs")
