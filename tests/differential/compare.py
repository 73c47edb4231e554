"""Compare a program's results on the virtual TPU and in plain TensorFlow."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from differential import engine, reference
from differential.generator import Program
from differential.optimizer import optimizer

_XLA_FAILS_TOO = re.compile(r"of type AddN must have the same size and shape\. +Input 0: \[0\b")
"""A defect of conditionals under XLA, entry 50 of the catalogue: real TPUs fail too."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """A difference between the two ways to run a program.

    Attributes:
        program: The program.
        kind: "numbers", or which way fails and with what error.
        text: The difference.
    """

    program: Program
    kind: str
    text: str

    def __str__(self) -> str:
        attributes = dataclasses.asdict(self.program)
        source = attributes.pop("source")
        settings = "\n".join(f"# {name} = {value!r}" for name, value in attributes.items())
        return f"# {self.kind}: {self.text}\n{settings}\n{source}"


def compare(program: Program, *, strict: bool = False) -> Finding | None:
    """Run a program both ways."""
    expected, wrong = _outcome(lambda: reference.run(program))
    got, error = _outcome(lambda: engine.run(program, strict=strict))
    if (wrong and error) or wrong.startswith(reference.OutOfStepError.__name__):
        return None
    if wrong or error:
        who = "plain TensorFlow" if wrong else "the virtual TPU"
        if error and (strict or _XLA_FAILS_TOO.search(error)):
            # A TPU refuses much that CPUs compute, such as products of float64.
            return None
        name, _, text = (wrong or error).partition(": ")
        return Finding(program, f"only {who} fails, {name}", " ".join(text.split())[-400:])
    differing = _differences(expected, got)
    if differing:
        differing = _without_ties(differing, program, expected)
    return Finding(program, "numbers", *list(differing.values())[:1]) if differing else None


def compare_optimizer(program: Program) -> Finding | None:
    """Run a program on the virtual TPU with TensorFlow's optimizer and without."""
    with optimizer(enabled=False):
        expected, wrong = _outcome(lambda: engine.run(program))
    with optimizer(enabled=True):
        got, error = _outcome(lambda: engine.run(program))
    if wrong and error:
        return None
    if wrong or error:
        return Finding(program, f"fails only {'without' if wrong else 'with'} it", wrong or error)
    differing = _differences(expected, got)
    if differing:
        differing = _without_ties(differing, program, expected)
    return Finding(program, "numbers", *list(differing.values())[:1]) if differing else None


def _without_ties(
    differing: dict[tuple[int, ...], str], program: Program, expected: list[Any]
) -> dict[tuple[int, ...], str]:
    """Drop differences that rounding decides, such as which of equal elements is the largest."""
    rounded = [reference.run(program, rounded=np.random.default_rng(seed)) for seed in range(3)]
    ties = {place for each in rounded for place in _differences(expected, each)}
    return {place: text for place, text in differing.items() if place not in ties}


def _outcome(run: Callable[[], Any]) -> tuple[Any, str]:
    try:
        return run(), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def _differences(expected: list[Any], got: list[Any]) -> dict[tuple[int, ...], str]:
    """The differences by place: call (the last holds the variables), row, number in the row."""
    differing = {}
    other = dict(_places(got))
    for (call, row, place), wanted in _places(expected):
        a, b = np.asarray(wanted), np.asarray(other[call, row, place])
        if a.shape != b.shape or not np.allclose(a, b, 1e-5, 1e-6, equal_nan=True):
            last = call == len(expected) - 1
            what = "variable {}, copy {}" if last else "replica {}, result {}"
            where = what.format(row, place) + ("" if last else f" of call {call}")
            differing[call, row, place] = f"{where}: expected {a.tolist()}, got {b.tolist()}"
    return differing


def _places(results: list[Any]) -> Iterator[tuple[tuple[int, ...], Any]]:
    for call, rows in enumerate(results):
        for row, values in enumerate(rows):
            for place, value in enumerate(values):
                yield (call, row, place), value
