"""Claims about the stop button and about connecting again, with JAX."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tpunb.errors import NotConnectedError
from tpunb.jax.verification.jax_suite import JaxSuite
from tpunb.verification.pressing import pressed_when
from tpunb.verification.suite import Outcome, compared, equal

_MOST_STEPS = 10**6
_CELL = "total = total + ctx.all_reduce('mean', batch.mean())"


class Interrupting(JaxSuite):
    """Claims about the stop button."""

    group = "JAX interrupting"
    on_main_thread = True

    def between_steps(self) -> Outcome:
        """Check that the stop button ends a run between two steps, and that no step is lost."""
        names: dict[str, Any] = {"total": jnp.zeros(())}
        run = self.connection.cells.steps(_CELL, names, data=self._ones())
        with pressed_when(lambda: run.done >= 3):
            run.go()
        kept = float(run.assigned["total"])
        found = f"{'stopped' if run.stopped else 'not stopped'}, {kept:.0f} of {run.done} kept"
        return equal(f"stopped, {run.done} of {run.done} kept", found)

    def _ones(self) -> Iterator[np.ndarray]:
        for _ in range(_MOST_STEPS):
            yield np.ones((self.replicas,), np.float32)


class Reconnecting(JaxSuite):
    """Claims about closing the connection and about the next connection."""

    group = "JAX reconnecting"

    def connected_again(self) -> Outcome:
        """Check that the same devices are there again, and compute."""
        before = self._devices()
        former = self.connection
        former.close()
        self.tpu.connection = self.tpu.connect()
        total = float(jax.jit(jnp.sum)(self.cut(self.ranks)))
        expected = f"{before}; their sum is {self.ranks.sum():g}"
        return equal(expected, f"{self._devices()}; their sum is {total:g}")

    def closed(self) -> Outcome:
        """Check that a closed connection runs nothing."""
        closed = self.tpu.connect()
        closed.close()
        self.tpu.connection = self.tpu.connect()
        try:
            closed.run_cell("1", {})
        except NotConnectedError as error:
            return compared(True, "NotConnectedError", type(error).__name__, str(error))
        return compared(False, "NotConnectedError", "it runs")

    def _devices(self) -> str:
        return ", ".join(map(str, self.devices))
