"""JAX's functions, compiled for absent TPUs in a process with JAX and without TensorFlow."""

from __future__ import annotations

from typing import Any

import pytest
from support.jax_process import said_with_jax

pytestmark = [pytest.mark.usefixtures("libtpu"), pytest.mark.slow]

PROGRAM = """
import dataclasses, functools
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import pallas as pl, topologies
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec as P
import tpunb
from tpunb.jax.compiler import chip as jax_chip

S = jax.ShapeDtypeStruct
said = {}


def absent(sizes, axes):
    return AbstractMesh(sizes, axes, axis_types=(AxisType.Auto,) * len(axes))


def step(params, x, unused):
    def loss(params):
        with jax.named_scope("encoder"):
            hidden = jnp.tanh(x @ params["first"])  # line: product
        def body(carry, _):
            return jnp.sin(carry) @ params["second"], None
        return jax.lax.scan(body, hidden, None, length=5)[0].mean()
    value, gradients = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda a, b: a - b, params, gradients), value


def arguments(mesh):
    def spec(shape, *axes):
        return S(shape, jnp.float32, sharding=NamedSharding(mesh, P(*axes)))
    params = {"first": spec((256, 512), None, "model"), "second": spec((512, 512), "model", None)}
    return params, spec((1024, 256), "data"), spec((3,))


jitted = jax.jit(step, donate_argnums=0)
program = tpunb.compile(
    jitted, *arguments(absent((4, 2), ("data", "model"))), tpu="v5e-8", speed=True
)
devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4").devices
own = jitted.lower(*arguments(Mesh(np.array(devices).reshape(4, 2), ("data", "model"))))
own = own.compile().memory_analysis()
memory = program.memory
said["same"] = [
    [memory.peak, memory.arguments, memory.outputs],
    [
        own.peak_memory_in_bytes,
        own.argument_size_in_bytes,
        own.output_size_in_bytes - own.alias_size_in_bytes,
    ],
]
said["layers"] = [share.name for share in program.time.by_layer]
said["lines"] = [share.name for share in program.time.by_line]
said["names"] = sorted(one.node for one in memory.largest if one.kind in {"variable", "argument"})
said["marks"] = "~~" in str(program.as_dict()) + program.as_text()


def big(x):
    return (jnp.sin(x) @ x).sum()


program = tpunb.compile(big, S((65536, 65536), jnp.float32), tpu="v5e-1")
said["too large"] = [program.ok, program.errors[0].code, program.errors[0].line is not None]


data = NamedSharding(absent((8,), ("data",)), P("data"))
held = S((1 << 22, 8192), jnp.float32, sharding=data)
scales = S((8192,), jnp.float32)
program = tpunb.compile(lambda w, x: jnp.sin(w * x), scales, held, tpu="v5e-8")
said["would fit"] = program.errors[0].fix


@jax.jit
def layers(w, x):
    def body(x, w):
        hidden = jnp.exp(jnp.sin(x @ w))
        return x + hidden * jnp.tanh(hidden), None
    return jax.grad(lambda w: jax.lax.scan(body, x, w)[0].mean())(w)  # line: scan


arguments = S((16, 1024, 1024), jnp.float32), S((65536, 1024), jnp.float32)
traced = str(layers.trace(*arguments).jaxpr)
said["scan"] = tpunb.compile(layers, *arguments, tpu="v5e-1").errors[0].fix
said["traced as before"] = str(layers.trace(*arguments).jaxpr) == traced


def prints(x):
    jax.debug.print("{}", x)
    return x


class Layer:
    def __init__(self):
        self.scale = 2.0

    @functools.partial(jax.jit, static_argnums=0)
    def call(self, w, x):
        return x @ w * self.scale

    def plain(self, w, x, *, rate, name="tanh"):
        return getattr(jnp, name)(x @ w) * rate


@dataclasses.dataclass(frozen=True)
class Shapes:  # as flax.nnx.jit does it
    inner: object

    def __call__(self, *boxes):
        return self.inner([box.value for box in boxes])

    def lower(self, *boxes):
        return self.inner.lower([box.value for box in boxes])

    def trace(self, *boxes):
        return self.inner.trace([box.value for box in boxes])


class Arrays(Shapes):  # as equinox.filter_jit does it, to which a shape is no array
    trace = property()

    def lower(self, *boxes):
        assert all(isinstance(box.value, np.ndarray) for box in boxes)
        return super().lower(*boxes)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Box:
    value: object


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Module:
    weights: object
    activation: object = dataclasses.field(metadata={"static": True})
    __hash__ = None

    def __call__(self, x):
        return self.activation(x @ self.weights)


w, x = S((512, 512), jnp.float32), S((64, 512), jnp.float32)


def takes(fn, *args, **named):
    program = tpunb.compile(fn, *args, tpu="v5e-1", **named)
    kinds = {"variable", "argument"}
    return sorted(one.node for one in program.memory.largest if one.kind in kinds)


shapes, arrays = (kind(jax.jit(lambda pair: pair[1] @ pair[0])) for kind in (Shapes, Arrays))
said["takes"] = {
    "a method": takes(Layer().call, w, x),
    "a partial": takes(functools.partial(jax.jit(jnp.dot), x), w),
    "by name": takes(Layer().plain, w, x=x, rate=0.1),
    "static": takes(jax.jit(Layer().plain, static_argnames="name"), w, x, rate=1, name="sin"),
    "a wrapper": takes(shapes, Box(w), Box(x)),
    "a frozen one": takes(arrays, Box(w), Box(x)),
    "a module": takes(Module(w, jnp.tanh), x),
}
ones = Box(jnp.ones((3, 3)))
said["still work"] = [float(one(ones, ones)[0, 0]) for one in (shapes, arrays)]
try:
    tpunb.compile(jax.pmap(jax.jit(jnp.sin)), S((8, 128), jnp.float32), tpu="v5e-8")
except tpunb.TpunbError as error:
    said["pmap"] = str(error)
try:
    tpunb.compile(jnp.sin, S((None, 128), jnp.float32), tpu="v5e-8")
except tpunb.TpunbError as error:
    said["open size"] = str(error)
said["prints"] = tpunb.compile(prints, jnp.ones(3), tpu="v5e-1").unknown
inner = jax.shard_map(
    lambda x: jax.lax.psum(x, "data"),
    mesh=absent((8,), ("data",)),
    in_specs=P("data"),
    out_specs=P(),
)
sharding = NamedSharding(absent((8,), ("data",)), P("data"))
try:
    tpunb.compile(inner, S((32, 128), jnp.float32, sharding=sharding), tpu="v5e-4")
except tpunb.TpunbError as error:
    said["of another size"] = str(error)
found = tpunb.largest_batch(
    lambda w, x: jnp.tanh(x @ w).sum(), S((1024, 4096), jnp.float32),
    S((None, 1024), jnp.float32), tpu="v5e-1", step=65536
)
said["open"] = found.batch > 0
found = tpunb.largest_batch(
    lambda w, x: jnp.tanh(x @ w).sum(), S((1024, 4096), jnp.float32),
    S((64, 1024), jnp.float32), tpu="v5e-1", step=65536
)
said["largest"] = [found.batch > 0, found.program.memory.available - found.program.memory.peak]


def multiply(x, y, z):
    z[...] = jnp.dot(x[...], y[...], preferred_element_type=jnp.float32).astype(z.dtype)


def product(cost):
    return pl.pallas_call(
        multiply,
        grid=(16, 16),
        in_specs=[
            pl.BlockSpec((256, 4096), lambda i, j: (i, 0)),
            pl.BlockSpec((4096, 256), lambda i, j: (0, j)),
        ],
        out_specs=pl.BlockSpec((256, 256), lambda i, j: (i, j)),
        out_shape=S((4096, 4096), jnp.bfloat16),
        cost_estimate=cost,
    )


flops = 2 * 4096**3
cost = pl.CostEstimate(flops=flops, bytes_accessed=6 * 4096**2, transcendentals=0)
times = [
    tpunb.compile(product(one), *[S((4096, 4096), jnp.bfloat16)] * 2, tpu="v5e-1", speed=True).time
    for one in (None, cost)
]


def add(x, y, z):
    z[...] = x[...] + y[...]


generations = []


@jax.jit
def asking(x):
    generations.append(pltpu.get_tpu_info().generation)
    return x * pltpu.get_tpu_info().num_cores


def sharded(fn, mesh):
    return jax.shard_map(fn, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=False)


types = ["v3-8", "v5e-8", "v6e-8", "v5e-8"]
traces = []
tpunb.compile(lambda x: traces.append(None) or x + 1, S((8,), jnp.float32), tpu=types)
said["traces of what does not ask"] = len(traces)
small, cut = S((8,), jnp.int32), S((16,), jnp.float32, sharding=sharding)
adds = pl.pallas_call(add, out_shape=small)
eight = absent((8,), ("data",))
cut_adds = sharded(lambda x: pl.pallas_call(add, out_shape=S((2,), jnp.float32))(x, x), eight)
said["of one dimension"] = [
    tpunb.compile(adds, small, small, tpu="v5e-1").ok,
    tpunb.compile(cut_adds, cut, tpu="v5e-8").ok,
]
said["asks"] = [
    [one.ok for one in tpunb.compile(fn, cut, tpu=types)]
    for fn in (lambda x: asking(x), sharded(asking, eight), sharded(asking, eight))
]
said["answers"] = generations
said["here"] = jax.sharding.get_abstract_mesh().abstract_device
jax_chip._device = lambda family: None  # as with a JAX that cannot describe a chip
said["not described"] = [
    tpunb.compile(fn, cut, tpu="v5e-8").unknown for fn in (cut_adds, lambda x: asking(x + 1))
]


def loop(x, z):
    z[...] = jax.lax.fori_loop(0, 10_000, lambda _, total: total * x[...] + 1, x[...])


tile = S((256, 256), jnp.float32)
program = tpunb.compile(pl.pallas_call(loop, out_shape=tile), tile, tpu="v5e-1", speed=True)
said["loop"] = [program.time.low, program.time.high - program.time.start]
said["kernels"] = [
    [one.low, one.high - one.start, flops / 197e12, one.source, *one.not_counted]
    for one in times
]
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the program in a process with JAX, and return its results."""
    return said_with_jax(PROGRAM, tmp_path_factory.mktemp("jax"))


def test_memory_equals_jaxs_analysis(said: dict[str, Any]) -> None:
    ours, theirs = said["same"]
    assert ours == theirs


def test_layers_and_arguments_have_the_users_names(said: dict[str, Any]) -> None:
    assert said["layers"] == ["encoder"]
    assert any("line: product" in line for line in said["lines"])
    assert said["names"] == ["params['first']", "params['second']", "x"]
    assert not said["marks"]


def test_a_program_that_does_not_fit_names_its_line(said: dict[str, Any]) -> None:
    assert said["too large"] == [False, "memory", True]
    line = 1 + PROGRAM.split("# line: scan")[0].count("\n")
    assert f"if jax.checkpoint wraps the body of jax.lax.scan at line {line}: " in said["scan"]
    assert "with `x` sharded over jax.sharding.AbstractMesh((" in said["scan"]
    assert "fits on a v5e-32 with 32 devices on its mesh's axis 'data': " in said["would fit"]
    assert said["traced as before"]
    assert " a core. A batch of 1,048,576 (131,072 a core) fits: " in said["would fit"]


def test_unknown_verdicts_give_their_reason(said: dict[str, Any]) -> None:
    assert "calls the host" in said["prints"]
    assert "(None, 128) has an open size" in said["open size"]
    assert "8 devices, but a v5e-4 has 4 cores" in said["of another size"]


def test_a_call_is_compiled_with_all_its_arrays(said: dict[str, Any]) -> None:
    assert said["takes"] == {
        "a method": ["w", "x"],
        "a partial": ["a", "b"],
        "by name": ["rate", "w", "x"],
        "static": ["rate", "w", "x"],
        "a wrapper": ["pair[0]", "pair[1]"],
        "a frozen one": ["pair[0]", "pair[1]"],
        "a module": ["args[0]", "model[0]"],
    }
    assert said["still work"] == [3.0, 3.0]
    assert "jax.shard_map" in said["pmap"]


def test_the_largest_batch_fits(said: dict[str, Any]) -> None:
    assert said["open"]
    fits, free = said["largest"]
    assert fits
    assert free >= 0


def test_the_time_of_a_kernel_is_read_from_its_schedule(said: dict[str, Any]) -> None:
    without, declared = said["kernels"]
    assert without == declared
    low, high, peak, source, *not_counted = without
    assert peak / 1.06 < low < high < 1.5 * peak
    assert source == "from the compiler's schedule"
    assert not any("tpu_custom_call" in text for text in not_counted)


def test_a_kernel_may_ask_for_its_chip(said: dict[str, Any]) -> None:
    assert said["of one dimension"] == [True, True]
    assert said["asks"] == [[True] * 4] * 3
    # The user's own mesh inside of a shard_map is kept, and JAX keeps the second function's traces.
    assert said["answers"] == [3, 5, 6] * 2
    assert said["traces of what does not ask"] == 1
    assert said["here"] is None


def test_a_jax_that_cannot_describe_a_chip_gives_no_verdict(said: dict[str, Any]) -> None:
    for text in said["not described"]:
        assert "asks which TPU it is compiled for" in text
        assert text.endswith("Upgrade JAX.")


def test_the_loops_of_a_kernel_count(said: dict[str, Any]) -> None:
    low, high = said["loop"]
    # 2 operations on 64 registers, 10,000 times, on one to four units at 1.5 GHz.
    least = 2 * 64 * 10_000 / 4 / 1.5e9
    assert 0.9 * least < low < high < 10 * least
