"""Strategies that the tests of a module share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.shared_strategies import shared

two, three, four = shared(2), shared(3), shared(4)
"""Strategies with this number of replicas."""

lenient = shared(4, strict=False)
"""A strategy that allows what a TPU refuses: the engine's tests go beyond a TPU's limits."""

hosts = shared("v5e-16")
"""A strategy for two hosts with eight cores each, in this process."""


@pytest.fixture(
    params=["plain", pytest.param("in a cell beside a thread", marks=pytest.mark.thorough)]
)
def circumstances(request: pytest.FixtureRequest, tf: Any) -> Iterator[None]:
    """Run the test plainly, or as in a connected notebook's cell and beside a second thread.

    A cell's functions run on another thread, so that an interrupt can stop them. The second thread
    runs steps of another strategy without pause.
    """
    if request.param == "plain":
        yield
        return
    from support.strategies import make, strategy_of

    from tpunb.tensorflow.virtual.runtime.stoppable import StoppableCalls

    other = strategy_of(2)
    v = make(other, 0.0)
    step = tf.function(lambda: other.run(lambda: v.assign_add(1.0)), autograph=False)
    step()
    stop = threading.Event()

    def go() -> None:
        while not stop.is_set():
            step()

    thread, calls = threading.Thread(target=go), StoppableCalls()
    thread.start()
    try:
        with calls:
            yield
    finally:
        stop.set()
        thread.join()
        calls.close()
