"""Shrink a program to the smallest that still shows a difference."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterator

from differential.compare import Finding
from differential.generator import Program

_INPUTS = {"v_": "y", "s_": "s", "b_": "x"}


def shrink(
    finding: Finding, check: Callable[[Program], Finding | None], seconds: float = 120
) -> Finding:
    """Remove what a program does not need to show a finding of the same kind.

    Args:
        finding: The finding.
        check: Compares a smaller program.
        seconds: The time limit.
    """
    end = time.monotonic() + seconds
    smaller = True
    while smaller:
        smaller = False
        for program in _smaller(finding.program):
            if time.monotonic() > end:
                return finding
            smaller_finding = check(program)
            if smaller_finding is not None and smaller_finding.kind == finding.kind:
                finding, smaller = smaller_finding, True
                break
    return finding


def _smaller(program: Program) -> Iterator[Program]:
    lines = program.source.splitlines()
    for first in reversed(range(len(lines))):
        if lines[first].strip() and not lines[first].startswith("def"):
            after = _end(lines, first)
            rest = [*lines[:first], *lines[after:]]
            yield _with(program, rest)
            name = lines[first].strip().partition(" = ")[0]
            if name[:2] in _INPUTS:
                # Statements that read this name read an input of the same type instead.
                replaced = re.compile(rf"\b{name}\b")
                yield _with(program, [replaced.sub(_INPUTS[name[:2]], line) for line in rest])
            if after > first + 1:
                inner = [line[4:] for line in lines[first + 1 : after]]
                yield _with(program, [*lines[:first], *inner, *lines[after:]])
        if lines[first].lstrip().startswith("return ["):
            head, _, rest = lines[first].partition("[")
            names = rest.rstrip("]").split(", ")
            for name in names if len(names) > 1 else ():
                yield _with(program, [*lines[:first], f"{head}[{name}]", *lines[first + 1 :]])
    for number in range(len(program.calls)):
        if len(program.calls) > 1:
            calls = (*program.calls[:number], *program.calls[number + 1 :])
            yield dataclasses.replace(program, calls=calls)
    if program.replicas > 2:
        yield dataclasses.replace(program, replicas=2, rows=program.rows[:2])


def _end(lines: list[str], first: int) -> int:
    """The line after a statement and its block; a decorator belongs to its function."""
    indent = len(lines[first]) - len(lines[first].lstrip())
    after = first + 1
    if lines[first].lstrip().startswith("@"):
        after += 1
    while after < len(lines) and len(lines[after]) - len(lines[after].lstrip()) > indent:
        after += 1
    if lines[first].lstrip().startswith("if ") and lines[after].strip() == "else:":
        return _end(lines, after)
    return after


def _with(program: Program, lines: list[str]) -> Program:
    return dataclasses.replace(program, source="\n".join(lines) + "\n")
