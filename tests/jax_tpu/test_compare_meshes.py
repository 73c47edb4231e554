"""`tpunb.compare(step, ..., meshes=...)`: the same results on every mesh, and what each costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import tpunb
from tpunb.jax.compiler.compare_meshes import MeshError
from tpunb.jax.compiler.mesh_comparison import MeshesDifferError

MESHES = [(1,), (8,), (4, 2)]


@pytest.fixture
def args(connect: Callable[..., Any]) -> tuple[Any, Any]:
    connect("v5e-8")
    random = np.random.default_rng(0)
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    def put(shape: tuple[int, ...], *spec: str | None) -> Any:
        values = random.normal(size=shape).astype(np.float32)
        return jax.device_put(values, NamedSharding(mesh, P(*spec)))

    return {"w": put((16, 16), None, "model")}, put((64, 16), "data")


def shard_mapped(body: Callable[..., Any], mesh: Any, params: Any, x: Any) -> Any:
    specs = (P(), P("data"))
    return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P())(params["w"], x)


def by_hand(params: Any, x: Any, mesh: Any) -> Any:
    return shard_mapped(lambda w, x: jax.lax.pmean(jnp.mean((x @ w) ** 2), "data"), mesh, params, x)


def with_a_sum(params: Any, x: Any, mesh: Any) -> Any:
    return shard_mapped(lambda w, x: jax.lax.psum(jnp.mean((x @ w) ** 2), "data"), mesh, params, x)


def with_the_mean_of_a_maximum(params: Any, x: Any, mesh: Any) -> Any:
    return shard_mapped(lambda w, x: jax.lax.pmean(jnp.max(x @ w), "data"), mesh, params, x)


@jax.jit
def step(params: Any, x: Any) -> Any:
    loss, gradients = jax.value_and_grad(lambda p: jnp.mean(jnp.tanh(x @ p["w"]) ** 2))(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), {"loss": loss, "n": x.size}


@pytest.mark.parametrize("right", [step, by_hand])
def test_right_steps(args: Any, right: Any, connect: Callable[..., Any]) -> None:
    result = tpunb.compare(right, *args, meshes=MESHES)
    assert result.is_equal
    assert result.headline == "The results on all 3 meshes are equal, apart from rounding."
    assert [row.shape for row in result.rows] == ["1 × 1", "8 × 1", "4 × 2"]
    result.raise_if_different()


@pytest.mark.filterwarnings("ignore::tpunb.errors.TpuWarning")
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (with_a_sum, "On 8 × 1 and 4 × 2, .* result is 8 times as large"),
        (with_the_mean_of_a_maximum, "On 8 × 1 and 4 × 2, .* result is 0"),
    ],
)
def test_wrong_steps(args: Any, wrong: Any, words: str) -> None:
    result = tpunb.compare(wrong, *args, meshes=MESHES)
    assert not result.is_equal
    with pytest.raises(MeshesDifferError, match=words):
        result.raise_if_different()


def test_the_compilers_figures(args: Any, libtpu: None) -> None:
    result = tpunb.compare(step, *args, meshes=[*MESHES, (2,)])
    programs = [row.program for row in result.rows]
    assert programs[0] is not None
    assert programs[0].tpu == "v5e-1"
    assert not programs[0].collectives
    assert programs[1] is not None
    assert programs[1].collectives[0].kind == "all-reduce"
    assert programs[3] is None
    assert "No v5e has 2 cores" in result.note
    times = [program.time for program in programs if program is not None]
    assert all(time is not None and time.host_decides for time in times)
    for text in (str(result), result._repr_html_()):
        assert "all-reduce of" in text
        assert "The host takes up to 500 µs more to start a call." in text


@pytest.mark.parametrize("judge", ["wait", "later"])
def test_the_table_is_the_only_word_on_the_programs(
    connect: Callable[..., Any], libtpu: None, judge: str
) -> None:
    connection = connect("v5e-8", judge=judge)
    x = jax.device_put(np.ones((16, 16)), NamedSharding(jax.make_mesh((8,), ("data",)), P("data")))
    before = jax.jit(lambda x: x + 1)
    before(x)
    tpunb.compare(lambda x: jnp.tanh(x).sum(), x, meshes=[(1,), (8,)])
    shown = connection.judge.take_new() or connection.judge.take_waiting()
    assert len(shown) == 1


def test_arguments_stay(args: Any) -> None:
    donating = jax.jit(lambda params, x: params["w"] + x.sum(), donate_argnums=0)
    tpunb.compare(donating, *args, meshes=[(2,), (8,)])
    assert not args[0]["w"].is_deleted()


@pytest.mark.parametrize(
    ("meshes", "words"),
    [
        ([(16,)], "needs 16 devices, and JAX has 8"),
        ([(3,)], "does not divide over a mesh of 3 × 1"),
        ([], "There are no meshes"),
        ([(2, 2, 2)], "the mesh of the arguments has only"),
    ],
)
def test_meshes_that_do_not_fit(args: Any, meshes: Any, words: str) -> None:
    with pytest.raises(MeshError, match=words):
        tpunb.compare(step, *args, meshes=meshes)


def test_what_is_missing_is_said(args: Any) -> None:
    with pytest.raises(MeshError, match="No argument is sharded"):
        tpunb.compare(step, {"w": np.ones((16, 16))}, np.ones((8, 16)), meshes=MESHES)
    with pytest.raises(MeshError, match="runs a function on several meshes, which are missing"):
        tpunb.compare(step, *args)


def test_keys_and_other_dtypes(args: Any) -> None:
    def of_everything(params: Any, x: Any) -> Any:
        key = jax.random.key(0)
        half = x.astype(jnp.bfloat16)
        return key, half.sum(), (x > 0).sum(), x[:0], jnp.inf * x[0, 0]

    assert tpunb.compare(of_everything, *args, meshes=MESHES).is_equal


def _on_two(fn: Callable[..., Any], args: Any) -> Any:
    return tpunb.compare(fn, args[1], meshes=[(1,), (8,)])


@pytest.mark.parametrize(
    "right",
    [
        lambda x: jnp.mean(x - jnp.mean(x)),
        lambda x: (jnp.mean(x - jnp.mean(x)), 100 + jnp.mean(x)),
        lambda x: jnp.sum(x.astype(jnp.complex64) * (1 + 2j)),
        lambda x: x.astype(jnp.bfloat16).sum(),
        lambda x: jnp.where(x > 0, jnp.inf, -jnp.inf) * jnp.where(x > 1, jnp.nan, 1),
    ],
)
def test_rounding_makes_no_difference(args: Any, right: Any) -> None:
    assert str(_on_two(right, args).headline).endswith("are equal, apart from rounding.")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda n: jnp.where(n > 1, jnp.inf, jnp.nan), "infinities or NaNs in other places"),
        (lambda n: jnp.where(n > 1, jnp.inf, -jnp.inf), "infinities or NaNs in other places"),
        (lambda n: jnp.full(4, 6 + n // 8, jnp.int4), "is 1.167 times as large"),
        (lambda n: jnp.float32(1e-6) * n, "is 8 times as large"),
        (lambda n: n - 1.0, "is 0 on the first mesh alone"),
        (lambda n: jnp.zeros(n), r"is float32\[8\], and float32\[1\] on the first mesh"),
        (lambda n: {"a": n} if n > 1 else {"b": n}, "has other parts"),
    ],
)
def test_what_differs(args: Any, wrong: Any, words: str) -> None:
    def on_each(x: Any, mesh: Any) -> Any:
        del x
        return wrong(mesh.shape["data"])

    with pytest.raises(MeshesDifferError, match=words):
        _on_two(on_each, args).raise_if_different()


def test_a_function_with_a_mesh_of_its_own(args: Any) -> None:
    mesh = args[1].sharding.mesh
    total = jax.shard_map(
        lambda x: jax.lax.psum(x.sum(), "data"), mesh=mesh, in_specs=P("data"), out_specs=P()
    )
    placed = jax.jit(lambda x: x.sum(), in_shardings=NamedSharding(mesh, P("data")))
    for function in (total, placed):
        with pytest.raises(MeshError, match="names a mesh of its own"):
            _on_two(function, args)


@pytest.mark.parametrize("meshes", [8, (8,), [("data",)], [()], [(0,)], []])
def test_what_are_no_meshes(args: Any, meshes: Any) -> None:
    with pytest.raises(MeshError, match=r"no meshes|not the sizes"):
        tpunb.compare(step, *args, meshes=meshes)
