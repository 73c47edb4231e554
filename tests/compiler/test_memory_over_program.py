"""A program's memory in the order of its instructions, by the lines that made it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tpunb.compiler.ask.answers import Compiled
from tpunb.compiler.ask.libtpu import Prepared
from tpunb.compiler.ask.topologies import target
from tpunb.compiler.read.hlo import parse
from tpunb.compiler.read.memory import described, of_refused
from tpunb.errors.code_problems import SourceLine
from tpunb.tpu.compiled_program import MemoryOverProgram, ProgramMemory

MIB = 2**20
KEPT = "arguments and variables"
ARRAY = "f32[1024,1024]{1,0:T(8,128)}"
STRAIGHT = f"""HloModule straight, is_scheduled=true

ENTRY %main (x: f32[1024,1024]) -> f32[1024,1024] {{
  %x = {ARRAY} parameter(0)
  %a = {ARRAY} add(%x, %x), metadata={{op_name="1"}}
  %b = {ARRAY} multiply(%a, %a), metadata={{op_name="2"}}
  %c = {ARRAY} add(%b, %a), metadata={{op_name="3"}}
  ROOT %d = {ARRAY} negate(%c), metadata={{op_name="4"}}
}}
"""
LOOP = f"""HloModule loop, is_scheduled=true

%body (p: (s32[], f32[1024,1024])) -> (s32[], f32[1024,1024]) {{
  %p = (s32[], {ARRAY}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %v = {ARRAY} get-tuple-element(%p), index=1
  %s = {ARRAY} sine(%v), metadata={{op_name="3"}}
  %t = {ARRAY} add(%s, %v), metadata={{op_name="4"}}
  %w = {ARRAY} multiply(%t, %s), metadata={{op_name="5"}}
  ROOT %r = (s32[], {ARRAY}) tuple(%i, %w)
}}

ENTRY %main (x: f32[1024,1024]) -> f32[1024,1024] {{
  %x = {ARRAY} parameter(0)
  %n = s32[] constant(0)
  %a = {ARRAY} add(%x, %x), metadata={{op_name="1"}}
  %state = (s32[], {ARRAY}) tuple(%n, %a)
  %loop = (s32[], {ARRAY}) while(%state), condition=%cond, body=%body, metadata={{op_name="2"}}
  ROOT %d = {ARRAY} get-tuple-element(%loop), index=1
}}
"""


def prepared() -> Prepared:
    """Return a function whose nodes have the numbers of their lines as names."""
    origins: Any = SimpleNamespace(
        line=lambda node: SourceLine("model.py", int(node)) if node else None,
        layer=lambda node: "",
        operation=lambda node: "",
    )
    return Prepared(origins, parameters=[("x", False)])


def memory_of(text: str) -> ProgramMemory:
    return of_refused(text, prepared(), target("v5e-1", None))


def over(memory: ProgramMemory) -> MemoryOverProgram:
    assert memory.over_program is not None
    return memory.over_program


def by_owner(program: MemoryOverProgram) -> dict[Any, list[int]]:
    """Return the MiB of each line at each moment."""
    return {
        owner.line.line if owner.line else owner.name: [size // MIB for size in owner.sizes]
        for owner in program.owners
    }


def test_each_value_is_alive_from_its_line_to_its_last_use() -> None:
    memory = memory_of(STRAIGHT)
    program = over(memory)
    assert (program.steps, program.moments, program.peak) == (5, (0, 1, 2, 3, 4), 3)
    assert by_owner(program) == {
        KEPT: [4, 4, 4, 4, 4],
        1: [0, 4, 4, 4, 0],
        2: [0, 0, 4, 4, 0],
        3: [0, 0, 0, 4, 4],
        4: [0, 0, 0, 0, 4],
    }
    assert max(program.totals) == memory.peak == 16 * MIB
    alive = {buffer.line and buffer.line.line: buffer.last for buffer in memory.largest}
    lasts = {line: last and last.line for line, last in alive.items()}
    assert lasts == {None: None, 1: 3, 2: 3, 3: 4}


@pytest.mark.parametrize(("peak", "result"), [(16, [0, 0, 0, 0, 4]), (20, [4, 4, 4, 4, 4])])
def test_results_are_reserved_if_the_compilers_peak_has_them(peak: int, result: list[int]) -> None:
    compiled = Compiled(peak * MIB, 4 * MIB, 4 * MIB, 0, 0, STRAIGHT, bounded=False)
    memory = described(compiled, parse(STRAIGHT), prepared(), target("v5e-1", None))
    program = over(memory)
    assert by_owner(program)[4] == result
    assert max(program.totals) == peak * MIB


def test_a_loops_body_counts_once_and_in_its_place() -> None:
    memory = memory_of(LOOP)
    program = over(memory)
    owners = by_owner(program)
    assert program.steps == 6 + 7
    assert owners[KEPT] == [4] * 13
    assert owners[1] == [4] * 13  # the loop's state is in the memory of its first value, a result
    assert owners[3] == [0] * 7 + [4, 4, 4] + [0] * 3
    assert owners[4] == [0] * 8 + [4, 4] + [0] * 3
    assert max(program.totals) == memory.peak == 16 * MIB + 4  # with the loop's counter


def test_a_long_program_keeps_its_peak_and_a_picture_of_columns() -> None:
    steps = [f'  %a{n} = {ARRAY} add(%x, %x), metadata={{op_name="{n}"}}' for n in range(1, 2000)]
    last = f'  ROOT %r = {ARRAY} add(%a700, %a701), metadata={{op_name="2000"}}'
    head = STRAIGHT.partition("  %a")[0]
    memory = memory_of("\n".join([head.rstrip(), *steps, last, "}"]))
    program = over(memory)
    assert program.steps == 2001
    assert len(program.moments) <= 200
    assert max(program.totals) == memory.peak == 16 * MIB
    assert 702 <= program.moments[program.peak] < 2000
    assert len(program.owners) <= 9
    owners = by_owner(program)
    assert owners[700][program.peak] == owners[701][program.peak] == 4
    assert "" in owners  # the other lines together


def test_a_recorded_step_has_the_compilers_peak() -> None:
    text = (Path(__file__).parent / "recorded" / "training_step.txt").read_text(encoding="utf-8")
    origins: Any = SimpleNamespace(
        line=lambda node: None, layer=lambda node: "", operation=lambda node: ""
    )
    memory = of_refused(text, Prepared(origins), target("v5e-1", None))
    assert max(over(memory).totals) == memory.peak == pytest.approx(1_443_840, rel=0.01)


@pytest.mark.parametrize(
    "figures",
    [(3, (0, 3), ()), (3, (1, 1), ()), (0, (0,), ())],
    ids=["beyond the end", "twice", "no steps"],
)
def test_places_out_of_order_are_refused(figures: Any) -> None:
    with pytest.raises(ValueError, match="order"):
        MemoryOverProgram(*figures)
