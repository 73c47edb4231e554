"""`tpunb.search`: the layout that fits and is fastest, what is known at a stop, and equal results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import tpunb
from tpunb.compiler.ask import libtpu
from tpunb.errors import CompileError
from tpunb.jax.compiler.search.equal import compare_layouts
from tpunb.jax.compiler.search.found import Found, Tried
from tpunb.jax.compiler.search.layouts import layout_of
from tpunb.jax.compiler.search.search import SearchStopped

WIDE = 1 << 16


def step(w: Any, x: Any) -> Any:
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w).astype(jnp.float32) ** 2))(w)
    return (w - gradient).astype(w.dtype), loss


def shapes(rows: int = WIDE) -> tuple[Any, Any]:
    """Return a weight of 8 GiB, whose gradient and result take as much, and a batch."""
    return (
        jax.ShapeDtypeStruct((rows, WIDE), jnp.bfloat16),
        jax.ShapeDtypeStruct((64, rows), jnp.bfloat16),
    )


def searched(*args: Any, **options: Any) -> Found:
    given = {"tpu": "v5e-4", "meshes": [(4,)], "progress": lambda _: None, "timeout": 600}
    found: Found = tpunb.search(step, *(args or shapes()), **{**given, **options})
    return found


@pytest.mark.usefixtures("libtpu")
def test_a_layout_fits_where_the_own_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    found = searched()
    own, best = found.own, found.best
    assert own is not None
    assert best is not None
    assert (own.fits, own.verdict, best.fits, best.is_own) == (False, "does not fit", True, False)
    assert best.is_confirmed
    assert best.peak is not None
    assert own.peak is not None
    assert best.peak < own.peak / 2
    whole = [row for row in found.rows if row.name == "data parallel"]
    assert all(row.verdict == "does not fit" for row in whole)
    assert "jax.make_mesh((4,)" in found.code
    assert found.code in str(found)
    assert "does not fit" in found.headline
    assert best.name in found.headline
    assert found.as_dict()["layouts"][found.as_dict()["best"]]["layout"] == best.name

    asked = []
    answered = libtpu._answered

    def counted(request: Any, deadline: Any) -> Any:
        asked.append("topology" in request)
        return answered(request, deadline)

    monkeypatch.setattr(libtpu, "_answered", counted)
    assert str(searched()) == str(found)
    assert not any(asked)  # the second search compiles nothing


@pytest.mark.usefixtures("libtpu")
def test_the_users_own_layouts_are_tried_and_hopeless_ones_are_not_compiled() -> None:
    specs = [(P(), P("data")), (P(None, "data"), P())]
    found = searched(*shapes(4 * WIDE), specs=specs)
    _, columns, whole, *donated = found.rows  # the smallest first
    assert (whole.name, whole.why) == (
        "specs[0]",
        "left out: its arguments alone take 32.01 GiB a core",
    )
    assert (columns.name, columns.verdict) == ("specs[1]", "does not fit")
    assert [row.fits for row in donated] == [True, False]
    assert found.best is donated[0]
    assert "jax.jit(step, donate_argnums=0)" in found.code


def test_an_axis_that_no_mesh_has_is_named() -> None:
    with pytest.raises(CompileError, match="names the axis 'elsewhere', and the mesh has 'data'"):
        searched(specs=[(P("elsewhere"), P())])


@pytest.mark.usefixtures("libtpu")
def test_a_stop_shows_what_is_known() -> None:
    def stop(said: str) -> None:
        if "candidate 2" in said:
            raise KeyboardInterrupt

    with pytest.raises(SearchStopped, match="What is known") as stopped:
        searched(progress=stop)
    (row,) = stopped.value.found.rows
    assert (row.is_own, row.verdict) == (True, "does not fit")


@pytest.mark.usefixtures("libtpu")
def test_the_connected_type_has_all_its_cores(connect: Callable[..., Any]) -> None:
    connect("v5e-4")

    def stop(said: str) -> None:
        if "candidate 2" in said:  # on one core, there is no other layout than the own one
            raise KeyboardInterrupt

    with pytest.raises(SearchStopped):
        searched(*shapes(64), tpu=None, meshes=None, progress=stop)


def sums(w: Any, x: Any, mesh: Any) -> Any:
    """Add up where it should average: the result depends on the mesh."""

    def body(w: Any, x: Any) -> Any:
        return jax.lax.psum(jnp.mean((x @ w) ** 2), "data")

    return jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())(w, x)


def means(w: Any, x: Any, mesh: Any) -> Any:
    del mesh
    return jnp.mean((x @ w) ** 2)


def coarse(w: Any, x: Any, mesh: Any) -> Any:
    """Return the new weight and the gradient, in float32, of a step that computes in bfloat16."""
    del mesh
    half = w.astype(jnp.bfloat16), x.astype(jnp.bfloat16)
    gradient = jax.grad(lambda w: (jnp.tanh(half[1] @ w) ** 2).astype(jnp.float32).mean())(half[0])
    return w - gradient, gradient.astype(jnp.float32)


def coarse_sums(w: Any, x: Any, mesh: Any) -> Any:
    def body(w: Any, x: Any) -> Any:
        return jax.lax.psum(coarse(w, x, mesh)[1], "data")

    specs = (P(), P("data"))
    return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)(w, x)


EQUAL = "its results equal those of your own layout"


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (sums, "its results differ"),
        (coarse_sums, "its results differ"),
        (means, EQUAL),
        (coarse, EQUAL),
    ],
)
def test_results_are_compared(fn: Any, said: str, connect: Callable[..., Any]) -> None:
    connect("v5e-8")
    args = (
        jax.ShapeDtypeStruct((16, 16), jnp.float32),
        jax.ShapeDtypeStruct((64, 16), jnp.float32),
    )
    layout = layout_of(args, {"data": 8}, (P(), P("data")))
    assert said in compare_layouts(fn, args, [None, layout])


def test_results_are_not_compared_without_devices() -> None:
    args = shapes()
    layout = layout_of(args, {"data": 512}, (P(), P()))
    assert "not compared: JAX has" in compare_layouts(step, args, [None, layout])


def test_a_layout_with_other_results_is_never_the_best() -> None:
    program: Any = tpunb.compiler.program.TpuProgram  # type: ignore[attr-defined]
    from tpunb.tpu.compiled_program import ProgramMemory, StepTime

    def tried(seconds: float, results: str = "", **more: Any) -> Tried:
        time, memory = StepTime(seconds, seconds), ProgramMemory(1, 2, 2)
        return Tried(
            "v5e-4",
            "data 4",
            "a",
            program("v5e-4", 1, time=time, memory=memory),
            results=results,
            **more,
        )

    wrong, own = tried(1.0, "its results differ: by much"), tried(2.0, is_own=True)
    unknown = Tried("v5e-4", "data 4", "b", program("v5e-4", 1, unknown="It took too long."))
    found = Found((own, wrong, unknown))
    assert found.best is own
    assert "not known" in str(found)
    assert "differ" in str(found)
    assert Found((unknown,)).best is None
    untimed = Tried("v5e-4", "data 4", "c", program("v5e-4", 1, memory=ProgramMemory(1, 2, 2)))
    assert Found((unknown, untimed)).best is untimed
    assert "1 B of 2 B a core." in Found((unknown, untimed)).headline
    assert Found((untimed, own)).best is own
    rough, full = tried(0.5), tried(1.5, is_confirmed=True)
    assert Found((own, rough, full)).best is full, "times at low effort only rank"
    assert Found((own, rough)).best is rough


def test_unknown_specs_are_refused() -> None:
    with pytest.raises(CompileError, match="specs='tensor' is unknown"):
        searched(specs="tensor")
