"""Meshes that only a JAX function has, and the ways in which a JAX function fits."""

from __future__ import annotations

from typing import Any

import pytest
from support.jax_process import said_with_jax

pytestmark = [pytest.mark.usefixtures("libtpu"), pytest.mark.slow]

PROGRAM = """
import functools
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import topologies
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec as P
import tpunb
from tpunb.compiler.read.hlo import parse
from tpunb.jax.compiler.batches import is_batch
from tpunb.compiler.read.memory import lives_in

S = jax.ShapeDtypeStruct
said = {}


def absent(size):
    return AbstractMesh((size,), ("d",), axis_types=(AxisType.Auto,))


devices = np.array(topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4").devices)
present = Mesh(devices, ("d",))
x = S((64, 128), jnp.float32)


def mapped(mesh):
    return jax.jit(jax.shard_map(
        lambda x: jax.lax.psum(x.sum(0), "d"), mesh=mesh, in_specs=P("d"), out_specs=P()
    ))


def constrained(mesh):
    rows = NamedSharding(mesh, P("d"))
    return jax.jit(lambda: jax.lax.with_sharding_constraint(jnp.zeros((8192, 8192)), rows))


def sharded_result(mesh):
    return jax.jit(lambda: jnp.zeros((8192, 8192)), out_shardings=NamedSharding(mesh, P("d")))


said["meshes"] = [
    [
        tpunb.compile(make(absent(8)), *args, tpu="v5e-8").memory.peak,
        make(present).lower(*args).compile().memory_analysis().peak_memory_in_bytes,
    ]
    for make, args in ((mapped, [x]), (constrained, []), (sharded_result, []))
]
found = tpunb.largest_batch(mapped(absent(8)), S((None, 65536), jnp.float32), tpu="v5e-8")
said["largest"] = [found.batch, found.per_replica]


def several(x):
    return jax.lax.with_sharding_constraint(mapped(absent(8))(x), NamedSharding(absent(2), P("d")))


try:
    tpunb.compile(several, x, tpu="v5e-8")
except tpunb.TpunbError as error:
    said["several"] = str(error)


def stacked(c, xs):
    return jax.lax.scan(lambda c, x: (c * 1.01, jnp.sin(c) * x), c, xs)


def branches(p, x):
    return jax.lax.cond(p[0] > 0, lambda x: jnp.sin(x) @ x, lambda x: jnp.sort(x) + x.T, x)


def nested(x):
    def inner(x, _):
        return jax.lax.scan(lambda x, _: (jnp.sin(x) @ x, x), x, None, length=3)
    return jax.lax.scan(inner, x, None, length=4)


def exchanged(x, y):
    return jax.lax.scan(lambda c, _: ((c[1], jnp.sin(c[0])), c[0].sum()), (x, y), None, length=4)


def learned(w, x):
    def layer(x, w):
        return jnp.tanh(x @ w) @ w.T, None
    return jax.grad(lambda w: jax.lax.scan(layer, x, w)[0].sum())(w)


square = S((2048, 2048), jnp.float32)
weights = S((8, 2048, 2048), jnp.float32)
shares = {}
for fn, args in (
    (stacked, (S((1024, 1024, 64), jnp.float32), S((8,), jnp.float32))),
    (branches, (S((2,), jnp.float32), square)),
    (nested, (square,)),
    (exchanged, (square, square)),
    (learned, (weights, square)),
):
    program = tpunb.compile(fn, *args, tpu="v5e-1")
    alive = sum(buffer.size for buffer in lives_in(parse(program.text)).at_peak)
    lines = sum(share.memory for share in program.memory.by_line)
    shares[fn.__name__] = [alive / program.memory.peak, lines / program.memory.peak]
said["alive"] = shares


def params():
    return {"a": S((32, 64), jnp.float32), "b": S((64, 10), jnp.float32)}


def predict(params, x):
    return jnp.tanh(x @ params["a"]) @ params["b"]


def loss(params, x, y):
    return ((predict(params, x) - y) ** 2).mean()


def train(params, key, x, y):
    gradients = jax.grad(loss)(params, x, y)
    return jax.tree.map(jnp.subtract, params, gradients), loss(params, x, y)


def layers(x, w):
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0]


def over_time(h, xs):
    return jax.lax.scan(lambda h, x: (jnp.tanh(h + x), h), h, xs)[1]


def update(params, gradients):
    return jax.tree.map(jnp.subtract, params, gradients)


def decode(params, cache, token):
    hidden = params[token]
    return hidden @ params.T, cache.at[:, 0].set(hidden)


def array(*shape, of=jnp.float32):
    return S(shape, of)


images, labels, stack = array(128, 32), array(128, 10), array(8, 64, 64)
said["batches"] = {
    "predict": is_batch(predict, (params(), images)),
    "train": is_batch(train, (params(), array(2, of=jnp.uint32), images, labels)),
    "donated": is_batch(
        jax.jit(train, donate_argnums=0), (params(), array(2, of=jnp.uint32), images, labels)
    ),
    "decode": is_batch(decode, (array(1000, 64), array(16, 32, 64), array(16, of=jnp.int32))),
    "gradients of w": is_batch(
        jax.grad(lambda w, x: layers(x, w).sum()), (stack, array(16, 64))
    ),
}
said["no batches"] = {
    "layers": is_batch(layers, (array(1, 64), stack)),
    "trained layers": is_batch(
        jax.grad(lambda x, w: layers(x, w).sum(), argnums=1), (array(8, 64), stack)
    ),
    "table": is_batch(lambda token, table: table[token], (array(16, of=jnp.int32), array(99, 64))),
    "update": is_batch(update, (params(), params())),
    "stacked update": is_batch(update, (stack, stack)),
    "time": is_batch(over_time, (array(64), array(100, 64))),
    "one array": is_batch(jnp.sin, (stack,)),
}


def halve(w):
    return w * 0.5


def weighted(rate, w, g):
    return w - rate * g, g.sum()


heavy = S((2304, 1024, 1024), jnp.float32)
half = S((1400, 1024, 1024), jnp.float32)
said["donation"] = [
    tpunb.compile(fn, *args, tpu="v5e-1").errors[0].fix
    for fn, args in (
        (halve, [heavy]),
        (jax.jit(halve), [heavy]),
        (weighted, [S((), jnp.float32), half, half]),
        (functools.partial(weighted, np.float32(0.1)), [half, half]),
    )
]

wide = S((400, 1024, 1024), jnp.float32)
said["donation advised"] = [
    [tpunb.compile(fn, *args, tpu="v5e-1").notes, fn is weighted]
    for fn, args in (
        (weighted, [np.float32(0.1), wide, wide]),
        (jax.jit(weighted, donate_argnums=1), [np.float32(0.1), wide, wide]),
        (weighted, [np.float32(0.1), S((1024, 1024), jnp.float32), S((1024, 1024), jnp.float32)]),
        (lambda w: w.sum(), [wide]),
    )
]


sharded = NamedSharding(absent(8), P("d"))
large = S((8 * 65536, 45056), jnp.bfloat16, sharding=sharded)
program = tpunb.compile(lambda x: (jnp.sort(x), jnp.sort(-x)), large, tpu="v6e-8")
said["refused on 8 cores"] = [
    program.ok,
    [[list(one.shape), one.operation] for one in program.memory.largest[:3]],
    sum(share.memory for share in program.memory.by_line) / program.memory.peak,
    [note for note in program.notes if "v5p" in note],
]


def refuses(w, x):
    if x.shape[0] != 4608:
        raise ValueError("Only 4608 rows.")
    return x * w


rows = S((4608, 1024, 1024), jnp.float32)
program = tpunb.compile(refuses, S((1024,), jnp.float32), rows, tpu="v5e-1")
said["refused"] = list(program.notes)
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the program in a process with JAX, and return its results."""
    return said_with_jax(PROGRAM, tmp_path_factory.mktemp("jax"))


def test_a_mesh_in_the_function_alone_is_compiled_as_by_jax(said: dict[str, Any]) -> None:
    for ours, theirs in said["meshes"]:
        assert ours == theirs
    batch, per_replica = said["largest"]
    assert batch == 8 * per_replica > 0


def test_meshes_of_different_sizes_are_refused(said: dict[str, Any]) -> None:
    assert "meshes of 2 and 8 devices" in said["several"]


def test_each_allocation_is_counted_once(said: dict[str, Any]) -> None:
    for alive, lines in said["alive"].values():
        assert 0.3 < alive <= 1
        assert lines <= 1
    assert said["alive"]["stacked"][0] > 0.99
    assert said["alive"]["learned"][0] > 0.99


def test_only_a_known_batch_is_made_smaller(said: dict[str, Any]) -> None:
    assert said["batches"] == dict.fromkeys(said["batches"], True)
    assert said["no batches"] == dict.fromkeys(said["no batches"], False)


def test_donation_is_compiled_and_proposed(said: dict[str, Any]) -> None:
    plain, jitted, with_rate, partial = said["donation"]
    sentence = "The same call fits if `w` is donated (and so overwritten), jax.jit({}): "
    assert plain.startswith(sentence.format("halve, donate_argnums=0") + "9 GiB a core.")
    assert jitted.startswith(sentence.format("halve, donate_argnums=0") + "9 GiB a core.")
    assert with_rate.startswith(sentence.format("weighted, donate_argnums=1"))
    assert partial.startswith(sentence.format("weighted, donate_argnums=0"))
    assert "A batch of" not in plain


def test_donation_is_advised_where_it_frees_much(said: dict[str, Any]) -> None:
    """The step has 1.5625 GiB of parameters, and its result has as much."""
    (notes, _), *others = said["donation advised"]
    (note,) = notes
    assert note.startswith("It takes 1.56")
    assert note.endswith("jax.jit(weighted, donate_argnums=1).")
    assert [each for each, _ in others] == [[], [], []]


def test_a_refused_program_lists_its_own_tensors(said: dict[str, Any]) -> None:
    fits, largest, lines, elsewhere = said["refused on 8 cores"]
    assert not fits
    assert [65536, 45056] in [shape for shape, _ in largest]
    assert "sort" in [operation for _, operation in largest]
    assert 0 < lines <= 1
    assert elsewhere == []


def test_what_cannot_be_tried_is_said(said: dict[str, Any]) -> None:
    note = "Not tried: a smaller batch, which raises ValueError: Only 4608 rows."
    assert note in said["refused"]
