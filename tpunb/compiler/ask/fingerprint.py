"""A program's identity for the compiler. Programs that differ only in names and lines are equal."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

_MOST_BYTES = 2**28
"""The largest module to copy. A larger module holds data, and copies could fill the memory."""

_STAND_IN = "opt-barrier"
"""The opcode of the stand-ins written by `tensorflow/virtual/strict/stand_ins.py`."""

_MEANING = re.compile(r"/\w+/[\w-]+$")
"""The end of a stand-in's name: the operation it replaces, and its settings."""

_JOINT = re.compile("[;/]")
_OP_NAME = re.compile(r'(?<=op_name=")(?:[^"\\]|\\.)*(?=")')


@dataclasses.dataclass(frozen=True, slots=True)
class Fingerprint:
    """A program without its names, and its names.

    Attributes:
        digest: A hash of the program without its names.
        names: The name of each operation, in the program's order.
    """

    digest: str
    names: tuple[str, ...]


def of_hlo(module: bytes) -> Fingerprint | None:
    """Return the fingerprint of a serialized `HloModuleProto`.

    Names, numbers and source lines differ from process to process and from cell to cell. The
    names of stand-ins are kept, because the compiler's process reads them.

    Returns:
        The fingerprint; None if this TensorFlow cannot read the module, or it is too large.
    """
    if len(module) > _MOST_BYTES:
        return None
    try:
        from google.protobuf.message import DecodeError
        from tensorflow.compiler.xla.service import hlo_pb2
    except ImportError:
        return None
    try:
        program: Any = hlo_pb2.HloModuleProto.FromString(module)
    except DecodeError:
        return None
    names = tuple(
        instruction.metadata.op_name or instruction.name  # the name that the compiler uses
        for computation in program.computations
        for instruction in computation.instructions
    )
    _without_names(program)
    data = program.SerializeToString(deterministic=True)
    return Fingerprint(hashlib.sha256(data).hexdigest(), names)


def _without_names(program: Any) -> None:
    """Renumber the parts of a module by their place, and remove names and lines."""
    computations = program.computations
    numbers = {computation.id: place for place, computation in enumerate(computations)}
    for field in ("name", "entry_computation_name", "id", "stack_frame_index", "profile_info"):
        if field in program.DESCRIPTOR.fields_by_name:
            program.ClearField(field)
    program.entry_computation_id = numbers.get(program.entry_computation_id, 0)
    del program.host_program_shape.parameter_names[:]
    for computation in computations:
        places = {step.id: place for place, step in enumerate(computation.instructions)}
        computation.ClearField("name")
        computation.id = numbers[computation.id]
        computation.root_id = places.get(computation.root_id, 0)
        del computation.program_shape.parameter_names[:]
        for instruction in computation.instructions:
            _without_name(instruction, places, numbers)


def _without_name(
    instruction: Any, places: Mapping[int, int], computations: Mapping[int, int]
) -> None:
    """Remove the name and the line of an instruction, and renumber its references."""
    meaning = None
    if instruction.opcode == _STAND_IN:
        meaning = _MEANING.search(instruction.metadata.op_name)
    instruction.ClearField("name")
    instruction.ClearField("metadata")
    if meaning:
        instruction.metadata.op_name = meaning[0]
    instruction.id = places[instruction.id]
    for field, known in (
        ("operand_ids", places),
        ("control_predecessor_ids", places),
        ("called_computation_ids", computations),
    ):
        if numbers := list(getattr(instruction, field)):
            instruction.ClearField(field)
            getattr(instruction, field).extend(known[number] for number in numbers)


def renamed(text: str, before: Sequence[str], after: Sequence[str]) -> str | None:
    """Replace the names of operations in the compiler's text about an equal program.

    Args:
        text: Optimised HLO, or the message of a refusal.
        before: The names in the program that the text is about.
        after: The names in the equal program, in the same order.

    Returns:
        The text, or None if it has a name without a known counterpart.
    """
    if before == after:
        return text
    if len(before) != len(after):
        return None
    counterparts: dict[str, str | None] = {}
    for old, new in zip(before, after, strict=True):
        if counterparts.setdefault(old, new) != new:
            counterparts[old] = None  # operations that shared a name have different names now
    complete = True

    def rename(written: re.Match[str]) -> str:
        nonlocal complete
        counterpart = _counterpart(written[0], counterparts)
        complete &= counterpart is not None
        return counterpart or ""

    text = _OP_NAME.sub(rename, text)
    return text if complete else None


def _counterpart(name: str, counterparts: Mapping[str, str | None]) -> str | None:
    """Return the counterpart of a name, or of names that the compiler joined, or None."""
    if not name or name in counterparts:
        return counterparts.get(name, "")
    # The compiler joins names of fused operations with `;`, and of a call and its body with `/`.
    for joint in sorted(map(re.Match.start, _JOINT.finditer(name)), reverse=True):
        first = counterparts.get(name[:joint])
        rest = None if first is None else _counterpart(name[joint + 1 :], counterparts)
        if first is not None and rest is not None:
            return first + name[joint] + rest
    return None
