"""What a notebook shows below cells whose programs ran on a virtual TPU for JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.shell import Notebook

from tpunb.tpu import families

STEP = """
import jax, jax.numpy as jnp
def step(x):
    return jnp.tanh(x @ x).sum() * 29
jax.jit(step)(jnp.ones((8, 8)))
"""


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Notebook]:
    notebook = Notebook(tmp_path)
    notebook.good("%load_ext tpunb")
    yield notebook
    notebook.good("%unload_ext tpunb")


def shown(notebook: Notebook, cell: str) -> list[str]:
    """Return the texts that a cell shows."""
    return [bundle.get("text/plain", "") for bundle in notebook.good(cell).shown]


def test_a_line_for_each_program(book: Notebook, libtpu: None) -> None:
    introduction = shown(book, "%tpu_connect --simulate v5e-1 --framework jax")
    assert introduction[0] == "virtual TPU v5e-1 for JAX (simulated on CPU) · 1 device"
    assert "step fits a v5e-1: 9 KiB of 15.75 GiB a core" in shown(book, STEP)
    other = STEP.replace("step", "other").replace("29", "31")
    assert "other fits a v5e-1: 9 KiB of 15.75 GiB a core" in shown(book, other)
    assert "fits" not in "".join(shown(book, "1 + 1"))


def test_a_table_for_many_programs(book: Notebook, libtpu: None) -> None:
    book.good("%tpu_connect --simulate v5e-1 --framework jax")
    cell = "import jax, jax.numpy as jnp\n" + "".join(
        f"jax.jit(lambda x: x * {number} + 1)(jnp.ones(4))\n" for number in range(2, 8)
    )
    (text,) = (text for text in shown(book, cell) if "fits" in text)
    assert [line.split()[1:4] for line in text.splitlines()] == [["fits", "a", "v5e-1"]] * 6


def test_a_refused_program_is_explained_in_its_cell(book: Notebook, libtpu: None) -> None:
    book.good("%tpu_connect --simulate v5e-1 --framework jax")
    ran = book.run(
        "import jax, jax.numpy as jnp\n"
        "def large(x):\n"
        "    return jnp.sort(jnp.broadcast_to(x[:, None], (8, 2**30)), axis=0).sum()\n"
        "jax.jit(large)(jnp.ones(8))"
    )
    assert type(ran.error).__name__ in {"XlaRuntimeError", "JaxRuntimeError"}
    assert str(ran.error).startswith("RESOURCE_EXHAUSTED")


def test_arrays_that_do_not_fit_are_said_below_the_cell(
    book: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    book.good("%tpu_connect --simulate v5e-1 --framework jax --judge off")
    small = dataclasses.replace(families.HARDWARE["v5e"], usable_bytes=2**20)
    monkeypatch.setitem(families.HARDWARE, "v5e", small)
    text = shown(book, "import jax.numpy as jnp\nweights = jnp.ones((2**19,))")[-1]
    assert text.startswith(
        "The arrays take 2 MiB of a core's 1 MiB. On a TPU, this cell would fail"
    )
    assert "weights: float32[524288], 2 MiB" in text


def test_magics_of_tensorflow_name_the_way_for_jax(book: Notebook) -> None:
    book.good("%tpu_connect --simulate v5e-4 --framework jax --judge off")
    for cell in ("%%tpu_run --check\nx = 1", "%%tpu_check\nx = 1"):
        ran = book.run(cell)
        assert type(ran.error).__name__ == "CellError", cell
        assert "%tpu_connect --simulate v5e-4 --framework tensorflow" in str(ran.error)


def test_a_profile_names_the_profiler_of_jax(book: Notebook) -> None:
    book.good("%tpu_connect --simulate v5e-4 --framework jax --judge off")
    for cell in ("%%tpu_profile\nx = 1", "%tpu_profile f()"):
        ran = book.run(cell)
        assert type(ran.error).__name__ == "CellError", cell
        assert "jax.profiler.trace" in str(ran.error)


def test_the_status_lists_memory_and_arrays(book: Notebook) -> None:
    book.good("%tpu_connect --simulate v5e-4 --framework jax --judge off")
    book.good("import jax.numpy as jnp\nweights = jnp.ones((2**19,))")
    text = repr(book.good("%tpu_status").value)
    assert "Connection to virtual TPU v5e-4 for JAX, 4 devices" in text
    assert "weights" in text
    assert "15.75 GiB on the fullest device" in text


def test_another_type_replaces_the_connection(book: Notebook) -> None:
    book.good("%tpu_connect --simulate v5e-4 --framework jax --judge off")
    texts = shown(book, "%tpu_connect --simulate v4-8 --framework jax --judge off")
    assert texts[0].startswith("The connection to v5e-4 is closed: its arrays can be read")
    assert book.good("import jax\njax.devices()[0].device_kind").value == "TPU v4"
    assert (
        "used again" in shown(book, "%tpu_connect --simulate v4-8 --framework jax --judge off")[0]
    )
    book.good("%tpu_disconnect")
    assert book.good("jax.default_backend()").value == "cpu"


SHARED = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
w = jax.device_put(jnp.ones((64, 64)), NamedSharding(mesh, P()))
batch = np.ones((128, 64), np.float32)
sharded = jax.device_put(batch, NamedSharding(mesh, P("data")))
@jax.jit
def step(w, x):
    return w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
"""


def test_work_that_the_cores_do_not_share_is_said(book: Notebook, libtpu: None) -> None:
    book.good("%tpu_connect --simulate v5e-4 --framework jax")
    book.good(SHARED)
    _, alone = shown(book, "_ = step(w, batch)")
    assert "Each of the 4 cores computes all of step" in alone
    assert "If one of them is a batch, shard it" in alone
    (right,) = shown(book, "_ = step(w, sharded)")
    assert "Each of" not in right
    assert "all-reduce" in right
    (one,) = shown(book, "_ = step(jnp.ones((64, 64)), jnp.asarray(batch))")
    assert one.endswith("on 1 of 4 cores")


def test_an_array_that_each_call_moves_is_said(book: Notebook, libtpu: None) -> None:
    book.good("%tpu_connect --simulate v5e-4 --framework jax")
    book.good(SHARED)
    book.good("large = jnp.ones((512, 1024))\nadd = jax.jit(lambda x, y: x @ x.T + y.sum())")
    _, said = shown(book, "_ = add(sharded, large)")
    assert "copies large (2 MiB) from one device to 4. Place it once" in said
    book.good("placed = jax.device_put(large, NamedSharding(mesh, P()))")
    (right,) = shown(book, "_ = jax.jit(lambda x, y: x @ x.T - y.sum())(sharded, placed)")
    assert "copies" not in right


def test_a_function_that_is_compiled_for_each_shape_is_said(book: Notebook, libtpu: None) -> None:
    book.good("%tpu_connect --simulate v5e-4 --framework jax --judge later")
    book.good(SHARED)
    few = shown(book, "for n in range(3): step(w, np.ones((100 + n, 64), np.float32))")
    assert "was compiled" not in "".join(few)
    many = shown(book, "for n in range(5): step(w, np.ones((200 + n, 64), np.float32))")
    said = "step was compiled 5 times, for arguments of other shapes each time"
    assert said in "".join(many)  # in any order, because no call waits
