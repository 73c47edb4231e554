"""A compiled program, read from its optimised HLO: shapes, loops, products."""

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
        dtype: XLA's name of the type.
        sizes: The sizes; a size that depends on data has its bound here.
        order: The axes, from the axis whose neighbours are adjacent in memory.
        tiles: The tiles that divide the array, the outermost first.
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
    def bits(self) -> int:
        """The bits of a number; 0 if the type is not known."""
        return _BITS.get(self.dtype, 0)

    @property
    def unpadded(self) -> int:
        """The bytes of its numbers."""
        return math.ceil(math.prod(self.sizes) * self.bits / 8)

    @property
    def padded(self) -> int:
        """The bytes with padded tiles."""
        sizes = [self.sizes[axis] for axis in reversed(self.order)] or list(self.sizes)
        if self.tiles:
            tile = self.tiles[0]
            sizes = [1] * (len(tile) - len(sizes)) + sizes
            first = len(sizes) - len(tile)
            for place, size in enumerate(tile, start=first):
                sizes[place] = -(-sizes[place] // size) * size
        return math.ceil(math.prod(sizes) * self.bits / 8)


@functools.lru_cache(maxsize=4096)
def leaves(text: str) -> tuple[Shape, ...]:
    """Return the arrays of a shape, which may be a tuple of tuples, in order."""
    shapes = []
    for match in _ARRAY.finditer(_COMMENT.sub("", text)):
        layout = match["layout"] or ""
        tiles, space = _TILE.search(layout), _SPACE.search(layout)
        shapes.append(
            Shape(
                match["dtype"],
                tuple(int(size.strip("<= ?") or 0) for size in match["sizes"].split(",") if size),
                numbers(match["order"] or ""),
                tuple(
                    # `*` joins an axis to the next axis.
                    tuple(1 if size in ("*", "-1") else int(size) for size in tile.split(","))
                    for tile in (tiles[1][1:-1].split(")(") if tiles else ())
                ),
                int(space[1]) if space else 0,
                match[0].partition("]")[2],
            )
        )
    return tuple(shapes)


def numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of a list in the text of a program."""
    return tuple(int(part) for part in text.split(",") if part)


_HEAD = re.compile(r"(ENTRY )?%?([^\s(]+) \(.*\{$")
_BROKEN = re.compile(r'\n(?="|\}[^\n])')
"""A line break within an attribute, as in the metadata of a Pallas kernel."""
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
_INDEX = re.compile(r"\bindex=(\d+)")
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
PRODUCTS = frozenset({"convolution", "dot"})
# These opcodes name or group the results of others.
_NO_WORK = frozenset({"constant", "get-tuple-element", "parameter", "tuple"})
_ALIASES = re.compile(r"\{([\d, ]*)\}: \((\d+), \{[\d, ]*\}(?:, [a-z-]+)?\)")
"""The result and the argument in `{0}: (1, {}, may-alias)`, of a program or of an instruction."""


@dataclasses.dataclass(frozen=True, slots=True)
class Instruction:
    """One operation of a program.

    Attributes:
        name: The instruction's name.
        opcode: XLA's operation: `"fusion"`, `"all-reduce"`, ….
        shape: The text of the result's shape.
        operands: The names of its operands.
        argument: The text between the parentheses: a parameter's number, a constant's value.
        rest: The text after the parentheses.
        root: Whether it is the result of its computation.
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
        """The arrays of its result."""
        return leaves(self.shape)

    @property
    def node(self) -> str:
        """The TensorFlow node that it was made for; empty if unknown."""
        return self.attribute(_OP_NAME)

    @property
    def cycles(self) -> int | None:
        """The compiler's estimate of its cycles; None if there is none."""
        cycles = self.attribute(_CYCLES)
        return int(cycles) if cycles else None

    @property
    def called(self) -> Mapping[str, str]:
        """The computations that it runs, by their roles."""
        computations = dict(_CALLED.findall(self.rest))
        if branches := self.attribute(_BRANCHES):
            names = [name.strip().lstrip("%") for name in branches.split(",")]
            computations.update({f"branch {number}": name for number, name in enumerate(names)})
        return computations

    @property
    def index(self) -> int:
        """The index of the tuple element that it takes."""
        return int(self.attribute(_INDEX) or 0)

    @property
    def target(self) -> str:
        """The target of a custom call."""
        return self.attribute(_TARGET)

    def attribute(self, pattern: re.Pattern[str]) -> str:
        """Return the first group of a pattern in `rest`, or an empty string."""
        match = pattern.search(self.rest)
        return match[1] if match else ""


@dataclasses.dataclass(frozen=True)
class Computation:
    """A list of instructions, in the order of execution if they are scheduled.

    Attributes:
        instructions: The instructions.
    """

    instructions: tuple[Instruction, ...]

    @functools.cached_property
    def by_name(self) -> Mapping[str, Instruction]:
        """The instructions by name."""
        return {instruction.name: instruction for instruction in self.instructions}

    @functools.cached_property
    def places(self) -> Mapping[str, int]:
        """The places of the instructions in the order, by name."""
        return {step.name: place for place, step in enumerate(self.instructions)}

    @functools.cached_property
    def opcodes(self) -> frozenset[str]:
        """The operations of its instructions."""
        return frozenset(instruction.opcode for instruction in self.instructions)

    @property
    def root(self) -> Instruction:
        """The instruction of its result."""
        roots = (instruction for instruction in self.instructions if instruction.root)
        return next(roots, self.instructions[-1])

    def shape(self, name: str) -> Shape | None:
        """Return the first array of an instruction's result, or None if the text lacks it."""
        instruction = self.by_name.get(name)
        return instruction.results[0] if instruction is not None and instruction.results else None


@dataclasses.dataclass(frozen=True)
class Module:
    """A program.

    Attributes:
        computations: All its computations by name.
        entry: The computation that is run.
        aliases: For each result that replaces an argument, by number, the argument's number.
    """

    computations: Mapping[str, Computation]
    entry: Computation
    aliases: Mapping[int, int]

    @functools.cached_property
    def nodes(self) -> Mapping[str, str]:
        """The TensorFlow node of each instruction, by the instruction's name.

        An instruction that the compiler adds, such as a copy into another layout, gets the node
        of its operands, or else the node of its users.
        """
        nodes: dict[str, str] = {}
        for computation in self.computations.values():
            instructions = computation.instructions
            nodes |= {step.name: _own_node(step, self) for step in instructions}
            idle = {step.name for step in instructions if step.opcode in _NO_WORK}
            working = [step for step in instructions if step.name not in idle]
            for step in working:
                if not nodes[step.name]:
                    before = (nodes.get(name) for name in step.operands if name not in idle)
                    nodes[step.name] = next(filter(None, before), "")
            for step in reversed(working):
                for name in step.operands:
                    if name not in idle and not nodes.get(name):
                        nodes[name] = nodes[step.name]
        return nodes


def _own_node(instruction: Instruction, module: Module) -> str:
    """Return an instruction's node. The node of a fusion is the node of its heaviest part."""
    inner = module.computations.get(instruction.called.get("calls", ""))
    if instruction.opcode != "fusion" or inner is None:
        return instruction.node
    heavy = next((part for part in inner.instructions if part.opcode in PRODUCTS), None)
    named = next((part for part in reversed(inner.instructions) if part.node), inner.root)
    return (heavy.node if heavy else "") or instruction.node or named.node


def parse(text: str) -> Module:
    """Parse a program's text.

    Raises:
        ValueError: The program has no entry.
    """
    head, *lines = _BROKEN.sub(" ", text).splitlines() or [""]
    instructions: dict[str, list[Instruction]] = {}
    entry, inside = "", None
    for line in lines:
        if match := _HEAD.match(line):
            inside = instructions[match[2]] = []
            entry = match[2] if match[1] else entry
        elif line.startswith("}"):
            inside = None
        elif inside is not None and (instruction := _instruction(line)):
            inside.append(instruction)
    if not entry:
        raise ValueError("The program has no entry.")
    computations = {name: Computation(tuple(steps)) for name, steps in instructions.items()}
    _, _, aliases = head.partition("input_output_alias={")
    return Module(computations, computations[entry], aliases_in(aliases.partition(" }")[0]))


def aliases_in(text: str) -> dict[int, int]:
    """Return the number of the argument that each result replaces, by the result's number."""
    pairs = _ALIASES.findall(text)
    return {int(result.split(",")[0] or 0): int(argument) for result, argument in pairs}


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
    """Return the place of the parenthesis that closes the one at `opened`."""
    depth = 0
    for match in _PARENTHESES.finditer(line, opened):
        depth += 1 if match[0] == "(" else -1
        if not depth:
            return match.start()
    return len(line) - 1


_NUMBER = re.compile(r"-?\d+")
_DIRECTION = re.compile(r"direction=(LT|LE)\b")


def trips(loop: Instruction, around: Computation, module: Module) -> int | None:
    """Return the trips of a `while`, from the compiler's note or from its counter and limit.

    Args:
        loop: The instruction.
        around: The computation that contains it.
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
    step = next((size for size in steps if size is not None), 0)
    direction = condition.root.attribute(_DIRECTION)
    if begin is None or end is None or step <= 0 or not direction:
        return None
    return max(-(-(end + (direction == "LE") - begin) // step), 0)


def _constant(name: str, computation: Computation) -> int | None:
    """Return the number that an instruction yields, through copies, or None if not constant."""
    source = computation.by_name.get(name)
    while source is not None and source.opcode in {"copy", "bitcast"} and source.operands:
        source = computation.by_name.get(source.operands[0])
    if source is None or source.opcode != "constant" or not _NUMBER.fullmatch(source.argument):
        return None
    return int(source.argument)


_GROUPED = re.compile(r"(?:feature|batch)_group_count=(\d+)")
_NARROW = 8
"""The features of a narrow group: the rows of a tile."""

_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")


def parts(
    instruction: Instruction, around: Computation, module: Module
) -> Iterator[tuple[Instruction, Computation]]:
    """Yield the parts of a fusion, including the parts of fusions inside it, or the instruction.

    Args:
        instruction: The instruction.
        around: The computation that contains it.
        module: The program.

    Yields:
        Each part, and the computation that contains it.
    """
    if instruction.opcode != "fusion":
        yield instruction, around
    elif inner := module.computations.get(instruction.called.get("calls", "")):
        for part in inner.instructions:
            yield from parts(part, inner, module)


def is_depthwise(product: Instruction) -> bool:
    """Return whether a convolution's groups are too narrow for sums in the matrix unit."""
    groups, labels = product.attribute(_GROUPED), _LABELS.search(product.rest)
    if not groups or labels is None:
        return False
    return product.results[0].sizes[labels[3].index("f")] < _NARROW * int(groups)


def multiplications(product: Instruction, inside: Computation) -> float:
    """Return the number of multiplications of a product, or 0 if the text lacks the shapes."""
    left, right = (inside.shape(name) for name in product.operands[:2])
    if left is None or right is None:
        return 0.0
    result = product.results[0].sizes
    labels = _LABELS.search(product.rest)
    if labels is None:
        axes = numbers(product.attribute(_CONTRACTED))
        return float(math.prod(result) * math.prod(left.sizes[axis] for axis in axes))
    features = right.sizes[labels[2].index("i")]
    plain = result[labels[3].index("b")] * result[labels[3].index("f")] * features
    return float(plain * math.prod(pairs for pairs, _ in _axes(product, inside)))


def has_window(product: Instruction, inside: Computation) -> bool:
    """Return whether a product is a convolution with several elements for each of its places."""
    return any(pairs > outputs > 1 for pairs, outputs in _axes(product, inside))


_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"window=\{([^}]*)\}")
_DEFAULTS = {"stride": "1", "pad": "0", "lhs_dilate": "1", "rhs_dilate": "1"}


def _axes(product: Instruction, inside: Computation) -> Iterator[tuple[int, int]]:
    """Yield the multiplications along each spatial axis of a convolution, and its output's size.

    Padding and the gaps of a dilation take no multiplications.
    """
    left, right = (inside.shape(name) for name in product.operands[:2])
    labels = _LABELS.search(product.rest)
    if labels is None or left is None or right is None:
        return
    window = dict(part.split("=") for part in product.attribute(_WINDOW).split())
    axes = sorted(axis for axis in labels[3] if axis.isdigit())
    for place, axis in enumerate(axes):
        sizes = (
            shape.sizes[names.index(axis)]
            for shape, names in zip((left, right, product.results[0]), labels.groups(), strict=True)
        )
        inputs, kernel, outputs = sizes
        values = (window.get(key, default).split("x") for key, default in _DEFAULTS.items())
        along = (int(value[place % len(value)].partition("_")[0]) for value in values)
        yield _pairs(inputs, kernel, outputs, *along), outputs


@functools.lru_cache(maxsize=4096)
def _pairs(
    inputs: int, kernel: int, outputs: int, stride: int, pad: int, left: int, right: int
) -> int:
    """Return the pairs of an output and a kernel's element that meet an input, along an axis.

    Args:
        inputs: The size of the input.
        kernel: The size of the kernel.
        outputs: The size of the output.
        stride: The distance of two outputs.
        pad: The padding before the input.
        left: The distance of two inputs.
        right: The distance of two elements of the kernel.
    """
    shared = math.gcd(stride, left)
    period = left // shared
    inverse = pow(stride // shared, -1, period)
    pairs = 0
    for element in range(kernel):
        offset = pad - element * right  # the output at the input's first place, times the stride
        if offset % shared:
            continue
        lowest = max(-(-offset // stride), 0)
        highest = min(((inputs - 1) * left + offset) // stride, outputs - 1)
        first = lowest + (offset // shared * inverse - lowest) % period
        pairs += max((highest - first) // period + 1, 0)
    return pairs
