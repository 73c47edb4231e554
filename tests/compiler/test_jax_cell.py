"""`%%tpu_compile` on cells of JAX, in a shell without TensorFlow."""

from __future__ import annotations

from typing import Any

import pytest
from support.jax_process import said_with_jax

PROGRAM = """
import pathlib, sys, tempfile
import numpy as np
from support.shell import Notebook

book = Notebook(pathlib.Path(tempfile.mkdtemp()))
book.good("%load_ext tpunb")
book.good(
    "import jax, jax.numpy as jnp\\nran = []\\n"
    "def step(w, x, scale=1.0):\\n    ran.append(isinstance(x, jax.core.Tracer))\\n"
    "    return (jnp.tanh(x @ w) * scale).sum()"
)
S = "jax.ShapeDtypeStruct"
said = {}


def lines(ran):
    return [type(ran.error).__name__, ran.text.strip().splitlines()]


program = book.good(
    "%%tpu_compile --for v5e-1 -o kept\\n"
    f"w = {S}((512, 512), jnp.float32)\\n"
    f"x = {S}((64, 512), jnp.float32)\\n"
    "step(w, scale=2.0, x=x)"
).value
said["ok"] = [program.ok, program.tpu, program is book.names["kept"]]
said["arguments"] = sorted(one.node for one in program.memory.largest if one.kind == "argument")
said["ran"] = book.names["ran"]
said["left"] = sorted({"w", "x"} & book.names.keys())
found = book.good(
    "%%tpu_compile --for v5e-1 --search -o found\\nstep(jnp.ones((8, 8)), jnp.ones((8, 8)))"
).value
said["search"] = [found.best.is_own, found is book.names["found"]]
said["no search"] = lines(book.run("%%tpu_compile --for v5e-1 --search\\n1 + 1"))
programs = book.good(f"%%tpu_compile --for v5e-1,v3-8\\nstep(*2 * [jnp.ones((8, 8))])").value
said["types"] = [one.tpu for one in programs]
large = book.good(
    "%%tpu_compile --for v5e-1\\ndef square(x):\\n    return x @ x\\n"
    f"jax.jit(square)({S}((65536, 65536), 'float32'))"
)
said["large"] = [large.value.ok, "return x @ x" in str(large.value)]
said["untraceable"] = lines(book.run(
    "%%tpu_compile --for v5e-1\\ndef chosen(x):\\n    return x[x > 0]\\nchosen(jnp.ones(3))"
))
book.good("def other(x):\\n    y = x\\n    return x[y > 0]")
said["elsewhere"] = lines(book.run("%%tpu_compile --for v5e-1\\nx = jnp.ones(3)\\nother(x)"))
said["before"] = lines(book.run("%%tpu_compile --for v5e-1\\n1 / 0\\nstep(1, 2)"))
said["no type"] = lines(book.run("%%tpu_compile\\nstep(1, 2)"))
said["data"] = lines(book.run("%%tpu_compile -d ran --for v5e-1\\nstep(1, 2)"))
program = book.good("%%tpu_compile --for v5e-1\\n(lambda *, x: x)(x=jnp.ones(3))").value
said["by name"] = [one.node for one in program.memory.largest if one.kind == "argument"]
said["no call"] = lines(book.run("%%tpu_compile --for v5e-1\\nx = jnp.ones(3)\\nx + 1"))
named = book.run("%%tpu_compile --for v5e-1\\nw, x = step(jnp.ones((8, 8)), jnp.ones((8, 8)))")
said["named"] = [named.value.ok, sorted({"w", "x"} & book.names.keys())]
for name, code in {
    "waited for": "step(ones, ones).block_until_ready()",
    "shown": "print(step(ones, ones))",
    "a number": "value = float(jax.block_until_ready(step(ones, ones)[None])[0])",
    "made and called": "jax.jit(step)(ones, ones)",
    "an argument that is made": f"jnp.sum({S}((8, 8), 'float32'))",
}.items():
    book.names.update(ran=[], ones=np.ones((8, 8), np.float32))
    ok = book.good(f"%%tpu_compile --for v5e-1\\n{code}").value.ok
    said[name] = [ok, book.names["ran"], "value" in book.names]
said["check"] = lines(book.run("%tpu_connect --framework tensorflow"))
"""

pytestmark = pytest.mark.usefixtures("libtpu")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Compile the cells in a process with JAX, and return the results."""
    return said_with_jax(PROGRAM, tmp_path_factory.mktemp("cells"))


def test_the_last_call_is_compiled_and_not_run(said: dict[str, Any]) -> None:
    assert said["ok"] == [True, "v5e-1", True]
    assert said["arguments"] == ["scale", "w", "x"]
    assert said["ran"]
    assert all(said["ran"]), "only with tracers"
    assert said["left"] == []


def test_arguments_may_be_passed_by_name_only(said: dict[str, Any]) -> None:
    assert said["by name"] == ["x"]


@pytest.mark.parametrize(
    "name", ["waited for", "shown", "a number", "made and called", "an argument that is made"]
)
def test_code_that_only_uses_the_result_is_skipped(said: dict[str, Any], name: str) -> None:
    ok, ran, named = said[name]
    assert ok
    assert all(ran), "only with tracers: the call does not run"
    assert not named


def test_several_types(said: dict[str, Any]) -> None:
    assert said["types"] == ["v5e-1", "v3-8"]


def test_a_program_that_does_not_fit_names_the_cells_lines(said: dict[str, Any]) -> None:
    assert said["large"] == [False, True]


def test_errors_show_the_cells_lines(said: dict[str, Any]) -> None:
    kind, text = said["untraceable"]
    assert kind == "NonConcreteBooleanIndexError"
    assert text[0] == "In the cell, line 3:"
    assert "---->   3     return x[x > 0]" in text
    kind, text = said["elsewhere"]
    assert text[0] == "In the cell, line 3:"
    assert "At line 3 of another cell: return x[y > 0]" in text
    kind, text = said["before"]
    assert kind == "ZeroDivisionError"
    assert text[0] == "In the cell, line 2:"


def test_messages_name_the_missing_part(said: dict[str, Any]) -> None:
    assert "--for v5e-8" in said["no type"][1][1]
    assert "not from -d" in said["data"][1][0]
    assert "does not end with a call" in said["no call"][1][0]
    assert "%%tpu_compile" in said["check"][1][1]


def test_a_search_of_a_call(said: dict[str, Any]) -> None:
    assert said["search"] == [True, True]
    assert "does not end with a call" in said["no search"][1][0]


def test_the_value_of_the_call_may_be_assigned(said: dict[str, Any]) -> None:
    assert said["named"] == [True, []]
