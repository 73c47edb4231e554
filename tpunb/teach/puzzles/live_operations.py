"""The operations of a StableHLO module on which its results depend."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from jax.extend.mlir import ir

from tpunb.jax.virtual.private_names import private

SHARD_MAP, KERNEL, HOST = "sdy.manual_computation", "tpu_custom_call", "callback"
_CALL, _CUSTOM = "func.call", "stablehlo.custom_call"
_PASSING = frozenset({"stablehlo.while", "stablehlo.case", "stablehlo.if", SHARD_MAP})
"""The operations whose results are those of their blocks, one by one."""


@dataclasses.dataclass(frozen=True)
class LiveOperation:
    """An operation on which a result of the program depends.

    Attributes:
        name: Its name; of a custom call, the name of its target.
        around: The names of the operations around it.
    """

    name: str
    around: tuple[str, ...]


def live_operations(module: str) -> list[LiveOperation]:
    """Return the operations of a module's text on which the results of `main` depend."""
    with private("jax._src.interpreters.mlir.make_ir_context")():
        return list(_Walk(ir.Module.parse(module)).all())


class _Walk:
    """A walk from the results back to the arguments."""

    def __init__(self, module: Any) -> None:
        self._module = module  # JAX's objects are views of it
        functions = [op.operation for op in module.body.operations]
        self._functions = {
            str(op.attributes["sym_name"]).strip('"'): op for op in functions if op.regions
        }
        self._operations: dict[Any, None] = {}
        self._seen: set[Any] = set()
        self._calls: dict[Any, list[Any]] = {}
        self._blocks: dict[Any, set[int]] = {}

    def all(self) -> Iterator[LiveOperation]:
        todo = list(_ends(self._functions["main"])[0].operands)
        while todo:
            value = todo.pop()
            if value not in self._seen:
                self._seen.add(value)
                todo += self._behind(value)
        for operation in self._operations:
            yield LiveOperation(_name(operation), tuple(self._around(operation)))

    def _behind(self, value: Any) -> Iterator[Any]:
        """Yield the values that a value is computed from."""
        number, owner = _number(value), value.owner
        if isinstance(owner, ir.Block):
            yield from self._passed_to(owner, number)
            return
        operation = owner.operation
        self._operations[operation] = None
        if operation.name == _CALL:
            function = self._functions[str(operation.attributes["callee"]).strip('@"')]
            self._calls.setdefault(function, []).append(operation)
            yield _ends(function)[0].operands[number]
            # The function's arguments may be known already, from another call.
            for place in self._blocks.get(function, ()):
                yield operation.operands[place]
        elif operation.name in _PASSING:
            ends = _ends(operation)
            if operation.name == "stablehlo.while":
                yield from ends[0].operands
                yield from (ends[1].operands[number], operation.operands[number])
            else:
                yield from (end.operands[number] for end in ends)
                yield from () if operation.name == SHARD_MAP else operation.operands
        else:
            yield from operation.operands

    def _passed_to(self, block: Any, number: int) -> Iterator[Any]:
        """Yield the values that an argument of a block may have."""
        operation = block.owner.operation
        if operation.name == "func.func":
            self._blocks.setdefault(operation, set()).add(number)
            yield from (call.operands[number] for call in self._calls.get(operation, ()))
        else:
            yield operation.operands[number]
            if operation.name == "stablehlo.while":
                yield _ends(operation)[1].operands[number]

    def _around(self, operation: Any) -> Iterator[str]:
        parent = operation.parent
        while parent is not None and parent.name != "builtin.module":
            yield parent.name
            for call in self._calls.get(parent, ()):
                yield from self._around(call)
            parent = parent.parent


def _name(operation: Any) -> str:
    if operation.name != _CUSTOM:
        return str(operation.name)
    return str(operation.attributes["call_target_name"]).strip('"')


def _number(value: Any) -> int:
    if isinstance(value.owner, ir.Block):
        return int(ir.BlockArgument(value).arg_number)
    return int(ir.OpResult(value).result_number)


def _ends(operation: Any) -> Sequence[Any]:
    """Return the last operation of each block of an operation."""
    return [
        list(block.operations)[-1].operation for region in operation.regions for block in region
    ]
