"""The instructions that one call of a program runs, and how often each."""

from __future__ import annotations

import dataclasses

from tpunb.compiler.read.hlo import Computation, Instruction, Module, trips

# These opcodes name, group or wait for the work of others, and take no time themselves.
_FREE = frozenset(
    {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional"}
    | {"call", "after-all", "partition-id", "replica-id", "iota", "domain"}
    | {"optimization-barrier", "add-dependency", "async-update"}
)
_BITCASTS = frozenset({"ConcatBitcast", "SliceBitcast", "AllocateBuffer", "Sharding"})


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """An instruction that runs.

    Attributes:
        instruction: The instruction, which is not inside a fusion.
        around: The computation that contains it.
        times: The number of its runs in a call; in branches, the mean number.
    """

    instruction: Instruction
    around: Computation
    times: float


class Runs:
    """The instructions of a program with work of their own, in the order of the text.

    Args:
        module: The program.

    Attributes:
        all: The instructions.
        unknown_loops: The number of loops of unknown length, which count as one trip each.
        branches: The number of conditionals, which count as the mean of their branches.
    """

    def __init__(self, module: Module) -> None:
        self._module = module
        self.all: list[Run] = []
        self.unknown_loops = self.branches = 0
        self._add(module.entry, 1.0)

    def _add(self, computation: Computation, times: float) -> None:
        module = self._module
        for instruction in computation.instructions:
            opcode, called = instruction.opcode, instruction.called
            if opcode == "while":
                number = trips(instruction, computation, module)
                self.unknown_loops += number is None
                body = module.computations[called["body"]]
                self._add(body, times * (1 if number is None else number))
            elif opcode == "conditional":
                self.branches += 1
                for name in called.values():
                    self._add(module.computations[name], times / len(called))
            elif opcode == "call":
                self._add(module.computations[called["to_apply"]], times)
            # An instruction that ends another has no work of its own.
            elif not (
                opcode.endswith("-done") or opcode in _FREE or instruction.target in _BITCASTS
            ):
                self.all.append(Run(instruction, computation, times))
