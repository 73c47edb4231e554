"""Processes of `benchmarks.training` that take turns, so that other load slows all of them."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.report import MeasurementError
from benchmarks.training import FIRST, LATER, serve

__all__ = ["Steps", "steps_of"]

_MOST = 300.0  # seconds for an answer

# Importing TensorFlow takes 5 s, so all processes are forked from a process that has imported it.
_processes: Any = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["benchmarks.preloaded"])


@dataclass
class Steps:
    """The measurements of one strategy's steps. Equal places were measured in one turn.

    Attributes:
        first: The first step of each process; an empty dict if it did not end in time.
        later: The later steps, for each turn of each process.
        peaks: The last measurement of each process.
    """

    first: list[dict[str, float]] = field(default_factory=list)
    later: list[dict[str, float]] = field(default_factory=list)
    peaks: list[dict[str, float]] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """True if the first step of every process ended in time."""
        return bool(self.first) and all(self.first)


def steps_of(
    model: str,
    cores: int,
    strategies: Sequence[str],
    *,
    repeats: int,
    turns: int,
    seconds: float,
    timeout: float,
) -> dict[str, Steps]:
    """Measure strategies against each other, each in its own processes.

    Args:
        model: The model's name.
        cores: The number of replicas. One device takes the batches of all of them.
        strategies: The names of the strategies.
        repeats: The most processes for each strategy.
        turns: The number of turns with later steps in each process.
        seconds: The time after which no further processes start.
        timeout: Seconds for a first step. A strategy that takes longer is left out.

    Raises:
        MeasurementError: A process failed.
    """
    began = time.monotonic()
    found = {name: Steps() for name in strategies}
    order = list(strategies)
    for repeat in range(repeats):
        if repeat and time.monotonic() - began > seconds:
            break
        order = order[1:] + order[:1]
        running = [name for name in order if not found[name].first or found[name].is_complete]
        _measure(model, cores, running, found, turns, timeout)
    return found


def _measure(
    model: str,
    cores: int,
    order: Sequence[str],
    found: dict[str, Steps],
    turns: int,
    timeout: float,
) -> None:
    """Measure each strategy in a process of its own."""
    processes = {name: _Process(name, cores, model) for name in order}
    try:
        for process in processes.values():
            process.answer()  # the model exists
        for name in order:
            found[name].first.append(processes[name].ask(FIRST, timeout))
        ended = [name for name in order if found[name].is_complete]
        for _ in range(turns):
            for name in ended:
                found[name].later.append(processes[name].ask(LATER))
        for name in ended:
            found[name].peaks.append(found[name].later[-1])
    finally:
        for process in processes.values():
            process.end()


class _Process:
    """A process of `benchmarks.training`."""

    def __init__(self, strategy: str, cores: int, model: str) -> None:
        self._title = f"{model} on {cores} cores, {strategy}"
        self._asked, theirs = _processes.Pipe()
        arguments = (theirs, strategy, cores, model)
        self._process = _processes.Process(target=serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, what: str, timeout: float | None = None) -> dict[str, float]:
        """Return the answer to a request; an empty dict if it takes longer than the timeout."""
        self._asked.send(what)
        return self.answer(timeout)

    def answer(self, timeout: float | None = None) -> dict[str, float]:
        """Return the next message of the process."""
        if not self._asked.poll(timeout or _MOST):
            self.end()
            if timeout is None:
                raise MeasurementError(f"{self._title}: no answer for {_MOST:g} s")
            return {}
        try:
            measured: dict[str, float] = self._asked.recv()
        except EOFError:
            raise MeasurementError(f"{self._title}: the process failed") from None
        return measured

    def end(self) -> None:
        self._process.kill()
        self._process.join()
