"""A compiled program, read from the text of its optimised HLO."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping

from tpunb.compiler.shapes import Shape, leaves

__all__ = ["PRODUCTS", "Computation", "Instruction", "Module", "parse"]

_HEAD = re.compile(r"(ENTRY )?%?([^\s(]+) \(.*\{$")
_NAME = re.compile(r"\s*(ROOT )?%?([^\s=]+) = ")
_OPERAND = re.compile(r"%([^\s,)]+)")
_CALLED = re.compile(
    r"\b(calls|body|condition|to_apply|true_computation|false_computation|called_computation)="
    r"%?([^\s,}]+)"
)
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_GROUPS = re.compile(r"replica_groups=(\{\{.*?\}\}|\[\d+,\d+\])")
_INDEX = re.compile(r"\bindex=(\d+)")
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
PRODUCTS = frozenset({"convolution", "dot"})
# They name or group what others make.
_NO_WORK = frozenset({"constant", "get-tuple-element", "parameter", "tuple"})
_ALIASES = re.compile(r"\{([\d, ]*)\}: \((\d+), \{[\d, ]*\}(?:, [a-z-]+)?\)")


@dataclasses.dataclass(frozen=True, slots=True)
class Instruction:
    """One operation of a program.

    Attributes:
        name: Its name.
        opcode: XLA's operation: `"fusion"`, `"all-reduce"`, ….
        shape: The text of its result's shape.
        operands: The names of what it takes.
        argument: The text between the parentheses: a parameter's number, a constant's value.
        rest: What stands behind them.
        root: Whether it is its computation's result.
    """

    name: str
    opcode: str
    shape: str
    operands: tuple[str, ...]
    argument: str
    rest: str
    root: bool = False

    @property
    def results(self) -> tuple[Shape, ...]:
        """The arrays that it gives."""
        return leaves(self.shape)

    @property
    def node(self) -> str:
        """The node of TensorFlow's that it was made for; empty where none is known."""
        found = _OP_NAME.search(self.rest)
        return found[1] if found else ""

    @property
    def cycles(self) -> int | None:
        """The compiler's estimate; None where it makes none."""
        found = _CYCLES.search(self.rest)
        return int(found[1]) if found else None

    @property
    def called(self) -> Mapping[str, str]:
        """The computations that it runs, by what they are to it."""
        found = dict(_CALLED.findall(self.rest))
        if branches := _BRANCHES.search(self.rest):
            names = [name.strip().lstrip("%") for name in branches[1].split(",")]
            found.update({f"branch {number}": name for number, name in enumerate(names)})
        return found

    @property
    def known_trips(self) -> int | None:
        """How often a loop runs, where the compiler noted it."""
        found = _TRIPS.search(self.rest)
        return int(found[1]) if found else None

    @property
    def index(self) -> int:
        """Which element of a tuple it takes."""
        found = _INDEX.search(self.rest)
        return int(found[1]) if found else 0

    @property
    def target(self) -> str:
        """What a custom call calls."""
        found = _TARGET.search(self.rest)
        return found[1] if found else ""

    @property
    def group_size(self) -> int | None:
        """How many cores take part in a collective; None where all do."""
        found = _GROUPS.search(self.rest)
        if not found:
            return None
        text = found[1]
        if text.startswith("["):
            return int(text.strip("[]").split(",")[1])
        return text[2:].partition("}")[0].count(",") + 1


@dataclasses.dataclass(frozen=True)
class Computation:
    """A list of instructions, in the order in which they run where they are scheduled.

    Attributes:
        name: Its name.
        instructions: The instructions.
    """

    name: str
    instructions: tuple[Instruction, ...]

    @functools.cached_property
    def by_name(self) -> Mapping[str, Instruction]:
        """The instructions by their names."""
        return {one.name: one for one in self.instructions}

    @property
    def root(self) -> Instruction:
        """Its result."""
        return next((one for one in self.instructions if one.root), self.instructions[-1])


@dataclasses.dataclass(frozen=True)
class Module:
    """A program.

    Attributes:
        computations: All its computations by name.
        entry: The one that runs.
        aliases: Results that take the place of an argument: of each result's number the
            argument's.
    """

    computations: Mapping[str, Computation]
    entry: Computation
    aliases: Mapping[int, int]

    @functools.cached_property
    def nodes(self) -> Mapping[str, str]:
        """The node of TensorFlow's that each instruction was made for, by the instruction's name.

        What the compiler adds, such as a copy into another layout, belongs to what it is made
        of, and where that has no node to what it is made for.
        """
        found: dict[str, str] = {}
        for computation in self.computations.values():
            found |= _nodes(computation, self.computations)
        return found


def _nodes(computation: Computation, others: Mapping[str, Computation]) -> dict[str, str]:
    instructions = computation.instructions
    found = {one.name: _own_node(one, others) for one in instructions}
    passed_on = {one.name for one in instructions if one.opcode in _NO_WORK}
    for one in instructions:
        if not found[one.name] and one.name not in passed_on:
            before = (found.get(name) for name in one.operands if name not in passed_on)
            found[one.name] = next(filter(None, before), "")
    for one in reversed(instructions):
        for name in one.operands if one.name not in passed_on else ():
            if name not in passed_on and not found.get(name):
                found[name] = found[one.name]
    return found


def _own_node(instruction: Instruction, others: Mapping[str, Computation]) -> str:
    """An instruction's node: of a fusion, that of its heaviest part."""
    inner = others.get(instruction.called.get("calls", ""))
    if instruction.opcode != "fusion" or inner is None:
        return instruction.node
    heavy = next((one for one in inner.instructions if one.opcode in PRODUCTS), None)
    named = next((one for one in reversed(inner.instructions) if one.node), inner.root)
    return (heavy.node if heavy else "") or instruction.node or named.node


def parse(text: str) -> Module:
    """Reads a program's text.

    Raises:
        ValueError: It has no entry.
    """
    lines = iter(text.splitlines())
    head = next(lines, "")
    computations: dict[str, Computation] = {}
    entry = None
    for line in lines:
        match = _HEAD.match(line)
        if match is None or line.startswith(" "):
            continue
        computation = Computation(match[2], tuple(_instructions(lines)))
        computations[computation.name] = computation
        if match[1]:
            entry = computation
    if entry is None:
        raise ValueError("The program has no entry.")
    return Module(computations, entry, _aliases(head))


def _aliases(head: str) -> dict[int, int]:
    start = head.find("input_output_alias={")
    if start < 0:
        return {}
    end = head.find(" }", start)
    found = _ALIASES.findall(head[start : end + 2])
    return {int(result.split(",")[0] or 0): int(argument) for result, argument in found}


def _instructions(lines: Iterator[str]) -> Iterator[Instruction]:
    for line in lines:
        if line.startswith("}"):
            return
        instruction = _instruction(line)
        if instruction is not None:
            yield instruction


def _instruction(line: str) -> Instruction | None:
    match = _NAME.match(line)
    if match is None:
        return None
    begin = match.end()
    end = _closing(line, begin) + 1 if line[begin] == "(" else line.find(" ", begin)
    shape = line[begin:end]
    opened = line.find("(", end)
    if opened < 0:
        return None
    closed = _closing(line, opened)
    argument = line[opened + 1 : closed]
    opcode = line[end:opened].strip()
    operands = () if opcode == "constant" else tuple(_OPERAND.findall(argument))
    return Instruction(
        match[2], opcode, shape, operands, argument, line[closed + 1 :], bool(match[1])
    )


_PARENTHESES = re.compile(r"[()]")


def _closing(line: str, opened: int) -> int:
    """The place of the parenthesis that closes one."""
    depth = 0
    for found in _PARENTHESES.finditer(line, opened):
        depth += 1 if found[0] == "(" else -1
        if not depth:
            return found.start()
    return len(line) - 1
