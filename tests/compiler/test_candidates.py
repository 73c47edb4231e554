"""The engine of all searches, without a compiler."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tpunb._util.deadline import Deadline
from tpunb.compiler.ask.compile_settings import Settings
from tpunb.compiler.fit.candidates import Candidate, Search, Space
from tpunb.compiler.program import CompileError, TpuProgram
from tpunb.errors.code_problems import Problem, innermost
from tpunb.tpu.compiled_program import ProgramMemory

LIMIT = 100


def program(peak: int) -> TpuProgram:
    errors = () if peak <= LIMIT else (Problem("memory", "It is too large.", ""),)
    return TpuProgram("v5e-1", 1, errors=errors, memory=ProgramMemory(peak, LIMIT, LIMIT))


def candidate(peak: int, **more: str) -> Candidate:
    return Candidate(f"{peak} bytes", lambda _: program(peak), f"{peak} fit", peak, **more)


def raises(error: Exception) -> Callable[[Settings], TpuProgram]:
    def compiled(_: Settings) -> TpuProgram:
        raise error

    return compiled


def search(seconds: float = 60.0, said: list[str] | None = None) -> Search:
    say = (lambda _: None) if said is None else said.append
    return Search(Settings(innermost, Deadline(seconds), progress=say))


def test_a_space_decides_by_the_verdicts_what_comes_next() -> None:
    def halves() -> Space:
        size = 400
        while not (yield candidate(size)).ok:
            size //= 2

    said: list[str] = []
    of = search(said=said)
    of.explore("a smaller batch", halves())
    assert [each.candidate.of for each in of.judged] == [400, 200, 100]
    assert [each.sentence for each in of.judged] == ["", "", "100 fit: 100 B a core."]
    assert said == ["trying 400 bytes", "trying 200 bytes", "trying 100 bytes"]
    assert list(of.not_tried()) == []


def test_a_change_that_the_function_does_not_accept_is_named() -> None:
    def space() -> Space:
        yield Candidate("other", raises(ValueError("Only 4608 rows.")))

    def without_a_batch() -> Space:
        yield Candidate("other", raises(CompileError("No argument has a batch.")))

    of = search()
    of.explore("a smaller batch", space())
    of.explore("more cores", without_a_batch())
    assert list(of.not_tried()) == [
        "Not tried: a smaller batch, which raises ValueError: Only 4608 rows."
    ]
    assert list(of.not_tried(refused=False)) == []


def test_nothing_is_compiled_when_the_time_is_over() -> None:
    of = search(seconds=0.0)
    of.explore("a smaller batch", (each for each in [candidate(1)]))  # type: ignore[arg-type]
    assert (of.judged, ["a smaller batch" in note for note in of.not_tried()]) == ([], [True])
    assert "not known: the time limit of 0 s" in of.judge(candidate(1)).why


def test_a_candidate_that_cannot_fit_is_not_compiled() -> None:
    of = search()
    judged = of.judge(candidate(1, hopeless="left out: its arguments alone take 9 GiB a core"))
    assert (judged.program, judged.why[:8], judged.sentence) == (None, "left out", "")


@pytest.mark.parametrize("error", [ValueError("Bad axis."), CompileError("Bad axis.")])
def test_a_candidate_that_raises_does_not_end_a_search(error: Exception) -> None:
    of = search()
    assert "Bad axis." in of.judge(Candidate("a", raises(error))).why
    assert of.judge(candidate(1)).sentence == "1 fit: 1 B a core."


def test_an_interrupt_keeps_what_is_known() -> None:
    def interrupted(_: Settings) -> TpuProgram:
        raise KeyboardInterrupt

    of = search()
    of.judge(candidate(1))
    with pytest.raises(KeyboardInterrupt):
        of.judge(Candidate("b", interrupted))
    assert [each.candidate.of for each in of.judged] == [1]
