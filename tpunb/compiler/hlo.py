"""A compiled program, read from the text of its optimised HLO: shapes, loops, products."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping

_BITS = {
    "pred": 8, "s2": 2, "u2": 2, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16,
    "s32": 32, "u32": 32, "s64": 64, "u64": 64, "f16": 16, "bf16": 16, "f32": 32, "f64": 64,
    "c64": 64, "c128": 128,
}  # fmt: skip
_ARRAY = re.compile(
    r"(?P<dtype>[a-z]\w*)\[(?P<sizes>[^\]]*)\](?:\{(?P<order>[\d,]*)(?::(?P<layout>[^}]*))?\})?"
)
_TILE = re.compile(r"T((?:\([\d,*-]+\))+)")
_SPACE = re.compile(r"S\((\d+)\)")
_COMMENT = re.compile(r"/\*.*?\*/")


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """An array in a program.

    Attributes:
        dtype: XLA's name of its type.
        sizes: Its sizes; bounds where a size depends on data.
        order: Its axes, the one whose neighbours lie side by side first.
        tiles: The tiles into which it is cut, the outermost first.
        space: The memory space: 0 is HBM.
        text: The layout's text.
    """

    dtype: str
    sizes: tuple[int, ...]
    order: tuple[int, ...] = ()
    tiles: tuple[tuple[int, ...], ...] = ()
    space: int = 0
    text: str = ""

    @property
    def unpadded(self) -> int:
        """The bytes of its numbers."""
        return math.ceil(math.prod(self.sizes) * _BITS.get(self.dtype, 0) / 8)

    @property
    def padded(self) -> int:
        """The bytes it takes with padded tiles."""
        sizes = [self.sizes[axis] for axis in reversed(self.order)] or list(self.sizes)
        if self.tiles:
            tile = self.tiles[0]
            sizes = [1] * (len(tile) - len(sizes)) + sizes
            first = len(sizes) - len(tile)
            for place, size in enumerate(tile, start=first):
                sizes[place] = -(-sizes[place] // size) * size
        return math.ceil(math.prod(sizes) * _BITS.get(self.dtype, 0) / 8)


@functools.lru_cache(maxsize=4096)
def leaves(text: str) -> tuple[Shape, ...]:
    """The arrays of a shape, which may be a tuple of tuples, in order."""
    found = []
    for match in _ARRAY.finditer(_COMMENT.sub("", text)):
        layout = match["layout"] or ""
        tiles, space = _TILE.search(layout), _SPACE.search(layout)
        found.append(
            Shape(
                match["dtype"],
                tuple(int(size.strip("<= ?") or 0) for size in match["sizes"].split(",") if size),
                numbers(match["order"] or ""),
                tuple(
                    # `*` joins an axis to the next one.
                    tuple(1 if size in ("*", "-1") else int(size) for size in tile.split(","))
                    for tile in (tiles[1][1:-1].split(")(") if tiles else ())
                ),
                int(space[1]) if space else 0,
                match[0].partition("]")[2],
            )
        )
    return tuple(found)


def numbers(text: str) -> tuple[int, ...]:
    """The numbers of a list in the text of a program."""
    return tuple(int(part) for part in text.split(",") if part)


_HEAD = re.compile(r"(ENTRY )?%?([^\s(]+) \(.*\{$")
_BROKEN = re.compile(r'\n(?="|\}[^\n])')
"""Where an attribute goes on in another line, as the metadata of a Pallas kernel may."""
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
        return self.attribute(_OP_NAME)

    @property
    def cycles(self) -> int | None:
        """The compiler's estimate; None where it makes none."""
        found = self.attribute(_CYCLES)
        return int(found) if found else None

    @property
    def called(self) -> Mapping[str, str]:
        """The computations that it runs, by what they are to it."""
        found = dict(_CALLED.findall(self.rest))
        if branches := self.attribute(_BRANCHES):
            names = [name.strip().lstrip("%") for name in branches.split(",")]
            found.update({f"branch {number}": name for number, name in enumerate(names)})
        return found

    @property
    def index(self) -> int:
        """The index of the tuple's element that it takes."""
        return int(self.attribute(_INDEX) or 0)

    @property
    def target(self) -> str:
        """The target of a custom call."""
        return self.attribute(_TARGET)

    @property
    def group_size(self) -> int | None:
        """The number of cores that take part in a collective; None if all do."""
        text = self.attribute(_GROUPS)
        if text.startswith("["):
            return int(text.strip("[]").split(",")[1])
        return text[2:].partition("}")[0].count(",") + 1 if text else None

    def attribute(self, pattern: re.Pattern[str]) -> str:
        """The first group of a pattern in what stands behind the operands; else empty."""
        found = pattern.search(self.rest)
        return found[1] if found else ""


@dataclasses.dataclass(frozen=True)
class Computation:
    """A list of instructions, in the order in which they run where they are scheduled.

    Attributes:
        instructions: The instructions.
    """

    instructions: tuple[Instruction, ...]

    @functools.cached_property
    def by_name(self) -> Mapping[str, Instruction]:
        """The instructions by their names."""
        return {one.name: one for one in self.instructions}

    @property
    def root(self) -> Instruction:
        """Its result."""
        return next((one for one in self.instructions if one.root), self.instructions[-1])

    def shape(self, name: str) -> Shape | None:
        """The first array that an instruction gives; None where the text does not show it."""
        found = self.by_name.get(name)
        return found.results[0] if found is not None and found.results else None


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
            instructions = computation.instructions
            found |= {one.name: _own_node(one, self) for one in instructions}
            passed_on = {one.name for one in instructions if one.opcode in _NO_WORK}
            working = [one for one in instructions if one.name not in passed_on]
            for one in working:
                if not found[one.name]:
                    before = (found.get(name) for name in one.operands if name not in passed_on)
                    found[one.name] = next(filter(None, before), "")
            for one in reversed(working):
                for name in one.operands:
                    if name not in passed_on and not found.get(name):
                        found[name] = found[one.name]
        return found


def _own_node(instruction: Instruction, module: Module) -> str:
    """An instruction's node: of a fusion, that of its heaviest part."""
    inner = module.computations.get(instruction.called.get("calls", ""))
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
    head, *lines = _BROKEN.sub(" ", text).splitlines() or [""]
    found: dict[str, list[Instruction]] = {}
    entry, inside = "", None
    for line in lines:
        if match := _HEAD.match(line):
            inside = found[match[2]] = []
            entry = match[2] if match[1] else entry
        elif line.startswith("}"):
            inside = None
        elif inside is not None and (instruction := _instruction(line)):
            inside.append(instruction)
    if not entry:
        raise ValueError("The program has no entry.")
    computations = {name: Computation(tuple(listed)) for name, listed in found.items()}
    _, _, aliases = head.partition("input_output_alias={")
    pairs = _ALIASES.findall(aliases.partition(" }")[0])
    return Module(
        computations,
        computations[entry],
        {int(result.split(",")[0] or 0): int(argument) for result, argument in pairs},
    )


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


_NUMBER = re.compile(r"-?\d+")
_DIRECTION = re.compile(r"direction=(LT|LE)\b")


def trips(loop: Instruction, around: Computation, module: Module) -> int | None:
    """The trips of a `while`: noted by the compiler, or from a counter and its constant limit.

    Args:
        loop: The instruction.
        around: The computation that it is in.
        module: The program.
    """
    if known := loop.attribute(_TRIPS):
        return int(known)
    called = loop.called
    try:
        condition, body = (module.computations[called[kind]] for kind in ("condition", "body"))
        counter, limit = condition.root.operands
        count, state = condition.by_name[counter], around.by_name[loop.operands[0]]
        begin = _constant(state.operands[count.index], around)
        added = body.by_name[body.root.operands[count.index]]
    except (LookupError, ValueError):  # a loop of another form
        return None
    opcodes = count.opcode, state.opcode, body.root.opcode, added.opcode
    if opcodes != ("get-tuple-element", "tuple", "tuple", "add"):
        return None
    end = _constant(limit, condition)
    steps = [_constant(name, body) for name in added.operands]
    step = next((one for one in steps if one is not None), 0)
    direction = condition.root.attribute(_DIRECTION)
    if begin is None or end is None or step <= 0 or not direction:
        return None
    return max(-(-(end + (direction == "LE") - begin) // step), 0)


def _constant(name: str, computation: Computation) -> int | None:
    """The number that an instruction gives, through copies; None where it is no constant."""
    found = computation.by_name.get(name)
    while found is not None and found.opcode in {"copy", "bitcast"} and found.operands:
        found = computation.by_name.get(found.operands[0])
    if found is None or found.opcode != "constant" or not _NUMBER.fullmatch(found.argument):
        return None
    return int(found.argument)


_GROUPED = re.compile(r"(?:feature|batch)_group_count=(\d+)")
_RESULT_LABELS = re.compile(r"dim_labels=\w+->(\w+)")
_NARROW = 8
"""Features of a group: the rows of a tile."""

_LABELS = re.compile(r"dim_labels=\w+_(\w+)->")
_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")


def parts(
    instruction: Instruction, around: Computation, module: Module
) -> Iterator[tuple[Instruction, Computation]]:
    """What an instruction consists of: of a fusion its parts, those of fusions within it too.

    Args:
        instruction: The instruction.
        around: The computation that it is in.
        module: The program.

    Yields:
        Each part, and the computation that it is in.
    """
    if instruction.opcode != "fusion":
        yield instruction, around
    elif inner := module.computations.get(instruction.called.get("calls", "")):
        for one in inner.instructions:
            yield from parts(one, inner, module)


def is_depthwise(product: Instruction) -> bool:
    """Return whether a convolution's groups are too narrow for the matrix unit to sum anything."""
    groups, labels = product.attribute(_GROUPED), product.attribute(_RESULT_LABELS)
    if not groups or not labels:
        return False
    return product.results[0].sizes[labels.index("f")] < _NARROW * int(groups)


def multiplications(product: Instruction, inside: Computation) -> float:
    """Return the number of multiplications of a product; 0 where the text does not show it."""
    left, right = (inside.shape(name) for name in product.operands[:2])
    if left is None or right is None:
        return 0.0
    result = math.prod(product.results[0].sizes)
    if labels := product.attribute(_LABELS):
        return result * math.prod(right.sizes) / max(right.sizes[labels.index("o")], 1)
    axes = numbers(product.attribute(_CONTRACTED))
    return float(result * math.prod(left.sizes[axis] for axis in axes))
