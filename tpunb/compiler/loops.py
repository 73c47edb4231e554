"""How often a loop of a program runs."""

from __future__ import annotations

import re

from tpunb.compiler.hlo import Computation, Instruction, Module

__all__ = ["trips"]

_NUMBER = re.compile(r"-?\d+")


def trips(loop: Instruction, around: Computation, module: Module) -> int | None:
    """The trips of a `while`: noted by the compiler, or from a counter and its constant limit.

    Args:
        loop: The instruction.
        around: The computation that it is in.
        module: The program.
    """
    if loop.known_trips is not None:
        return loop.known_trips
    condition = module.computations.get(loop.called.get("condition", ""))
    body = module.computations.get(loop.called.get("body", ""))
    if condition is None or body is None:
        return None
    compared = _compared(condition)
    if compared is None:
        return None
    index, limit, inclusive = compared
    begin = _initial(loop, around, index)
    step = _step(body, index)
    if begin is None or not step or step < 0:
        return None
    return max(-(-(limit + inclusive - begin) // step), 0)


def _compared(condition: Computation) -> tuple[int, int, bool] | None:
    """Which element of the loop's state is compared, with what, and whether equality counts."""
    root = condition.root
    if root.opcode == "fusion" or len(root.operands) != 2:
        return None
    direction = re.search(r"direction=(\w+)", root.rest)
    counter, limit = (condition.by_name.get(name) for name in root.operands)
    if counter is None or limit is None or direction is None:
        return None
    value = _constant(limit)
    if counter.opcode != "get-tuple-element" or value is None or direction[1] not in {"LT", "LE"}:
        return None
    return counter.index, value, direction[1] == "LE"


def _initial(loop: Instruction, around: Computation, index: int) -> int | None:
    state = around.by_name.get(loop.operands[0])
    if state is None or state.opcode != "tuple" or index >= len(state.operands):
        return None
    return _value(state.operands[index], around)


def _step(body: Computation, index: int) -> int | None:
    root = body.root
    if root.opcode != "tuple" or index >= len(root.operands):
        return None
    added = body.by_name.get(root.operands[index])
    if added is None or added.opcode != "add":
        return None
    values = [_value(name, body) for name in added.operands]
    return next((value for value in values if value is not None), None)


def _value(name: str, computation: Computation) -> int | None:
    """The number that an instruction gives, through copies."""
    found = computation.by_name.get(name)
    while found is not None and found.opcode in {"copy", "bitcast"} and found.operands:
        found = computation.by_name.get(found.operands[0])
    return _constant(found) if found is not None else None


def _constant(instruction: Instruction) -> int | None:
    if instruction.opcode != "constant" or not _NUMBER.fullmatch(instruction.argument):
        return None
    return int(instruction.argument)
