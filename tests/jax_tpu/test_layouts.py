"""The layouts of a call that a search tries, and the code that places its arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from counterparts.children import run_code
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from tpunb.compiler.program import CompileError
from tpunb.jax.compiler.search.code import code_of
from tpunb.jax.compiler.search.layouts import Layout, layout_of, layouts, own_layout

E, F, V, L, HEADS = 256, 512, 512, 2, 8


def weights(random: np.random.Generator) -> dict[str, Any]:
    def made(*shape: int) -> Any:
        return (random.normal(size=shape) / np.sqrt(shape[-2])).astype(np.float32)

    layers = {
        **{name: made(L, E, E) for name in ("q", "k", "v", "o")},
        "up": made(L, E, F),
        "bias": made(L, F, 1)[..., 0],
        "down": made(L, F, E),
    }
    return {"emb": made(V, E), "layers": layers, "out": made(E, V)}


def logits(p: Any, tokens: Any) -> Any:
    def layer(h: Any, w: Any) -> tuple[Any, None]:
        batch, length, _ = h.shape
        q, k, v = ((h @ w[n]).reshape(batch, length, HEADS, -1) for n in ("q", "k", "v"))
        scores = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k), -1)
        h = h + jnp.einsum("bhts,bshd->bthd", scores, v).reshape(h.shape) @ w["o"]
        return h + jax.nn.gelu(h @ w["up"] + w["bias"]) @ w["down"], None

    h, _ = jax.lax.scan(layer, p["emb"][tokens], p["layers"])
    return h @ p["out"]


def step(p: Any, momentum: Any, tokens: Any, targets: Any) -> tuple[Any, Any, Any]:
    def loss(p: Any) -> Any:
        found = jax.nn.log_softmax(logits(p, tokens))
        return -jnp.take_along_axis(found, targets[..., None], -1).mean()

    value, gradient = jax.value_and_grad(loss)(p)
    momentum = jax.tree.map(lambda old, new: 0.9 * old + new, momentum, gradient)
    return jax.tree.map(lambda w, m: w - 0.1 * m, p, momentum), momentum, value


@pytest.fixture
def args() -> tuple[Any, ...]:
    random = np.random.default_rng(0)
    tokens = random.integers(0, V, (2, 8, 16)).astype(np.int32)
    return weights(random), jax.tree.map(np.zeros_like, weights(random)), *tokens


def axes_by_path(layout: Layout, args: Any) -> dict[str, Any]:
    paths = jax.tree_util.tree_leaves_with_path(tuple(args))
    return dict(zip((jax.tree_util.keystr(path) for path, _ in paths), layout.axes, strict=True))


def test_columns_and_rows_of_a_transformer_are_found(args: Any) -> None:
    found = {layout.name: layout for layout in layouts(step, args, 8, most_axes=1)}
    wide = next(layout for name, layout in found.items() if "emb, layers/bias, layers/down" in name)
    axes = axes_by_path(wide, args)
    assert axes["[0]['layers']['up']"] == (None, None, "model")
    assert axes["[0]['layers']['bias']"] == (None, "model")
    assert axes["[0]['layers']['down']"] == (None, "model")
    assert axes["[0]['layers']['q']"] == axes["[0]['layers']['v']"] == (None, None, "model")
    assert axes["[0]['layers']['o']"] == (None, "model")
    assert axes["[1]['layers']['o']"] == axes["[0]['layers']['o']"], "the optimizer's state"
    assert {"data parallel", "fully sharded"} <= set(found)
    data = axes_by_path(found["data parallel"], args)
    assert data["[2]"] == data["[3]"] == ("data",)
    assert not any(axes for path, axes in data.items() if path[:3] in {"[0]", "[1]"})


def test_layouts_are_not_equal_and_divide_the_arrays(args: Any) -> None:
    found = list(layouts(step, args, 8))
    assert len(found) == len({(layout.mesh, layout.axes) for layout in found}) >= 10
    assert {layout.mesh for layout in found} >= {
        (("data", 8),),
        (("data", 4), ("model", 2)),
        (("data", 2), ("fsdp", 2), ("model", 2)),
    }
    for layout in found:
        for leaf in jax.tree.leaves(layout.applied(args)):
            leaf.sharding.shard_shape(leaf.shape)  # raises an error if it does not divide


def test_bytes_of_a_core(args: Any) -> None:
    whole = sum(leaf.nbytes for leaf in jax.tree.leaves(args))
    by_name = {layout.name: layout for layout in layouts(step, args, 8, most_axes=1)}
    batch = args[2].nbytes + args[3].nbytes
    assert by_name["data parallel"].bytes_per_core(args) == whole - batch + batch // 8
    assert by_name["fully sharded"].bytes_per_core(args) < whole // 4


def test_each_layout_computes_the_same(args: Any, connect: Callable[..., Any]) -> None:
    expected = jax.jit(step)(*args)
    connect("v5e-8")
    names = ["p", "momentum", "tokens", "targets"]
    for layout in layouts(step, args, 8):
        placed = dict(zip(names, args, strict=True))
        exec(code_of(layout, args, names), placed)
        arrays = [placed[name] for name in names]
        assert own_layout(arrays) == Layout("your own", layout.mesh, layout.axes)
        for got, wanted in zip(
            jax.tree.leaves(jax.jit(step)(*arrays)), jax.tree.leaves(expected), strict=True
        ):
            np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4)


def test_experts_of_a_mixture_are_sharded() -> None:
    def mixture(w: Any, x: Any) -> Any:
        h = jax.nn.relu(jnp.einsum("bd,edf->bef", x, w["up"]))
        return jnp.einsum("bef,efd->bd", h, w["down"])

    shape = jax.ShapeDtypeStruct
    w = {"up": shape((8, 64, 128), "float32"), "down": shape((8, 128, 64), "float32")}
    args = (w, shape((32, 64), "float32"))
    found = [axes_by_path(layout, args) for layout in layouts(mixture, args, 8, most_axes=1)]
    experts = {"[0]['up']": ("model",), "[0]['down']": ("model",)}
    assert any(experts.items() <= axes.items() for axes in found)


def test_a_recurrent_weight_has_one_sharded_dimension() -> None:
    def recurrent(w: Any, x: Any) -> Any:
        def cell(h: Any, now: Any) -> tuple[Any, None]:
            return jnp.tanh(h @ w["h"] + now @ w["x"]), None

        return jax.lax.scan(cell, jnp.zeros((x.shape[0], 256)), x.swapaxes(0, 1))[0]

    shape = jax.ShapeDtypeStruct
    w = {"h": shape((256, 256), "float32"), "x": shape((32, 256), "float32")}
    args = (w, shape((16, 10, 32), "float32"))
    found = [axes_by_path(layout, args) for layout in layouts(recurrent, args, 4)]
    assert all(axes["[0]['h']"].count("model") <= 1 for axes in found)
    assert any(axes["[0]['x']"] == (None, "model") for axes in found)


def test_an_argument_that_is_no_array_is_refused(args: Any) -> None:
    with pytest.raises(CompileError, match="partial"):
        list(layouts(jax.jit(lambda name, x: x, static_argnums=0), ("a", np.zeros((8, 8))), 8))


def test_specs_of_a_user(args: Any) -> None:
    given = layout_of(args, {"data": 8}, [P(), P(), P("data"), P("data")])
    assert axes_by_path(given, args)["[2]"] == ("data",)
    layers = {name: P(None, None, "data") for name in args[0]["layers"]}
    tree = {**dict.fromkeys(args[0], P()), "layers": layers}
    given = layout_of(args, {"data": 8}, [tree, tree, P("data"), P("data")])
    assert axes_by_path(given, args)["[1]['layers']['up']"] == (None, None, "data")


def test_arrays_without_a_mesh_have_no_layout() -> None:
    assert own_layout([jnp.zeros(3), np.zeros(3)]) is None


LAYOUT_MAP = """
from tpunb.jax.compiler.search.code import keras_code_of
from tpunb.jax.compiler.search.layouts import Layout

axes = ((None, "model"), ("model",), ("model",), (), (None, "model"))
paths = ["m/a/kernel", "m/a/bias", "m/a_1/kernel", "m/b/bias", "m/xa/kernel"]
code = keras_code_of(Layout("", (("data", 1), ("model", 1)), axes), paths, axes)
made = {}
exec(code, made)
layouts = [made["layout_map"][path] for path in paths]
print([layout and layout.axes for layout in layouts] == [own or None for own in axes])
print(made["keras"].distribution.distribution().batch_dim_name)
"""


def test_code_of_a_layout_map() -> None:
    assert run_code(LAYOUT_MAP, KERAS_BACKEND="jax").stdout.split() == ["True", "data"]


def test_the_mesh_of_a_layout_has_axes_that_xla_chooses_for(args: Any) -> None:
    layout = next(iter(layouts(step, args, 8)))
    assert layout.abstract_mesh().axis_types == (AxisType.Auto,)
