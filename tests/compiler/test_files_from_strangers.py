"""Files of verdicts and programs that anybody may have written: only the documented errors."""

from __future__ import annotations

import copy
import dataclasses
import json
import zlib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from support.answers import COMPILED, MADE

import tpunb
from tpunb._util.checked_files import DamagedFileError, packed, unpacked
from tpunb._util.plain_values import record_from
from tpunb.compiler.ask import verdict_files
from tpunb.compiler.ask.answers import Schedule
from tpunb.compiler.program import TpuProgram
from tpunb.compiler.program_files import ProgramFileError
from tpunb.errors.code_problems import Problem, SourceLine
from tpunb.tpu.compiled_program import (
    Buffer,
    CodeLine,
    Collectives,
    MemoryOverProgram,
    MemoryOwner,
    ProgramMemory,
    Share,
    StepTime,
)

LINE = SourceLine("/home/anna/train.py", 3)
SHARE = Share("x @ w", LINE, 0.5, 0.5, 12, 34)
BUFFER = Buffer((2, 3), "f32", 48, 24, "dot", "node", LINE)
OVER = MemoryOverProgram(3, (0, 2), (MemoryOwner("x @ w", LINE, (4, 10)),))
PROGRAM = TpuProgram(
    "v5e-8",
    8,
    errors=(Problem("memory", "It does not fit.", "Use less.", 3, "train.py"),),
    memory=ProgramMemory(10, 20, 30, largest=(BUFFER,), by_line=(SHARE,), over_program=OVER),
    time=StepTime(0.1, 0.2, by_line=(SHARE,)),
    lines=(CodeLine(LINE, "x @ w"),),
    collectives=(Collectives("all-reduce", 1, 4),),
)
WRONG: tuple[Any, ...] = (
    None, True, -1, -(2**63), 2**70, 1.5, float("nan"), float("inf"), "", "a\0b", "\x1b[31mred",
    [], [None], {}, {"x": 1}, [[[]]],
)  # fmt: skip


def variants(value: Any) -> Iterator[Any]:
    """Yield copies of nested plain values in which one place has a wrong value."""
    for path in _paths(value, ()):
        for wrong in WRONG:
            changed = copy.deepcopy(value)
            place = changed
            for step in path[:-1]:
                place = place[step]
            place[path[-1]] = wrong
            yield changed


def _paths(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for step, item in items:
        yield (*path, step)
        if isinstance(item, dict | list):
            yield from _paths(item, (*path, step))


def test_a_program_with_one_wrong_value(tmp_path: Path) -> None:
    path = tmp_path / "any.tpuprogram"
    program = json.loads(json.dumps(dataclasses.asdict(PROGRAM)))
    refused = []
    for changed in variants(program):
        path.write_bytes(packed("program", 1, {"several": False, "programs": [changed]}))
        try:
            loaded = tpunb.load_program(path)
        except ProgramFileError as error:
            refused.append(str(error))
            continue
        assert "\x1b" not in repr(loaded)
        assert "\x1b" not in str(loaded)
        loaded._repr_mimebundle_()
    assert len(refused) > 500
    assert "\x1b" not in "".join(refused)


NEW = {name: part for name, part in COMPILED.items() if name != "cost"}


@pytest.mark.parametrize("answer", [COMPILED, NEW, {"error": "UNIMPLEMENTED: no", "made": MADE}])
def test_an_answer_with_one_wrong_value(answer: dict[str, Any]) -> None:
    """The answer is ignored, or it has the types that the compiler's process gives."""
    whole = json.loads(json.dumps({"key": "k", "names": ["a/b"], "answer": answer}))
    for changed in variants(whole):
        entry = verdict_files.entry_in(packed("verdict", 1, changed))
        if entry is None:
            continue
        found = entry["answer"]
        assert isinstance(found.get("text", ""), str)
        if "error" in answer and "error" in found:
            assert isinstance(found["error"], str)
            continue
        assert all(type(found[name]) is int and found[name] >= 0 for name in ("peak", "code"))
        for schedule in found.get("schedule", {}).values():
            assert record_from(Schedule, schedule).cycles[0] >= 0


def test_a_small_file_of_many_values_is_refused_before_it_is_read() -> None:
    data = zlib.compress(b"[" + b"[]," * 2_000_000 + b"[]]")
    assert len(data) < 100_000
    content = f"tpunb program 1 {sha256(data).hexdigest()}\n".encode() + data
    with pytest.raises(DamagedFileError, match="more than a million values"):
        unpacked("program", 1, content)


def test_numbers_that_json_does_not_have_are_refused() -> None:
    with pytest.raises(DamagedFileError):
        unpacked("program", 1, packed("program", 1, {"peak": float("nan")}))
