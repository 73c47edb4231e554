"""Block sizes of Pallas kernels, compiled for a TPU and compared by time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

from tpunb.compiler.ask.partial_answers import CompilationStopped
from tpunb.compiler.program import CompileError, TpuProgram, TpuPrograms
from tpunb.errors.code_problems import Problem
from tpunb.jax import tune
from tpunb.jax.compiler import tune as module
from tpunb.tpu.compiled_program import Share, StepTime

ARRAY = jax.ShapeDtypeStruct((1024, 2048), jnp.float32)
TOO_LARGE = TpuProgram("v5e-1", 1, errors=(Problem("vmem", "It needs more VMEM.", "Use less."),))
NOT_KNOWN = TpuProgram("v5e-1", 1)


def timed(seconds: float) -> TpuProgram:
    time = StepTime(
        seconds, seconds + 1e-4, start=1e-4, by_operation=(Share("k", limit="VALU 9%"),)
    )
    return TpuProgram("v5e-1", 1, time=time)


def kernel(x: Any, y: Any, result: Any) -> None:
    result[...] = x[...] * y[...] + 1


def add(rows: int, columns: int) -> Callable[..., Any]:
    block = pl.BlockSpec((rows, columns), lambda i, j: (i, j))
    return pl.pallas_call(
        kernel,
        grid=(1024 // rows, 2048 // columns),
        in_specs=[block, block],
        out_specs=block,
        out_shape=ARRAY,
    )


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[Any, Any]:
    """Let the values of this dict answer about the functions that are its keys."""
    known: dict[Any, Any] = {}

    def compile_call(fn: Any, args: Any, named: Any, options: Any) -> TpuPrograms:
        del args, named
        assert options.speed
        options.progress("compiling")
        if isinstance(known[fn], BaseException):
            raise known[fn]
        return TpuPrograms([known[fn]])

    monkeypatch.setattr(module, "compile_call", compile_call)
    return known


def test_the_fastest_sizes_come_first_and_the_refused_last(answers: dict[Any, Any]) -> None:
    answers |= {
        (1, 1): timed(3e-3),
        (2, 2): TOO_LARGE,
        (3, 3): timed(1e-3),
        (4, 4): NOT_KNOWN,
        (5, 5): ValueError("no such block\nat all"),
        (6, 6): timed(2e-3),
    }
    said: list[str] = []
    found = tune(lambda *sizes: sizes, answers, tpu="v5e-1", progress=said.append)
    assert [row.blocks[0] for row in found] == [3, 6, 1, 4, 2, 5]
    assert found.best.blocks == (3, 3)
    assert found.best.seconds == pytest.approx(1e-3)
    lines = str(found).splitlines()[1:]
    assert "1 ms" in lines[0]
    assert "VALU 9%" in lines[0]
    assert "not known" in lines[3]
    assert "It needs more VMEM." in lines[4]
    assert "ValueError: no such block" in lines[5]
    assert "2 × 2" in found._repr_html_()
    assert said[0] == "blocks 1 of 6, (1, 1): compiling"


def test_sizes_without_a_time_are_never_the_best(answers: dict[Any, Any]) -> None:
    answers |= {(1,): NOT_KNOWN, (2,): TOO_LARGE}
    found = tune(lambda size: (size,), [1, 2], tpu="v5e-1", progress=lambda step: None)
    with pytest.raises(CompileError, match="known time"):
        _ = found.best


def test_an_interrupt_shows_what_is_known(answers: dict[Any, Any]) -> None:
    answers |= {(1,): timed(1e-3), (2,): KeyboardInterrupt(), (3,): timed(1e-3)}
    with pytest.raises(CompilationStopped) as stopped:
        tune(lambda size: (size,), [1, 2, 3], tpu="v5e-1", progress=lambda step: None)
    assert "1 result of 3" in str(stopped.value)
    assert "fits" in str(stopped.value)
    assert len(stopped.value.programs) == 1


def test_larger_blocks_of_a_kernel_take_less_time_until_they_do_not_fit(libtpu: None) -> None:
    sizes = [(16, 128), (1024, 2048), (256, 512)]
    found = tune(add, sizes, ARRAY, ARRAY, tpu="v5e-1", progress=lambda step: None)
    assert [row.blocks for row in found] == [(256, 512), (16, 128), (1024, 2048)]
    assert found[0].seconds < 50e-6 < 200e-6 < found[1].seconds
    assert "24.00M of 16.00M" in str(found).splitlines()[-1]
