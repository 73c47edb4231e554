"""Thirty ordinary right programs, about which the checks of steps say nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from tpunb.jax.checks.call import Call
from tpunb.jax.checks.table import findings

MESH = AbstractMesh((8,), ("data",), axis_types=(AxisType.Auto,))
GRID = AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
KEY = jax.random.key(0)
ROWS, WHOLE = P("data"), P()

_Program = tuple[Callable[..., Any], tuple[Any, ...]]
PROGRAMS: dict[str, _Program] = {}


def program(*args: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Note a program with its arguments; tuples are the shapes of float32 arrays."""

    def noted(fn: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[fn.__name__] = fn, args
        return fn

    return noted


def over(*specs: Any, out: Any = WHOLE, mesh: Any = MESH, check_vma: bool = True) -> Any:
    return partial(jax.shard_map, mesh=mesh, in_specs=specs, out_specs=out, check_vma=check_vma)


def varying(value: Any, axis: str) -> Any:
    """Mark a value as one that devices may change."""
    cast = getattr(lax, "pcast", None)
    return cast(value, axis, to="varying") if cast else lax.pvary(value, axis)


def mlp(params: Any, x: Any) -> Any:
    return jax.nn.relu(x @ params["w"] + params["b"]) @ params["v"]


def squared(params: Any, x: Any, y: Any) -> Any:
    return jnp.mean((mlp(params, x) - y) ** 2)


def cross_entropy(params: Any, x: Any, labels: Any) -> Any:
    chances = jax.nn.log_softmax(mlp(params, x))
    return -jnp.take_along_axis(chances, labels[:, None], axis=1).mean()


def descended(params: Any, gradient: Any, rate: float = 0.1) -> Any:
    return jax.tree.map(lambda p, g: p - rate * g, params, gradient)


def shaped(*shape: int, dtype: str = "float32") -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


PARAMS = {"w": shaped(64, 128), "b": shaped(128), "v": shaped(128, 16)}
X, Y, LABELS = shaped(256, 64), shaped(256, 16), shaped(256, dtype="int32")
TOKENS = shaped(64, 32, dtype="int32")


@program(PARAMS, X, Y)
def jit_step(params: Any, x: Any, y: Any) -> Any:
    loss, gradient = jax.value_and_grad(squared)(params, x, y)
    return descended(params, gradient), loss


@program(PARAMS, X, LABELS)
@over(WHOLE, ROWS, ROWS, out=(WHOLE, WHOLE))
def data_parallel(params: Any, x: Any, labels: Any) -> Any:
    loss, gradient = jax.value_and_grad(lambda p: lax.pmean(cross_entropy(p, x, labels), "data"))(
        params
    )
    return descended(params, gradient), loss


@program(PARAMS, X, LABELS)
@over(WHOLE, ROWS, ROWS, out=(WHOLE, WHOLE), check_vma=False)
def data_parallel_unchecked(params: Any, x: Any, labels: Any) -> Any:
    loss, gradient = jax.value_and_grad(cross_entropy)(params, x, labels)
    return descended(params, lax.pmean(gradient, "data")), lax.pmean(loss, "data")


@program(PARAMS, X, Y)
@over(WHOLE, ROWS, ROWS, out=(WHOLE, WHOLE))
def own_copies_of_parameters(params: Any, x: Any, y: Any) -> Any:
    own = jax.tree.map(lambda p: varying(p, "data"), params)
    loss, gradient = jax.value_and_grad(squared)(own, x, y)
    return descended(params, lax.pmean(gradient, "data")), lax.pmean(loss, "data")


@program(PARAMS, X, Y)
@over(WHOLE, ROWS, ROWS)
def implicit_sum(params: Any, x: Any, y: Any) -> Any:
    gradient = jax.grad(squared)(params, x, y)
    return descended(params, gradient, 0.1 / 8)


@program(PARAMS, {"m": PARAMS, "v": PARAMS}, (), X, Y)
@over(WHOLE, WHOLE, WHOLE, ROWS, ROWS, out=(WHOLE, WHOLE, WHOLE))
def adam(params: Any, state: Any, count: Any, x: Any, y: Any) -> Any:
    gradient = jax.grad(lambda p: lax.pmean(squared(p, x, y), "data"))(params)
    count = count + 1
    m = jax.tree.map(lambda a, g: 0.9 * a + 0.1 * g, state["m"], gradient)
    v = jax.tree.map(lambda a, g: 0.999 * a + 0.001 * g**2, state["v"], gradient)
    return (
        jax.tree.map(
            lambda p, a, b: (
                p - 0.001 * (a / (1 - 0.9**count)) / (jnp.sqrt(b / (1 - 0.999**count)) + 1e-8)
            ),
            params,
            m,
            v,
        ),
        {"m": m, "v": v},
        count,
    )


@program(PARAMS, X, Y)
@over(WHOLE, ROWS, ROWS)
def clipped(params: Any, x: Any, y: Any) -> Any:
    gradient = jax.grad(lambda p: lax.pmean(squared(p, x, y), "data"))(params)
    norm = jnp.sqrt(sum((g**2).sum() for g in jax.tree.leaves(gradient)))
    return descended(params, jax.tree.map(lambda g: g / jnp.maximum(1, norm), gradient))


@program(PARAMS, X, Y)
@over(WHOLE, ROWS, ROWS)
def accumulated(params: Any, x: Any, y: Any) -> Any:
    def add(total: Any, part: Any) -> Any:
        gradient = jax.grad(lambda p: lax.pmean(squared(p, *part), "data"))(params)
        return jax.tree.map(jnp.add, total, gradient), None

    parts = x.reshape(4, -1, 64), y.reshape(4, -1, 16)
    total, _ = lax.scan(add, jax.tree.map(jnp.zeros_like, params), parts)
    return descended(params, jax.tree.map(lambda g: g / 4, total))


@program(PARAMS, X, Y)
@over(P("data"), ROWS, ROWS, out=P("data"))
def fsdp(params: Any, x: Any, y: Any) -> Any:
    def loss(params: Any) -> Any:
        whole = jax.tree.map(lambda p: lax.all_gather(p, "data", tiled=True), params)
        return lax.pmean(squared(whole, x, y), "data")

    return descended(params, jax.grad(loss)(params))


@program(shaped(64, 128), shaped(128, 16), X, Y)
@over(
    P(None, "model"), P("model"), ROWS, ROWS, out=(P(None, "model"), P("model"), WHOLE), mesh=GRID
)
def tensor_parallel(w: Any, v: Any, x: Any, y: Any) -> Any:
    def loss(w: Any, v: Any) -> Any:
        out = lax.psum(jax.nn.relu(x @ w) @ v, "model")
        return lax.pmean(jnp.mean((out - y) ** 2), "data")

    value, (dw, dv) = jax.value_and_grad(loss, argnums=(0, 1))(w, v)
    return w - 0.1 * dw, v - 0.1 * dv, value


@program(shaped(8, 256, 64), shaped(8, 256, 64), shaped(8, 256, 64))
@over(P(None, "data"), P(None, "data"), P(None, "data"), out=P(None, "data"))
def ring_attention(q: Any, k: Any, v: Any) -> Any:
    shift = [(i, (i + 1) % 8) for i in range(8)]

    def turn(carry: Any, _: Any) -> Any:
        out, total, top, k, v = carry
        scores = jnp.einsum("bqd,bkd->bqk", q, k) / 8
        new = jnp.maximum(top, scores.max(-1))
        weights = jnp.exp(scores - new[..., None])
        old = jnp.exp(top - new)
        out = out * old[..., None] + jnp.einsum("bqk,bkd->bqd", weights, v)
        total = total * old + weights.sum(-1)
        k, v = (lax.ppermute(each, "data", shift) for each in (k, v))
        return (out, total, new, k, v), None

    zeros = jnp.zeros_like(q[..., 0])
    (out, total, *_), _ = lax.scan(turn, (jnp.zeros_like(q), zeros, zeros - 1e30, k, v), length=8)
    return out / total[..., None]


@program(shaped(8, 64, 64), shaped(64, 8), X)
@over(P("data"), WHOLE, ROWS, out=ROWS)
def experts(weights: Any, router: Any, x: Any) -> Any:
    chosen = jax.nn.softmax(x @ router)
    sent = jnp.einsum("td,te->etd", x, chosen)
    here = lax.all_to_all(sent, "data", 0, 0, tiled=True)
    done = jax.nn.relu(here @ weights[0])
    return lax.all_to_all(done, "data", 0, 0, tiled=True).sum(0)


@program(shaped(64, 8), X)
@over(WHOLE, ROWS)
def balance_of_experts(router: Any, x: Any) -> Any:
    chances = jax.nn.softmax(x @ router)
    part = lax.pmean(jax.nn.one_hot(chances.argmax(-1), 8).mean(0), "data")
    return 8 * (part * lax.pmean(chances.mean(0), "data")).sum()


@program({"w": shaped(6, 64, 64), "b": shaped(6, 64)}, X)
@over(WHOLE, ROWS)
def scanned_layers(layers: Any, x: Any) -> Any:
    def loss(layers: Any) -> Any:
        body = jax.checkpoint(lambda h, p: (jax.nn.relu(h @ p["w"] + p["b"]), None))
        return lax.pmean((lax.scan(body, x, layers)[0] ** 2).mean(), "data")

    return descended(layers, jax.grad(loss)(layers))


@program(KEY, PARAMS, X, Y)
@over(WHOLE, WHOLE, ROWS, ROWS)
def dropout(key: Any, params: Any, x: Any, y: Any) -> Any:
    key = jax.random.fold_in(key, lax.axis_index("data"))

    def loss(params: Any) -> Any:
        kept = jax.random.bernoulli(key, 0.9, x.shape)
        return lax.pmean(squared(params, jnp.where(kept, x / 0.9, 0), y), "data")

    return descended(params, jax.grad(loss)(params))


@program(KEY, PARAMS, X, Y)
def dropout_of_whole_arrays(key: Any, params: Any, x: Any, y: Any) -> Any:
    kept = jax.random.bernoulli(key, 0.9, x.shape)
    return jax.grad(squared)(params, jnp.where(kept, x / 0.9, 0), y)


@program(KEY, {"w": shaped(64, 64)})
@over(WHOLE, WHOLE)
def noise_of_weights(key: Any, params: Any) -> Any:
    return jax.tree.map(lambda p: p + 0.01 * jax.random.normal(key, p.shape), params)


@program(PARAMS, X, LABELS)
@over(WHOLE, ROWS, ROWS)
def evaluation(params: Any, x: Any, labels: Any) -> Any:
    right = (mlp(params, x).argmax(-1) == labels).sum()
    return lax.psum(right, "data") / (lax.psum(1, "data") * labels.shape[0])


@program(PARAMS, X, Y, shaped(256))
@over(WHOLE, ROWS, ROWS, ROWS)
def masked_loss(params: Any, x: Any, y: Any, mask: Any) -> Any:
    errors = ((mlp(params, x) - y) ** 2).mean(-1) * mask
    return lax.psum(errors.sum(), "data") / lax.psum(mask.sum(), "data")


@program(X, shaped(64), shaped(64))
@over(ROWS, WHOLE, WHOLE, out=ROWS)
def batch_norm(x: Any, scale: Any, offset: Any) -> Any:
    mean = lax.pmean(x.mean(0), "data")
    variance = lax.pmean((x**2).mean(0), "data") - mean**2
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + offset


@program(X, shaped(64))
@over(ROWS, WHOLE, out=ROWS)
def layer_norm(x: Any, scale: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale


@program(shaped(512, 64), TOKENS)
@over(P("data"), WHOLE)
def cut_vocabulary(table: Any, tokens: Any) -> Any:
    own = tokens - lax.axis_index("data") * table.shape[0]
    is_here = (own >= 0) & (own < table.shape[0])
    found = jnp.where(is_here[..., None], table[jnp.clip(own, 0, table.shape[0] - 1)], 0)
    return lax.psum(found, "data")


@program(shaped(64, 512), X, LABELS)
@over(P(None, "data"), WHOLE, WHOLE)
def loss_of_a_cut_vocabulary(w: Any, x: Any, labels: Any) -> Any:
    logits = x @ w
    top = lax.pmax(lax.stop_gradient(logits.max(-1)), "data")
    total = lax.psum(jnp.exp(logits - top[:, None]).sum(-1), "data")
    own = labels - lax.axis_index("data") * w.shape[1]
    is_here = (own >= 0) & (own < w.shape[1])
    picked = jnp.take_along_axis(logits, jnp.clip(own, 0, w.shape[1] - 1)[:, None], 1)[:, 0]
    right = lax.psum(jnp.where(is_here, picked, 0), "data")
    return (jnp.log(total) + top - right).mean()


@program(shaped(8, 64, 64), shaped(16, 8, 64))
@over(P("data"), WHOLE)
def pipeline(stages: Any, parts: Any) -> Any:
    number, shift = lax.axis_index("data"), [(i, (i + 1) % 8) for i in range(8)]

    def tick(carry: Any, step: Any) -> Any:
        state, out = carry
        state = jnp.where(number == 0, parts[jnp.minimum(step, 15)], state)
        state = jax.nn.relu(state @ stages[0])
        out = jnp.where((number == 7) & (step >= 7), out.at[step - 7].set(state), out)
        return (lax.ppermute(state, "data", shift), out), None

    start = jax.tree.map(lambda a: varying(a, "data"), (parts[0], jnp.zeros_like(parts)))
    (_, out), _ = lax.scan(tick, start, jnp.arange(23))
    return lax.psum(jnp.where(number == 7, out, 0), "data")


@program(shaped(4, 32, 128, 16), shaped(4, 32, 128, 16), shaped(4, 32, 16), ())
def decoding(keys: Any, values: Any, q: Any, place: Any) -> Any:
    at = place.astype(int)
    keys = lax.dynamic_update_slice(keys, q[:, :, None], (0, 0, at, 0))
    weights = jax.nn.softmax(jnp.einsum("bhd,bhkd->bhk", q, keys))
    return jnp.einsum("bhk,bhkd->bhd", weights, values), keys


@program(PARAMS, X, Y, ())
def printing_now_and_then(params: Any, x: Any, y: Any, step: Any) -> Any:
    loss, gradient = jax.value_and_grad(squared)(params, x, y)
    lax.cond(step % 100 == 0, lambda: jax.debug.print("{}", loss), lambda: None)
    return descended(params, gradient)


@program(PARAMS, X, Y)
@over(WHOLE, ROWS, ROWS)
def local_steps(params: Any, x: Any, y: Any) -> Any:
    """Take some steps on each device, and average the parameters."""
    own = jax.tree.map(lambda p: varying(p, "data"), params)
    step = lambda _, p: descended(p, jax.grad(squared)(p, x, y))  # noqa: E731
    return lax.pmean(lax.fori_loop(0, 5, step, own), "data")


@program(shaped(64), X)
@over(WHOLE, ROWS)
def power_iteration(v: Any, x: Any) -> Any:
    def turn(v: Any) -> Any:
        v = lax.psum(x.T @ (x @ v), "data")
        return v / jnp.linalg.norm(v)

    return lax.while_loop(lambda v: v[0] < 0.5, turn, v)


@program(X, shaped(10, 64))
@over(ROWS, WHOLE)
def k_means(x: Any, centres: Any) -> Any:
    nearest = jax.nn.one_hot(((x[:, None] - centres) ** 2).sum(-1).argmin(1), 10)
    total, count = lax.psum((nearest.T @ x, nearest.sum(0)), "data")
    return total / jnp.maximum(count, 1)[:, None]


@program(X)
@over(ROWS, out=ROWS)
def halo(x: Any) -> Any:
    left = lax.ppermute(x[-1:], "data", [(i, i + 1) for i in range(7)])
    right = lax.ppermute(x[:1], "data", [(i + 1, i) for i in range(7)])
    padded = jnp.concatenate([left, x, right])
    return (padded[:-2] + padded[1:-1] + padded[2:]) / 3


@program(PARAMS, X, Y)
@over(WHOLE, P(("data", "model")), P(("data", "model")), mesh=GRID)
def data_over_two_axes(params: Any, x: Any, y: Any) -> Any:
    axes = ("data", "model")
    return descended(params, jax.grad(lambda p: lax.pmean(squared(p, x, y), axes))(params))


@program(PARAMS, X, Y)
@over(WHOLE, ROWS, ROWS)
def differential_privacy(params: Any, x: Any, y: Any) -> Any:
    """Clip the gradient of each example, and add them up."""

    def of_one(x: Any, y: Any) -> Any:
        own = jax.tree.map(lambda p: varying(p, "data"), params)
        gradient = jax.grad(squared)(own, x[None], y[None])
        norm = jnp.sqrt(sum((g**2).sum() for g in jax.tree.leaves(gradient)))
        return jax.tree.map(lambda g: g / jnp.maximum(1, norm), gradient)

    total = jax.tree.map(lambda g: g.sum(0), jax.vmap(of_one)(x, y))
    return descended(params, lax.psum(total, "data"), 0.1 / 256)


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_said_of_a_right_program(name: str) -> None:
    fn, args = PROGRAMS[name]
    arrays = [shaped(*each) if isinstance(each, tuple) else each for each in args]
    traced = jax.jit(fn).trace(*arrays)
    assert findings(Call(name, traced.jaxpr, 8)) == []


def test_there_are_thirty() -> None:
    assert len(PROGRAMS) >= 30
