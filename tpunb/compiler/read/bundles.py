"""The schedule that libtpu writes of each kernel: bundles of instructions, and the units they use.

A core runs a bundle a cycle. Loops, branches and the sizes of copies (DMAs) are in the scalar code,
which is run here without the vectors. So the cycles, the use of each unit and the bytes copied are
counted. A value that only the program's data decides is `UNKNOWN`, and so is the result of any
operation that is not listed here.

`libtpu_process` loads this file by its path: it imports nothing of tpunb.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_MOST_TURNS = 3_000_000
"""The most blocks of a kernel to run, which takes some seconds."""
_DELAY = 5
"""A branch, and the four bundles after it that still run."""
_GRANULE = 32
"""The bytes that the sizes of DMAs count (v5e, v6e)."""

_UNITS = (
    *("MATMUL", "MATPUSH", "XLU", "VALU", "VPOP", "EUP", "VLOAD", "VLOAD:FILL", "VSTORE"),
    *("VSTORE:SPILL", "SALU"),
)
_MATMUL, _SPILL = _UNITS.index("MATMUL"), _UNITS.index("VSTORE:SPILL")

_BUNDLES, _USE, _ANALYSIS, _MAP = (
    *("final_bundles", "final_hlo-static-per-bundle-utilization"),
    *("schedule-analysis_final_bundles", "deduplication-map"),
)
_FILE = re.compile(rf"\d+-(.+)-\d+-({_BUNDLES}|{_USE}|{_ANALYSIS}|{_MAP})\.txt")
_COMMENT = re.compile(r"/\*(?! (?:Start|End)).*?\*/", re.DOTALL)
_ENTRY = re.compile(r"/\* entry bundle: %?([^\s=]+)")
_BUNDLE = re.compile(r" *(0x[0-9a-f]+|0) +(?:[A-Z]{2})? *: *[> ]*\{(.*)\}(.*)")
_REGION = re.compile(r"Start(?:/End empty)? region (\d+)")
_SCALAR = re.compile(
    r"%(?:([sp]\d+)_([sp]\d+) = ([\w.]+)|\d+ = ((?:sbr|sst|scall|sret|dma)[\w.]*))([^;\n]*)"
)
_TOTAL = re.compile(r"total scheduled bundles:\s+(\d+)")
_SHARED = re.compile(r"key:(\S+)\nordinal:\d+\nequivalent_hlos\[size=\d+\]:\n((?:  \S+\n?)*)")


class UnreadableError(Exception):
    """A schedule is cut, of an unknown form, or runs for too long."""


class _Unknown:
    """A value that only the program's data decides."""

    def _unknown(self, *_: object) -> _Unknown:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _unknown
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __xor__ = __rxor__ = _unknown
    __lt__ = __le__ = __gt__ = __ge__ = _unknown
    __eq__ = __ne__ = _unknown  # type: ignore[assignment]
    __hash__ = object.__hash__

    def __or__(self, other: object) -> Any:
        return True if other is True else self

    def __and__(self, other: object) -> Any:
        return False if other is False else self

    __ror__, __rand__ = __or__, __and__


UNKNOWN = _Unknown()

_WORD = "(({}+0x80000000&0xFFFFFFFF)-0x80000000)"
_MEANINGS = (
    dict.fromkeys(("smov", "pmov", "int_to_ptr"), "{0}")
    | dict.fromkeys(("pneg", "pnot"), "{0}^True")
    | dict.fromkeys(("por", "sor"), "{0}|{1}")
    | dict.fromkeys(("pand", "sand"), "{0}&{1}")
    | dict.fromkeys(("pxor", "sxor"), "{0}^{1}")
    | dict.fromkeys(("sadd", "scalar_lea"), _WORD.format("{0}+{1}"))
    | {
        "pnand": "({0}&{1})^True",
        "ssub": _WORD.format("{0}-{1}"),
        "smul": _WORD.format("{0}*{1}"),
        "smulhi": _WORD.format("(({0}&0xFFFFFFFF)*({1}&0xFFFFFFFF)>>32)"),
        "sshll": _WORD.format("({0}<<({1}&31))"),
        "sshrl": _WORD.format("(({0}&0xFFFFFFFF)>>({1}&31))"),
        "sshra": "{0}>>({1}&31)",
    }
)
_COMPARED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}

_GUARD = re.compile(r"(?:\[[^\]]*\] *)*\(([^()]*)\),?\s*|(?:\[(?:thread|resolvable)[^\]]*\] *)+")
_LAST_GUARD = re.compile(r"\s\((!?%\w+)\)$")
_PLACE = re.compile(r"\[smem:\[([^\]]*)\]\]\s*(.*)")
_NAMES = re.compile(r"(?<![\w.'])_?[sp]\d+\b")
_TARGET = re.compile(r"target = \$region(\d+)")


@dataclasses.dataclass
class _Block:
    """Bundles that run one after the other."""

    start: int
    end: int = 0
    code: list[str] = dataclasses.field(default_factory=list)
    condition: str = ""
    target: int | None = None


@dataclasses.dataclass(frozen=True)
class _Counted:
    """What one run of a kernel's scalar code has counted."""

    runs: Any
    moved: collections.Counter[str]
    undecided: bool


def kernels(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the figures of the kernels whose schedules are in a folder, by their names in the HLO.

    Of each kernel: the least and the most `cycles` and `bytes` from and to HBM, the `strided` bytes
    among the most, the `steps` of its loops that copy, the cycles of its fullest `unit` and of the
    `matmul` units, and the cycles of the stores that are `spills`. A kernel whose schedule cannot
    be read is left out.
    """
    files: dict[str, dict[str, list[str]]] = collections.defaultdict(dict)
    for path in folder.glob("*.txt"):
        if match := _FILE.fullmatch(path.name):
            text = path.read_text(encoding="utf-8", errors="replace")
            files[match[1]].setdefault(match[2], []).append(text)
    found = {}
    for name, texts in files.items():
        with contextlib.suppress(UnreadableError):
            found[name] = kernel(
                name, *(texts.get(each, []) for each in (_BUNDLES, _USE, _ANALYSIS))
            )
    for texts in files.values():
        for key, others in _SHARED.findall("".join(texts.get(_MAP, ()))):
            found |= {other: found[key] for other in others.split() if key in found}
    return found


def kernel(
    name: str, bundles: Sequence[str], use: Sequence[str], analysis: Sequence[str]
) -> dict[str, Any]:
    """Return the figures of one kernel.

    Args:
        name: The kernel's name in the HLO.
        bundles: The texts of its bundles: one, unless files are missing or mixed.
        use: The texts of the use of each unit by each bundle.
        analysis: The texts of the analysis, which has the number of bundles.

    Raises:
        UnreadableError: The texts do not belong together or are cut, or the schedule cannot be run.
    """
    if not len(bundles) == len(use) == len(analysis) == 1:
        raise UnreadableError(f"files of {name} are missing or mixed")
    entry, rows = _ENTRY.search(bundles[0]), _rows(bundles[0])
    capacity, used = _used(use[0])
    total = _TOTAL.search(analysis[0])
    if not (entry and entry[1] == name and total and int(total[1]) == len(rows) == len(used) > 0):
        raise UnreadableError(f"the files of {name} do not belong together")
    blocks = _blocks(rows)
    run = _compiled(blocks)
    most = _counted(run, blocks, taken=False)
    counts = [_counted(run, blocks, taken=True), most] if most.undecided else [most, most]
    ends = [0, *(block.end for block in blocks)]
    summed = np.concatenate([np.zeros_like(used[:1]), used.cumsum(axis=0)])[ends]
    busy = most.runs @ np.diff(summed, axis=0) / capacity
    lengths, fullest = np.diff(ends), int(busy.argmax())
    return {
        "cycles": sorted(int(counted.runs @ lengths) for counted in counts),
        "bytes": sorted(_GRANULE * sum(counted.moved.values()) for counted in counts),
        "strided": _GRANULE * most.moved["general"],
        "steps": _steps(blocks, most.runs),
        "unit": _UNITS[fullest],
        "busy": float(busy[fullest]),
        "matmul": float(busy[_MATMUL]),
        "spills": float(busy[_SPILL]),
    }


def _rows(text: str) -> list[tuple[str, str]]:
    """Return the operations of each bundle, and the labels of the regions that begin or end there.

    A bundle that is not in its place is left out, so that the number of bundles is wrong.
    """
    return [
        (match[2], match[3])
        for number, match in enumerate(
            filter(None, map(_BUNDLE.fullmatch, _COMMENT.sub("", text).split("\n")))
        )
        if int(match[1], 16) == number
    ]


def _used(text: str) -> tuple[Any, Any]:
    """Return the capacity of each unit, and its use by each bundle.

    Raises:
        UnreadableError: The units are others, or a row is cut.
    """
    lines = text.split("\n")
    if lines[1:2] != [", ".join(_UNITS)]:
        raise UnreadableError("other units")
    try:
        table = np.array([line.split() for line in [lines[2], *lines[4:]] if line], np.int64)
        return table[0], table[1:].reshape(-1, len(_UNITS))
    except ValueError as error:
        raise UnreadableError(str(error)) from None


def _blocks(rows: Sequence[tuple[str, str]]) -> list[_Block]:
    """Return the bundles in blocks: a branch ends a block, and its target begins one.

    Raises:
        UnreadableError: A branch has no target, or is of an unknown kind.
    """
    starts: dict[str, int] = {}
    for number, (_, labels) in enumerate(rows):
        for region in _REGION.findall(labels):
            starts.setdefault(region, number)
    translated = [_translated(operations) for operations, _ in rows]
    leaders = {0}
    for number, (_, branch) in enumerate(translated):
        if branch and branch[0] not in starts:
            raise UnreadableError("a branch to nowhere")
        if branch:
            leaders |= {starts[branch[0]], min(number + _DELAY, len(rows))}
    bounds = sorted(leaders | {len(rows)})
    blocks = []
    for start, end in itertools.pairwise(bounds):
        block = _Block(start, end)
        for code, branch in translated[start:end]:
            block.code += code
            if branch:
                block.target, block.condition = bounds.index(starts[branch[0]]), branch[1]
        blocks.append(block)
    return blocks


def _translated(operations: str) -> tuple[list[str], tuple[str, str] | None]:
    """Return the scalar code of a bundle in Python, and the target and condition of its branch.

    Raises:
        UnreadableError: It has a branch of an unknown kind.
    """
    phis, others, branch = [], [], None
    for name, register, scalar, other, rest in _SCALAR.findall(operations):
        operation, _, kind = (scalar or other).partition(".")
        rest, guard, former = _guarded(rest.strip())
        former = former or f"_{register}"
        if operation in {"sbr", "scall", "sret"}:
            target = _TARGET.search(rest)
            if other != "sbr.rel" or target is None or branch:
                raise UnreadableError(f"a branch of an unknown kind: {other}")
            branch = target[1], guard or "True"
        elif operation == "dma":
            others += _copy(kind, guard, rest)
        elif operation == "sst":
            others.append(_stored(guard, rest))
        elif operation == "sphi":
            phis.append(f"{name}=_{register}")
        elif name:
            value = _value(operation, kind, rest)
            if guard:
                value = f"({value}) if {guard} is True else {former} if {guard} is False else U"
            others.append(f"{name}=_{register}={value}")
    return phis + others, branch


def _guarded(text: str) -> tuple[str, str, str]:
    """Return an operation's operands, its condition, and its value without the condition."""
    guard, former = "", ""
    if match := _GUARD.match(text):
        guard, former, *_ = [*map(_operand, _split(match[1] or "")), "", ""]
        text = text[match.end() :]
    if match := _LAST_GUARD.search(text):
        guard, text = _operand(match[1]), text[: match.start()]
    return text, guard, former


def _value(operation: str, kind: str, rest: str) -> str:
    """Return the Python of an operation's result."""
    if operation == "sld":
        match = _PLACE.match(rest)
        return f"memory.get({_place(match[1])},U)" if match else "U"
    operands = [*map(_operand, _split(rest)), "U", "U", "U"]
    if operation == "scalar_select":
        condition, yes, no, *_ = operands
        return f"{yes} if {condition} is True else {no} if {condition} is False else U"
    if operation == "scmp" and ".f32" not in kind:
        first, second = (
            f"({each}&0xFFFFFFFF)" if ".u32" in kind else each for each in operands[:2]
        )
        return f"{first}{_COMPARED[kind[:2]]}{second}" if kind[:2] in _COMPARED else "U"
    return _MEANINGS.get(operation, "U").format(*operands)


def _stored(guard: str, rest: str) -> str:
    """Return the Python of a store."""
    match = _PLACE.match(rest)
    place, value = (_place(match[1]), _operand(match[2])) if match else ("U", "U")
    return f"store({place},{value},{guard or True})"


def _copy(kind: str, guard: str, rest: str) -> list[str]:
    """Return the Python of a DMA."""
    if not (kind == "general" or "_to_" in kind):
        return []
    size = [*map(_operand, _split(rest)), "U", "U"][1]
    counted = kind if kind == "general" or "hbm" in kind.split("_to_") else ""
    forgets = ["store(U,U,True)"] if kind.endswith("smem") else []
    return [*forgets, *([f"copy({kind!r},{guard or True},{size})"] if counted else [])]


def _place(text: str) -> str:
    """Return the Python of an address: a name of its own for a spilled value."""
    parts = [part.strip() for part in text.split("+")]
    if parts[0].endswith("_spill"):
        return repr(text)
    return "+".join(map(_operand, parts))


def _operand(text: str) -> str:
    """Return the Python of an operand."""
    text = text.strip()
    if text.startswith("!"):
        return f"({_operand(text[1:])}^True)"
    if match := re.match(r"%([sp]\d+)_", text):
        return match[1]
    if match := re.fullmatch(r"(\$?)(0x[0-9a-f]+|-?\d+)", text):
        number = int(match[2], 0)
        return str(number - 2**32 if number >= 2**31 else number)
    if match := re.match(r"\[?#allocation(\d+)\]?$", text):
        return str((int(match[1]) + 1) << 22)
    return {"true": "True", "false": "False"}.get(text, "U")


def _split(text: str) -> list[str]:
    """Return the operands between commas that are in no brackets."""
    return [part for part in re.split(r",(?![^\[(]*[\])])", text) if part.strip()]


def _compiled(blocks: Sequence[_Block]) -> Callable[..., bool]:
    """Return a function that runs the blocks, and says whether it came to an undecided branch."""
    names = sorted({name for block in blocks for name in _NAMES.findall("\n".join(block.code))})
    source = ["def run(runs, copy, store, memory, taken):", " at = turns = 0", " undecided = False"]
    source += [f" {name} = U" for name in names]
    source += [f" while at < {len(blocks)}:", "  runs[at] += 1", "  turns += 1"]
    source += [f"  if turns > {_MOST_TURNS}: raise UnreadableError('it runs for too long')"]

    def add(first: int, last: int, indent: str) -> None:
        if last - first > 1:
            middle = (first + last) // 2
            source.append(f"{indent}if at < {middle}:")
            add(first, middle, indent + " ")
            source.append(f"{indent}else:")
            add(middle, last, indent + " ")
            return
        block = blocks[first]
        source.extend(indent + line for line in block.code)
        if block.target is None:
            source.append(f"{indent}at = {first + 1}")
            return
        source.append(f"{indent}go = {block.condition}")
        source.append(f"{indent}if go is U:")
        if block.target <= first:
            source.append(f"{indent} raise UnreadableError('a loop that data ends')")
        else:
            source.append(f"{indent} go, undecided = taken, True")
        source.append(f"{indent}at = {block.target} if go else {first + 1}")

    add(0, len(blocks), "  ")
    source.append(" return undecided")
    space: dict[str, Any] = {"U": UNKNOWN, "UnreadableError": UnreadableError}
    exec("\n".join(source), space)
    run: Callable[..., bool] = space["run"]
    return run


def _counted(run: Callable[..., bool], blocks: Sequence[_Block], *, taken: bool) -> _Counted:
    """Run a kernel's scalar code and count.

    Args:
        run: The kernel's code.
        blocks: Its blocks.
        taken: Whether to take the branches that data decides, which leaves out what they guard.

    Raises:
        UnreadableError: The schedule runs for too long, or data decides a loop or a size.
    """
    moved: collections.Counter[str] = collections.Counter()
    memory: dict[object, Any] = {}
    runs, undecided = [0] * len(blocks), False

    def copy(kind: str, guard: Any, granules: Any) -> None:
        nonlocal undecided
        undecided |= guard is UNKNOWN
        if guard is True or (guard is UNKNOWN and not taken):
            if granules is UNKNOWN:
                raise UnreadableError("a copy of unknown size")
            moved[kind] += granules

    def store(place: Any, value: Any, guard: Any) -> None:
        if place is UNKNOWN:  # it may be any place but a spilled value's
            for known in [each for each in memory if not isinstance(each, str)]:
                del memory[known]
        elif guard is not False:
            memory[place] = value if guard is True else UNKNOWN

    try:
        undecided |= run(runs, copy, store, memory, taken)
    except TypeError as error:  # an operand of another kind than the operation takes
        raise UnreadableError(str(error)) from None
    return _Counted(np.array(runs), moved, undecided)


def _steps(blocks: Sequence[_Block], runs: Any) -> int:
    """Return the runs of the innermost loops that copy: the steps of a pipeline, and two more."""
    copies = [any(line.startswith("copy(") for line in block.code) for block in blocks]
    loops = [
        (block.target, number)
        for number, block in enumerate(blocks)
        if block.target is not None
        and block.target <= number
        and any(copies[block.target : number + 1])
    ]
    inner = [
        (first, last)
        for first, last in loops
        if not any(first <= a and b <= last and (a, b) != (first, last) for a, b in loops)
    ]
    return int(sum(runs[first] for first, _ in inner if runs[first] > 1))
