"""An unchanged program is not compiled again, and its reports are still right."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from support.jax_process import said_with_jax

from tpunb.compiler.ask import libtpu
from tpunb.compiler.compile import compile  # noqa: A004
from tpunb.compiler.program import TpuProgram

pytestmark = pytest.mark.usefixtures("libtpu")

X = tf.TensorSpec([1024, 1024])


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the topologies that the compiler compiles for."""
    topologies: list[str] = []
    answered = libtpu._answered

    def counted(request: Mapping[str, Any], deadline: Any) -> Mapping[str, Any]:
        if "topology" in request:
            topologies.append(request["topology"])
        return answered(request, deadline)

    monkeypatch.setattr(libtpu, "_answered", counted)
    return topologies


def first(x: Any) -> Any:
    with tf.name_scope("first"):
        return tf.nn.relu(x @ x)  # the first


def second(x: Any) -> Any:
    """Do the same as `first`, with other lines and names."""

    with tf.name_scope("second"):
        product = x @ x  # of the second
        return tf.nn.relu(product)


def same(program: TpuProgram, expected: TpuProgram) -> bool:
    left, right = program.as_dict(), expected.as_dict()
    del left["compile_seconds"], right["compile_seconds"]
    return left == right and program.text == expected.text


def test_the_same_program_is_compiled_once(compiled: list[str]) -> None:
    before = compile(first, X, tpu="v5e-8", speed=True)
    repeated = compile(first, X, tpu="v5e-8", speed=True)
    assert compiled == ["v5e:2x4"]
    assert before.ok
    assert same(before, repeated)


def test_an_equal_program_keeps_its_own_lines_and_names(
    compiled: list[str], verdicts: Path
) -> None:
    compile(first, X, tpu="v5e-8", speed=True)
    stored = compile(second, X, tpu="v5e-8", speed=True)
    assert compiled == ["v5e:2x4"]
    shutil.rmtree(verdicts)
    fresh = compile(second, X, tpu="v5e-8", speed=True)
    assert compiled == ["v5e:2x4"] * 2
    assert stored.time is not None
    assert fresh.time is not None
    assert stored.time.by_line[0].name == "product = x @ x  # of the second"
    assert stored.time == fresh.time
    assert stored.memory == fresh.memory
    assert stored.lines == fresh.lines
    assert "first/" not in stored.text


def test_a_refusal_has_the_line_of_the_current_program(compiled: list[str]) -> None:
    def below(x: Any) -> Any:
        y = tf.cast(x, tf.int64)
        return tf.linalg.matmul(y, y)

    def refused(x: Any) -> Any:
        return tf.linalg.matmul(tf.cast(x, tf.int64), tf.cast(x, tf.int64))

    for function, line in ((refused, 1), (below, 2), (refused, 1)):
        (error,) = compile(function, X, tpu="v5e-8").errors
        assert error.line == function.__code__.co_firstlineno + line
    assert 1 <= len(compiled) <= 2


@pytest.mark.parametrize(
    "other",
    [
        lambda: compile(first, X, tpu="v3-8"),
        lambda: compile(first, X, tpu="v5e-8", speed=True),
        lambda: compile(first, tf.TensorSpec([2048, 2048]), tpu="v5e-8"),
    ],
)
def test_another_program_type_or_option_is_compiled(other: Any, compiled: list[str]) -> None:
    compile(first, X, tpu="v5e-8")
    other()
    assert len(compiled) == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [("LIBTPU_INIT_ARGS", "--xla_tpu_enable_async_collective_fusion=false"), ("XLA_FLAGS", "")],
)
def test_changed_compiler_flags_compile_again(
    name: str, value: str, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compile(first, X, tpu="v5e-8")
    before = libtpu._child()
    monkeypatch.setenv(name, value)
    compile(first, X, tpu="v5e-8")
    assert len(compiled) == (2 if value else 1)
    assert (libtpu._child() is before) is (not value)


PROGRAM = """
import jax, jax.numpy as jnp, tpunb
from tpunb.compiler.ask import libtpu

said = {"asked": []}
answered = libtpu._answered


def counted(request, deadline):
    if "topology" in request:
        said["asked"].append(request["topology"])
    return answered(request, deadline)


libtpu._answered = counted
X = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)


def first(x):
    with jax.named_scope("first"):
        return jnp.tanh(x @ x)  # in the first


def second(x):
    with jax.named_scope("second"):
        product = x @ x  # in the second
        return jnp.tanh(product)


def lines(program):
    names = [share.name for share in program.time.by_line]
    return [program.memory.peak, names, [share.name for share in program.time.by_layer]]


said["first"] = lines(tpunb.compile(first, X, tpu="v5e-1", speed=True))
said["second"] = lines(tpunb.compile(second, X, tpu="v5e-1", speed=True))
said["third"] = lines(tpunb.compile(lambda x: jnp.tanh(x), X, tpu="v5e-1", speed=True))
said["again"] = lines(tpunb.compile(jax.jit(first), X, tpu="v5e-1", speed=True))
"""


def test_programs_of_jax_are_compiled_once(tmp_path: Path) -> None:
    said = said_with_jax(PROGRAM, tmp_path)
    assert len(said["asked"]) == 2
    peak, lines, layers = said["second"]
    assert said["first"] == said["again"]
    assert said["first"][0] == peak
    assert "product = x @ x  # in the second" in lines
    assert layers[0] == "second"
    assert said["first"][1:] == [["return jnp.tanh(x @ x)  # in the first"], ["first"]]
