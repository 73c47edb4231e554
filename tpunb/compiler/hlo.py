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
    return tuple(map(_shape, _ARRAY.finditer(_COMMENT.sub("", text))))


def parsed(text: str) -> Shape | None:
    """The only array of a shape, or None for a tuple or a token."""
    found = leaves(text)
    return found[0] if len(found) == 1 and not text.startswith("(") else None


def _shape(match: re.Match[str]) -> Shape:
    sizes = tuple(int(size.strip("<= ?") or 0) for size in match["sizes"].split(",") if size)
    order = tuple(int(axis) for axis in (match["order"] or "").split(",") if axis)
    layout = match["layout"] or ""
    tiles = _TILE.search(layout)
    space = _SPACE.search(layout)
    return Shape(
        match["dtype"],
        sizes,
        order,
        tuple(map(_tile, tiles[1][1:-1].split(")("))) if tiles else (),
        int(space[1]) if space else 0,
        match[0].partition("]")[2],
    )


def _tile(text: str) -> tuple[int, ...]:
    # `*` joins an axis to the next one.
    return tuple(1 if size in ("*", "-1") else int(size) for size in text.split(","))


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
        """The number of a loop's turns, where the compiler noted it."""
        found = _TRIPS.search(self.rest)
        return int(found[1]) if found else None

    @property
    def index(self) -> int:
        """The index of the tuple's element that it takes."""
        found = _INDEX.search(self.rest)
        return int(found[1]) if found else 0

    @property
    def target(self) -> str:
        """The target of a custom call."""
        found = _TARGET.search(self.rest)
        return found[1] if found else ""

    @property
    def group_size(self) -> int | None:
        """The number of cores that take part in a collective; None if all do."""
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
    lines = iter(_BROKEN.sub(" ", text).splitlines())
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
    """Return the compared element of a loop's state, its limit, and whether equality counts."""
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


_GROUPED = re.compile(r"(?:feature|batch)_group_count=(\d+)")
_RESULT_LABELS = re.compile(r"dim_labels=\w+->(\w+)")
_NARROW = 8
"""Features of a group: the rows of a tile."""

_LABELS = re.compile(r"dim_labels=\w+_(\w+)->")
_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")


def products(
    instruction: Instruction, module: Module, around: Computation | None = None
) -> Iterator[tuple[Instruction, Computation]]:
    """The products that an instruction consists of, in fusions within it too.

    Args:
        instruction: The instruction.
        module: The program.
        around: The computation that it is in, by default the program's entry.
    """
    if instruction.opcode in PRODUCTS:
        yield instruction, around or module.entry
    elif instruction.opcode == "fusion":
        inner = module.computations.get(instruction.called.get("calls", ""))
        for one in inner.instructions if inner else ():
            yield from products(one, module, inner)


def is_depthwise(product: Instruction) -> bool:
    """Return whether a convolution's groups are too narrow for the matrix unit to sum anything."""
    groups, labels = _GROUPED.search(product.rest), _RESULT_LABELS.search(product.rest)
    if groups is None or labels is None:
        return False
    return product.results[0].sizes[labels[1].index("f")] < _NARROW * int(groups[1])


def multiplications(product: Instruction, inside: Computation) -> float:
    """Return the number of multiplications of a product; 0 where the text does not show it."""
    shapes = [_shape_of(inside.by_name.get(name)) for name in product.operands[:2]]
    if len(shapes) < 2 or None in shapes:
        return 0.0
    left, right = (shape.sizes for shape in shapes if shape is not None)
    result = math.prod(product.results[0].sizes)
    if found := _LABELS.search(product.rest):
        return result * math.prod(right) / max(right[found[1].index("o")], 1)
    found = _CONTRACTED.search(product.rest)
    axes = [int(axis) for axis in found[1].split(",") if axis] if found else []
    return float(result * math.prod(left[axis] for axis in axes))


def _shape_of(instruction: Instruction | None) -> Shape | None:
    return instruction.results[0] if instruction is not None and instruction.results else None
