"""What is said of steps that compile and fit, and that are wrong or slow; and of their relatives."""

from __future__ import annotations

import linecache
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.shell import Notebook

import tpunb
from tpunb.errors import TpuWarning
from tpunb.jax.checks.call import Call
from tpunb.jax.checks.recompiled import Recompiled
from tpunb.jax.checks.table import findings, sentence
from tpunb.jax.virtual.jit_calls import present_jit, present_jit_call

MESH = AbstractMesh((8,), ("data",), axis_types=(AxisType.Auto,))
GRID = AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
WHOLE, CUT = P(), P("data")
W, X, Y = ((256, 16), (1024, 256), (1024, 16))
KEY = jax.random.key(0)

over = partial(jax.shard_map, mesh=MESH, in_specs=(P(), P("data"), P("data")), out_specs=P())
unchecked = partial(over, check_vma=False)


def loss(w: Any, x: Any, y: Any) -> Any:
    return jnp.mean((x @ w - y) ** 2)


def found(fn: Callable[..., Any], *args: Any) -> list[Any]:
    """Return what is found in a step; shapes stand for float32 arrays."""
    arrays = [jax.ShapeDtypeStruct(a, "float32") if isinstance(a, tuple) else a for a in args]
    traced = jax.jit(fn).trace(*arrays)
    return findings(Call("step", traced.jaxpr, 8))


def codes(fn: Callable[..., Any], *args: Any) -> list[str]:
    return [each.code for each in found(fn, *args)]


def on_grid(fn: Any, *specs: Any, out: Any = WHOLE, check_vma: bool = True) -> Any:
    return jax.shard_map(fn, mesh=GRID, in_specs=specs, out_specs=out, check_vma=check_vma)


def mean_of_all(w: Any, x: Any, y: Any) -> Any:
    return lax.pmean(loss(w, x, y), "data")


def accumulated(w: Any, x: Any, y: Any) -> Any:
    """Add up the gradients of four parts, each already a sum over the devices."""

    def add(total: Any, part: Any) -> Any:
        return total + jax.grad(loss)(w, *part), None

    parts = (x.reshape(4, -1, 256), y.reshape(4, -1, 16))
    total, _ = lax.scan(add, jnp.zeros_like(w), parts)
    return lax.psum(total, "data") / 32


SUMMED_AGAIN = {
    "a gradient": lambda w, x, y: lax.psum(jax.grad(loss)(w, x, y), "data") / 8,
    "its mean": lambda w, x, y: lax.pmean(jax.grad(loss)(w, x, y), "data"),
    "in a tree": lambda w, x, y: lax.pmean(
        jax.grad(lambda p: loss(p["w"], x, y))({"w": w}), "data"
    ),
    "in a jit": lambda w, x, y: lax.psum(jax.jit(jax.grad(loss))(w, x, y), "data"),
    "scaled": lambda w, x, y: w - 0.1 * lax.psum(0.5 * jax.grad(loss)(w, x, y), "data"),
    "accumulated": accumulated,
    "a sum": lambda w, x, y: lax.psum(lax.psum(x.sum(), "data") * 2, "data"),
}

SUMMED_ONCE = {
    "the mean's gradient": lambda w, x, y: jax.grad(mean_of_all)(w, x, y),
    "divided": lambda w, x, y: jax.grad(loss)(w, x, y) / 8,
    "variance": lambda w, x, y: lax.pmean((x.mean(0) - lax.pmean(x.mean(0), "data")) ** 2, "data"),
    "own copies": lambda w, x, y: (
        lax.pmean(jax.grad(loss)(lax.pcast(w, "data", to="varying"), x, y), "data")
        if hasattr(lax, "pcast")
        else lax.pmean(jax.grad(loss)(lax.pvary(w, "data"), x, y), "data")
    ),
    "a norm": lambda w, x, y: lax.psum((x / lax.psum(x.sum(), "data")).sum(), "data"),
    "a count": lambda w, x, y: lax.psum(1, "data") * jax.grad(mean_of_all)(w, x, y),
}


@pytest.mark.parametrize("step", SUMMED_AGAIN.values(), ids=SUMMED_AGAIN)
def test_a_sum_of_a_sum(step: Any) -> None:
    (problem,) = found(over(step), W, X, Y)
    assert problem.code == "repeated-sum"
    assert "8 times as large" in problem.reason
    assert 'jax.lax.pmean(loss, "data")' in problem.fix
    assert problem.file == __file__
    assert problem.line is not None


@pytest.mark.parametrize("step", SUMMED_ONCE.values(), ids=SUMMED_ONCE)
def test_right_sums(step: Any) -> None:
    assert codes(over(step), W, X, Y) == []


def test_a_sum_of_a_sum_without_jaxs_check() -> None:
    once = unchecked(lambda w, x, y: lax.psum(jax.grad(loss)(w, x, y), "data") / 8)
    assert codes(once, W, X, Y) == []
    assert codes(
        unchecked(lambda w, x, y: lax.psum(lax.psum(x.sum(), "data"), "data")), W, X, Y
    ) == ["repeated-sum"]
    two_axes = on_grid(
        lambda w, x: lax.pmean(jnp.mean(lax.psum(x @ w, "model") ** 2), "data"),
        P("model"),
        P("data", "model"),
    )
    assert codes(two_axes, W, X) == []


SUMS_OF_MEANS = {
    "a loss": lambda w, x, y: lax.psum(loss(w, x, y), "data"),
    "half of it": lambda w, x, y: lax.psum(0.5 * loss(w, x, y), "data"),
    "in two steps": lambda w, x, y: lax.psum(((x @ w - y) ** 2).mean(-1).mean(), "data"),
    "with a penalty": lambda w, x, y: lax.psum(loss(w, x, y) + 0.1 * (w**2).sum(), "data"),
    "with its gradient": lambda w, x, y: jax.value_and_grad(
        lambda w: lax.psum(loss(w, x, y), "data")
    )(w),
    "accuracy": lambda w, x, y: lax.psum(((x @ w).argmax(-1) == y.argmax(-1)).mean(), "data"),
    "a feature's mean": lambda w, x, y: lax.psum(x.mean(0), "data"),
    "root of it": lambda w, x, y: jnp.sqrt(lax.psum((x**2).mean(), "data")),
    "in a jit": lambda w, x, y: lax.psum(jax.jit(loss)(w, x, y), "data"),
    "in a model": lambda w, x, y: lax.psum(
        jnp.mean(jax.nn.log_softmax(jax.nn.relu(x @ w).reshape(-1, 4, 4)).reshape(-1, 16) * y),
        "data",
    ),
}

NO_SUMS_OF_MEANS = {
    "a mean": lambda w, x, y: lax.pmean(loss(w, x, y), "data"),
    "divided": lambda w, x, y: lax.psum(loss(w, x, y), "data") / lax.psum(1, "data"),
    "divided before": lambda w, x, y: lax.psum(loss(w, x, y) / 8, "data"),
    "weighted": lambda w, x, y: lax.psum(loss(w, x, y) * x.shape[0], "data") / 1024,
    "sums": lambda w, x, y: lax.psum(((x @ w - y) ** 2).sum(), "data"),
    "sums by a number": lambda w, x, y: lax.psum(((x @ w - y) ** 2).sum(), "data") / (1024 * 16),
    "of each example": lambda w, x, y: lax.psum(((x @ w - y) ** 2).mean(-1).sum(), "data"),
    "masked": lambda w, x, y: (
        lax.psum((x * (y[:, :1] > 0)).sum(), "data") / lax.psum((y > 0).sum(), "data")
    ),
    "a rate": lambda w, x, y: w - 0.1 * jax.grad(lambda w: (x @ w).sum())(w),
    "a bias": lambda w, x, y: w[0] - 0.1 * jax.grad(lambda b: mean_of_all(w, x, y - b))(w[0]),
    "a rate and a count": lambda w, x, y: lax.psum(x.sum(0) * (1 / 128), "data") * 0.5,
    "by an array": lambda w, x, y: lax.psum(loss(w, x, y), "data") / lax.psum(jnp.ones(()), "data"),
}


@pytest.mark.parametrize("step", SUMS_OF_MEANS.values(), ids=SUMS_OF_MEANS)
def test_a_sum_of_means(step: Any) -> None:
    (problem,) = found(over(step), W, X, Y)
    assert problem.code == "sum-of-means"
    assert "8 times the mean" in problem.reason
    assert 'jax.lax.pmean(x, "data")' in problem.fix
    assert problem.line is not None


@pytest.mark.parametrize("step", NO_SUMS_OF_MEANS.values(), ids=NO_SUMS_OF_MEANS)
def test_right_means(step: Any) -> None:
    assert codes(over(step), W, X, Y) == []


def test_a_sum_of_parts_of_a_product_is_no_sum_of_means() -> None:
    row_parallel = on_grid(
        lambda w, x: lax.pmean(lax.psum((x @ w).mean(), "model"), "data"),
        P("model"),
        P("data", "model"),
    )
    assert codes(row_parallel, W, X) == []


def ring(total: Any) -> Any:
    """Add up over a ring, which JAX's check does not follow."""
    shift = [(i, (i + 1) % 8) for i in range(8)]
    part = total
    for _ in range(7):
        part = lax.ppermute(part, "data", shift)
        total = total + part
    return total


DIFFERING = {
    "no collective": lambda w, x, y: w - 0.1 * jax.grad(loss)(w, x, y),
    "a local loss": lambda w, x, y: loss(w, x, y),
    "the number of a device": lambda w, x, y: w * lax.axis_index("data"),
    "in a scan": lambda w, x, y: lax.scan(
        lambda w, _: (w - 0.1 * jax.grad(loss)(w, x, y), None), w, length=3
    )[0],
    "in a loop": lambda w, x, y: lax.fori_loop(0, 3, lambda _, w: w - jax.grad(loss)(w, x, y), w),
    "in a branch": lambda w, x, y: lax.cond(x[0, 0] > 0, lambda: w, lambda: 2 * w),
}

SAME = {
    "a mean": lambda w, x, y: w - 0.1 * lax.pmean(jax.grad(loss)(w, x, y), "data"),
    "a ring": lambda w, x, y: w - 0.1 * ring(jax.grad(loss)(w, x, y)) / 8,
    "gathered": lambda w, x, y: lax.all_gather(loss(w, x, y), "data").mean(),
    "scattered": lambda w, x, y: (
        w
        - lax.all_gather(
            lax.psum_scatter(jax.grad(loss)(w, x, y), "data", tiled=True), "data", tiled=True
        )
    ),
    "a scan": lambda w, x, y: lax.scan(
        lambda w, _: (w - lax.pmean(jax.grad(loss)(w, x, y), "data"), None), w, length=3
    )[0],
    "a shape": lambda w, x, y: w + x.shape[0] + jnp.zeros_like(y).shape[0],
}


@pytest.mark.parametrize("step", DIFFERING.values(), ids=DIFFERING)
def test_results_that_differ(step: Any) -> None:
    (problem,) = found(unchecked(step), W, X, Y)
    assert problem.code == "differing-result"
    assert "8 devices" in problem.reason
    assert "check_vma=False" in problem.fix
    assert problem.line is not None


@pytest.mark.parametrize("step", SAME.values(), ids=SAME)
def test_results_that_are_the_same(step: Any) -> None:
    assert codes(unchecked(step), W, X, Y) == []


def test_results_that_differ_along_one_of_two_axes() -> None:
    def step(w: Any, x: Any) -> tuple[Any, Any]:
        out = x @ w
        return lax.pmean(out.mean(0), "data"), lax.pmean(out.mean(), ("data", "model"))

    fine = on_grid(step, P(None, "model"), P("data"), out=(P("model"), P()), check_vma=False)
    assert codes(fine, W, X) == []
    (problem,) = found(
        on_grid(step, P(None, "model"), P("data"), out=(P(), P()), check_vma=False), W, X
    )
    assert problem.reason.startswith("Result 1 of the shard_map")
    assert '4 devices along "model"' in problem.reason


def dropped(key: Any, x: Any) -> Any:
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0) * 2


def drawing(step: Any, out: Any = CUT, key: Any = WHOLE) -> Any:
    return jax.shard_map(step, mesh=MESH, in_specs=(key, P(), P("data")), out_specs=out)


def split_along(key: Any) -> Any:
    return jax.random.fold_in(key, lax.axis_index("data"))


ONE_KEY = {
    "dropout": drawing(lambda k, w, x: dropped(k, x)),
    "a layer's": drawing(lambda k, w, x: dropped(k, jax.nn.relu(x @ w)).sum(keepdims=True)),
    "split before": drawing(lambda k, w, x: dropped(jax.random.split(k)[0], x)),
    "noise": drawing(lambda k, w, x: x + jax.random.normal(k, x.shape)),
    "Monte Carlo": drawing(
        lambda k, w, x: lax.psum((jax.random.uniform(k, (99,)) < 0.5).sum(), "data"), P()
    ),
    "samples": drawing(lambda k, w, x: jax.random.normal(k, (16,))),
    "a gradient": drawing(
        lambda k, w, x: lax.pmean(jax.grad(lambda w: (dropped(k, x @ w) ** 2).mean())(w), "data"),
        P(),
    ),
}

OTHER_KEYS = {
    "folded": drawing(lambda k, w, x: dropped(split_along(k), x)),
    "cut": drawing(lambda k, w, x: dropped(k[0], x), key=P("data")),
    "noise of weights": drawing(lambda k, w, x: x @ (w + jax.random.normal(k, w.shape))),
    "a whole feature": drawing(lambda k, w, x: x * jax.random.bernoulli(k, 0.5, (1, x.shape[1]))),
    "weights": drawing(lambda k, w, x: jax.random.normal(k, w.shape), P()),
    "Monte Carlo": drawing(
        lambda k, w, x: lax.psum((jax.random.uniform(split_along(k), (99,)) < 0.5).sum(), "data"),
        P(),
    ),
}


@pytest.mark.parametrize("step", ONE_KEY.values(), ids=ONE_KEY)
def test_one_key_on_all_devices(step: Any) -> None:
    problems = [each for each in found(step, KEY, W, X) if each.code == "one-key"]
    assert len(problems) == 1
    assert 'jax.random.fold_in(key, jax.lax.axis_index("data"))' in problems[0].fix
    assert problems[0].line is not None


@pytest.mark.parametrize(("name", "step"), OTHER_KEYS.items(), ids=OTHER_KEYS)
def test_right_keys(name: str, step: Any) -> None:
    keys = jax.random.split(KEY, 8) if name == "cut" else KEY
    assert codes(step, keys, W, X) == []


def test_calls_of_the_host() -> None:
    def step(x: Any) -> Any:
        jax.debug.print("{}", x.sum())
        noise = jax.pure_callback(
            lambda: np.ones(1024, "f"), jax.ShapeDtypeStruct((1024,), "float32")
        )
        return x + noise

    telling, waiting = found(step, (1024,))
    assert "sends 4 B" in telling.reason
    assert "jax.lax.cond" in telling.fix
    assert "4 KiB cross" in waiting.reason
    assert "jax.pure_callback" in waiting.reason
    first = step.__code__.co_firstlineno
    assert [telling.line, waiting.line] == [first + 1, first + 2]
    assert "`jax.debug.print(" in sentence(telling)


def test_a_call_of_the_host_in_a_branch_is_right() -> None:
    def step(x: Any, n: Any) -> Any:
        lax.cond(n % 100 == 0, lambda: jax.debug.print("{}", x.sum()), lambda: None)
        return x * 2

    assert codes(step, (1024,), ()) == []


def test_megabytes_in_the_program() -> None:
    table = np.ones((1024, 1024), "f")
    on_device = jnp.ones((1024, 1024))
    (problem,) = found(lambda i: jnp.asarray(table)[i], np.arange(4))
    assert "float32[1024,1024], 4 MiB" in problem.reason
    assert "argument" in problem.fix
    assert problem.line is not None
    assert codes(lambda i: on_device @ i, (1024,)) == ["constant"]
    assert codes(lambda x: jax.jit(lambda x: x @ table)(x), (4, 1024)) == ["constant"]
    assert codes(lambda i: jnp.ones((1024, 1024)) @ i, (1024,)) == []
    assert codes(lambda i, table: table[i], np.arange(4), table) == []
    assert codes(lambda i: jnp.asarray(table[:4]) @ i, (1024,)) == []


def test_float64() -> None:
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        (problem,) = found(lambda x: (x @ x.T).sum(), jax.ShapeDtypeStruct((64, 64), "float64"))
        assert (problem.code, "float64" in problem.reason) == ("float64", True)
        assert "float32" in problem.fix
        assert codes(lambda x: jnp.sin(x), jax.ShapeDtypeStruct((64, 64), "float64")) == ["float64"]
        assert codes(lambda x, rate: x * rate.astype(x.dtype), (64, 64), jnp.float64(0.1)) == []
        assert codes(lambda x, n: x[n], (64, 64), jnp.arange(2048)) == []
    assert codes(lambda x: x * np.float64(0.1), np.ones((64, 64))) == []


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Notebook]:
    notebook = Notebook(tmp_path, "%load_ext tpunb")
    notebook.good("%tpu_connect --simulate v5e-4 --framework jax --judge off")
    notebook.good("import jax, jax.numpy as jnp, numpy as np\nx = jnp.ones(8)\n")
    yield notebook
    notebook.good("%unload_ext tpunb")


LOOPS = {
    "a lambda": "for i in range(5): jax.jit(lambda x: x * 2)(x)",
    "what it reads changes": "for i in range(5): jax.jit(lambda x: x * i)(x)",
    "a function of a function": (
        "def train(x):\n    step = jax.jit(lambda x: x + 2)\n    return step(x)\n"
        "for i in range(5): train(x)"
    ),
    "a method": (
        "class Model:\n    def step(self, x): return x + 3\n"
        "for i in range(5): jax.jit(Model().step)(x)"
    ),
}

NO_LOOPS = {
    "one function": "step = jax.jit(lambda x: x * 3)\nfor i in range(8): step(x)",
    "jax.jit of one function": "def step(x): return x * 5\nfor i in range(8): jax.jit(step)(x)",
    "a list of functions": (
        "layers = [jax.jit(lambda x, i=i: x * i) for i in range(8)]\nfor f in layers: f(x)"
    ),
    "a few": "for i in range(3): jax.jit(lambda x: x * 7)(x)",
}


@pytest.mark.parametrize("cell", LOOPS.values(), ids=LOOPS)
def test_a_jit_in_a_loop(book: Notebook, cell: str) -> None:
    (text,) = said(book, cell)
    assert "was compiled 5 times for arguments of the same shapes" in text
    assert "Call jax.jit once, before the loop" in text
    assert "`for i in range(5)" in text or "`return step(x)`" in text


@pytest.mark.parametrize("cell", NO_LOOPS.values(), ids=NO_LOOPS)
def test_right_loops(book: Notebook, cell: str) -> None:
    assert said(book, cell) == []


def said(book: Notebook, cell: str) -> list[str]:
    """Return the sentences below a cell."""
    ran = book.good(cell)
    value = ran.value
    return [bundle["text/plain"] for bundle in ran.shown if bundle["text/plain"] != repr(value)]


def test_a_static_argument_that_changes(book: Notebook) -> None:
    book.good("from functools import partial\nstep = jax.jit(lambda x, n: x * n, static_argnums=1)")
    (text,) = said(book, "for n in range(6): step(x, n)")
    assert "compiled 6 times, because its static argument `n` has another value" in text
    assert "0, 1, 2, …" in text
    assert "Pass `n` as an ordinary argument" in text
    assert said(book, "for n in range(6): step(x, n)") == []
    book.good(
        "@partial(jax.jit, static_argnames='mode')\ndef f(x, mode='a', *, rate): return x * rate"
    )
    assert said(book, "for i in range(6): f(x, mode='ab'[i % 2], rate=0.1 * i)") == []
    (text,) = said(book, "for i in range(6): f(x, rate=0.1, mode=i)")
    assert "its static argument `mode`" in text
    book.good(
        "class Model:\n    @partial(jax.jit, static_argnums=0)\n    def step(self, x): return x + 4"
    )
    (text,) = said(book, "for i in range(6): Model().step(x)")
    assert "Keep one object for `self`" in text


def test_the_call_that_took_a_donated_array(book: Notebook) -> None:
    book.good(
        "def change(w, x): return w - x.sum()\nstep = jax.jit(change, donate_argnums=0)\n"
        "other = jax.jit(lambda w: w * 2, donate_argnums=0)\n_ = other(jnp.ones(9))\n"
        "w = jnp.ones(8)\nnew = step(w, x)"
    )
    for cell in ("w + 1", "print(w)"):
        (said,) = [each["text/plain"] for each in book.run(cell).shown]
        assert said.startswith("line 6, `new = step(w, x)`: Each call of change deletes float32[8]")
        assert "`x = change(x, ...)`" in said
    for cell in ("1 / 0", "raise RuntimeError('Array has been deleted with shape=float32[7].')"):
        assert book.run(cell).shown == []
    shown = book.run("w = jnp.ones(8)\nfor i in range(3): new = step(w, x)").shown
    assert "Each call of change deletes" in shown[-1]["text/plain"]


def test_each_sentence_comes_once(book: Notebook) -> None:
    cell = "step = jax.jit(lambda x: [x, jax.debug.print('{}', x.sum())][0])\n_ = step(x)"
    (text,) = said(book, cell)
    assert text.startswith("line 1, `step = jax.jit(lambda x: [x, jax.debug.print(")
    assert said(book, "_ = step(x)") == []
    assert said(book, cell) == []
    (other,) = said(
        book,
        "_ = step(jnp.ones(9))\ntable = jnp.ones((1024, 1024))\n"
        "_ = jax.jit(lambda x: table @ x)(jnp.ones(1024))",
    )
    assert "`table` (float32[1024,1024], 4 MiB)" in other


def test_the_lines_of_a_cell_on_every_device(book: Notebook) -> None:
    cell = "%%tpu_run\nkey = jax.random.key(0)\nmask = jax.random.bernoulli(key, 0.5, rows.shape)\nrows * mask"
    book.good(
        "rows = jax.device_put(np.ones((8, 4), 'f'), jax.NamedSharding(jax.make_mesh((4,), ('a',)), jax.P('a')))"
    )
    with pytest.warns(TpuWarning, match="draw the same random numbers") as caught:
        assert said(book, cell)[1:] == []
    assert [each.lineno for each in caught] == [3]
    book.good(cell)  # a warning is an error


@pytest.mark.usefixtures("libtpu")
def test_compile_says_it_too() -> None:
    step = jax.jit(over(lambda w, x, y: lax.psum(loss(w, x, y), "data")))
    program = tpunb.compile(
        step, *(jax.ShapeDtypeStruct(each, "float32") for each in (W, X, Y)), tpu="v5e-8"
    )
    (note,) = program.notes
    assert "8 times the mean" in note


@pytest.fixture
def script(connect: Callable[..., Any]) -> Iterator[Any]:
    """The arguments of a step in a script, which no notebook shows."""
    with connect("v5e-8", judge="off"):
        mesh = jax.make_mesh((8,), ("data",))
        yield jax.device_put(jnp.ones((64, 128)), NamedSharding(mesh, P()))


def test_a_script_is_warned_once_at_the_line(script: Any) -> None:
    step = jax.jit(lambda x: (x @ x.T).sum())
    with pytest.warns(TpuWarning, match=r"Each of the 8 cores computes all of .*sharded") as caught:
        step(script)
    (warning,) = caught
    assert warning.filename == __file__
    assert linecache.getline(__file__, warning.lineno).strip() == "step(script)"
    jax.clear_caches()
    step(script)  # a warning is an error in these tests


def test_a_script_is_warned_once_of_a_function_that_is_compiled_again_and_again(
    connect: Callable[..., Any],
) -> None:
    with connect("v5e-1", judge="off"):
        step, arrays = jax.jit(lambda x: x + 1), [np.ones(size, "f") for size in range(2, 26)]
        with pytest.warns(TpuWarning, match="was compiled 8 times, for arguments of other") as told:
            list(map(step, arrays))
    assert len(told) == 1
    assert told[0].filename == __file__


def test_a_command_is_warned_at_its_line(script: Any) -> None:
    """The code of `python -c` has the file name of generated code."""
    step = jax.jit(lambda x: (x @ x.T).sum())
    names = {"__name__": "__main__", "step": step, "x": script}
    with pytest.warns(TpuWarning, match=r"Each of the 8 cores computes all") as caught:
        exec("\n\nstep(x)", names)
    assert [(each.filename, each.lineno) for each in caught] == [("<string>", 3)]


def test_a_call_whose_variables_have_other_names_is_not_known() -> None:
    names: dict[str, Any] = {"present_jit": present_jit, "present_jit_call": present_jit_call}
    code = (
        "def cache_miss(*arguments): return present_jit(), present_jit_call()\nfound = cache_miss()"
    )
    exec(compile(code, "jax/_src/pjit.py", "exec"), names)
    assert names["found"] == (None, None)


def test_the_compilations_of_a_long_run_are_not_all_kept() -> None:
    found = Recompiled()
    program: Any = SimpleNamespace(
        name="f", file="f.py", line=1, arguments=("float32[2]",), shardings=("",)
    )
    for _ in range(1000):
        found.add(program, None)
        assert list(found.take_one(program)) == []
    assert len(next(iter(found._compiled.values()))) < 100


def test_pythons_filter_turns_the_warnings_off_or_makes_them_errors(script: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TpuWarning)
        jax.jit(lambda x: (x @ x.T).sum())(script)
    with pytest.raises(TpuWarning, match="computes all of"):
        jax.jit(lambda x: (x @ x.T).mean())(script)


@pytest.mark.usefixtures("libtpu")
def test_the_log_has_the_verdicts(
    connect: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "tpunb.compiler"), connect("v5e-1", judge="wait"):
        jax.jit(lambda x: x * 2 + 3, static_argnums=())(jnp.ones(1024))
    assert "v5e-1: compiles, " in caplog.text


def train(p: Any, x: Any) -> Any:
    gradient = jax.grad(lambda p: ((jax.nn.relu(x @ p["w1"] + p["b"]) @ p["w2"]) ** 2).mean())(p)
    return jax.tree.map(lambda w, g: w - g, p, gradient)


def placed(w1: Any, w2: Any, b: Any = WHOLE, x: Any = CUT, size: int = 1024) -> tuple[Any, Any]:
    """Return weights of 2 MiB and more and a batch on the grid, with these specs."""

    def shape(sizes: tuple[int, ...], spec: Any) -> Any:
        return jax.ShapeDtypeStruct(sizes, "float32", sharding=NamedSharding(GRID, spec))

    weights = {"w1": shape((512, size), w1), "w2": shape((size, 512), w2), "b": shape((size,), b)}
    return weights, shape((64, 512), x)


def unsharded(*specs: Any, fn: Any = train, out: Any = None, **options: Any) -> list[Any]:
    args = placed(*specs, **options)
    shardings = [leaf.sharding for leaf in jax.tree.leaves(args)]
    traced = jax.jit(fn).trace(*args)
    return findings(Call("step", traced.jaxpr, 8, shardings, [out] if out else ()))


def test_an_axis_of_the_mesh_that_nothing_uses() -> None:
    (problem,) = unsharded(WHOLE, WHOLE)
    assert problem.code == "unused-axis"
    assert "'model'" in problem.reason
    assert "4 cores" in problem.reason


def test_an_axis_that_an_operation_or_a_result_uses() -> None:
    def constrained(p: Any, x: Any) -> Any:
        sharding = NamedSharding(GRID, P("data", "model"))
        return jax.lax.with_sharding_constraint(x @ p["w1"], sharding)

    assert unsharded(WHOLE, WHOLE, fn=constrained) == []
    assert unsharded(WHOLE, WHOLE, out=NamedSharding(GRID, P("model"))) == []


def test_a_weight_that_is_whole_beside_its_sharded_neighbour() -> None:
    (problem,) = unsharded(P(None, "model"), WHOLE)
    assert problem.code == "left-whole"
    assert "`p['w2']` (2 MiB) is whole" in problem.reason
    assert "`p['w1']`" in problem.reason
    assert "'model' at dimension 0" in problem.fix
    (problem,) = unsharded(WHOLE, P("model"))
    assert "dimension 1 in the spec of `p['w1']`" in problem.fix


@pytest.mark.parametrize(
    "specs",
    [
        (P(None, "model"), P("model")),  # columns and rows; the bias is small
        (P("data", "model"), P("model", "data")),
        (P("model"), P(None, "model")),  # the other dimension of each
        (P(("data", "model")), P(("data", "model"))),
    ],
)
def test_no_weight_is_left_behind(specs: Any) -> None:
    assert unsharded(*specs) == []


def test_a_weight_that_does_not_divide_is_not_named() -> None:
    assert unsharded(P("model"), WHOLE, size=1026) == []


def test_a_compiled_call_has_the_sentence_about_its_layout(libtpu: None) -> None:
    program = tpunb.compile(train, *placed(P(None, "model"), WHOLE), tpu="v5e-8")
    assert "`p['w2']` (2 MiB) is whole" in " ".join(program.notes)
