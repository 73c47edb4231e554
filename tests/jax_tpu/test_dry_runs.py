"""Dry runs: what is computed, what says that it is not, and what this machine cannot hold."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import json
import math
import pickle
import re
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import jax
import jax.numpy as jnp
import nbformat
import numpy as np
import pytest
from jax._src.interpreters import mlir
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxlib.mlir.dialects import stablehlo

import tpunb
from tpunb.cli import main
from tpunb.compiler.ask import libtpu
from tpunb.errors import TpuWarning
from tpunb.jax.compiler.judge import Judge, Judgement
from tpunb.jax.virtual import host_memory
from tpunb.jax.virtual.uncomputed import uncomputed_arrays
from tpunb.machine import resources

Connect = Callable[..., Any]
MIB, GIB = 2**20, 2**30
NOT = "not computed: dry run"


@pytest.fixture
def dry(connect: Connect) -> Any:
    return connect(dry=True)


def along_rows() -> NamedSharding:
    return NamedSharding(jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,)), P("d"))


def is_computed(array: Any) -> bool:
    return not uncomputed_arrays().has(array)


def large(*shape: int) -> jax.Array:
    """Return an array that a dry run does not compute."""
    array = jnp.ones(shape or (2048, 4096))
    assert not is_computed(array)
    return array


def resident() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * 4096


def test_a_model_larger_than_this_machine_trains(dry: Any) -> None:
    """32 GiB with gradients, of parameters and momentum, and the machine provides next to nothing."""
    layers = 8

    def initial(key: jax.Array) -> dict[str, jax.Array]:
        keys = jax.random.split(key, 2)
        shapes = {"up": (layers, 8192, 16384), "down": (layers, 16384, 8192)}
        named = zip(shapes.items(), keys, strict=True)
        return {name: jax.random.normal(each, shape) for (name, shape), each in named}

    def loss(weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        def layer(x: jax.Array, w: dict[str, jax.Array]) -> tuple[jax.Array, None]:
            return x + jax.nn.relu(x @ w["up"]) @ w["down"], None

        return jax.lax.scan(layer, x, weights)[0].mean()

    @jax.jit
    def step(weights: Any, momentum: Any, x: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, x)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
        return jax.tree.map(jnp.subtract, weights, momentum), momentum, value

    before = resident()
    rows = along_rows()
    places = NamedSharding(rows.mesh, P(None, "d"))
    weights = jax.jit(initial, out_shardings=places)(jax.random.key(0))
    momentum = jax.tree.map(jnp.zeros_like, weights)
    x = jax.device_put(jnp.ones((16, 8192)), rows)
    for _ in range(3):
        weights, momentum, value = step(weights, momentum, x)
    assert sum(array.nbytes for array in jax.tree.leaves((weights, momentum))) == 16 * GIB
    assert resident() - before < 1.5 * GIB
    assert weights["up"].sharding.is_equivalent_to(places, 3)
    assert NOT in repr(value)
    assert NOT in f"{value:.3f}"
    assert max(dry.memory_per_core()) >= 2 * GIB


def test_small_calls_are_computed(connect: Connect) -> None:
    def results() -> list[Any]:
        key = jax.random.key(3)
        x = jax.device_put(jax.random.normal(key, (64, 16)), along_rows())
        grads = jax.jit(jax.grad(lambda x: (jnp.tanh(x) ** 2).sum()))(x)
        return [*map(np.asarray, (x, grads, jnp.arange(5) * 3, jax.random.split(key, 3).shape))]

    connect(dry=True)
    mine = results()
    connect()
    for left, right in zip(mine, results(), strict=True):
        np.testing.assert_array_equal(left, right)


MADE: dict[str, Callable[[Any], Any]] = {
    "an operation": lambda x: x + 1,
    "a part": lambda x: x[0, :3],
    "a loss": lambda x: jax.jit(lambda x: (x**2).mean())(x),
    "a gradient": jax.grad(lambda x: (x**2).sum()),
    "a loop": lambda x: jax.lax.while_loop(lambda v: v.sum() < 3, lambda v: v + 1, x),
    "a branch": lambda x: jax.lax.cond(x[0, 0] > 0, lambda: 1, lambda: 2),
    "a copy": jnp.array,
    "another sharding": lambda x: jax.device_put(x, along_rows()),
    "another device": lambda x: jax.device_put(x, jax.devices()[3]),
    "a part on a device": lambda x: jax.device_put(x, along_rows()).addressable_shards[2].data,
    "parts put together": lambda x: jax.make_array_from_single_device_arrays(
        x.shape,
        along_rows(),
        [shard.data for shard in jax.device_put(x, along_rows()).addressable_shards],
    ),
    "a large array of NumPy": lambda x: jax.device_put(np.ones(x.shape, "f"), along_rows()),
    "a callback's array": lambda x: jax.make_array_from_callback(
        (8 * 8192, 1024), along_rows(), lambda _: np.ones((8192, 1024), "f")
    ),
    "a program compiled ahead": lambda x: jax.jit(jnp.negative).lower(x).compile()(x),
    "its second call": lambda x: (f := jax.jit(jnp.negative).lower(x).compile(), f(x), f(x))[2],
    "a pmap": lambda x: jax.pmap(lambda x: x * 2)(x.reshape(8, -1)),
    "its later calls": lambda x: (
        f := jax.pmap(lambda x: x * 2),
        f(f(jnp.ones((8, 9)))),
        f(f(x.reshape(8, -1))),
    )[2],
    "random keys": lambda x: jax.random.split(jax.random.key(0), 2**22),
    "key of them": lambda x: jax.random.split(jax.random.key(0), 2**22)[3],
    "bfloat16": lambda x: x.astype(jnp.bfloat16),
    "int4": lambda x: x.astype(jnp.int4),
    "the host's memory": lambda x: jax.device_put(x, x.sharding.with_memory_kind("pinned_host")),
    "a reference": lambda x: changed(x),
}


def changed(x: jax.Array) -> Any:
    reference = jax.new_ref(x) if hasattr(jax, "new_ref") else jax.array_ref(x)
    jax.jit(lambda ref: ref.__setitem__(..., ref[...] * 2))(reference)
    return reference[...]


@pytest.mark.usefixtures("dry")
@pytest.mark.parametrize("name", MADE)
def test_what_comes_of_an_uncomputed_array_is_uncomputed(name: str) -> None:
    made = MADE[name](large())
    assert not is_computed(made)
    assert NOT in repr(made)
    assert NOT in str(made)


@pytest.mark.usefixtures("dry")
def test_reading_says_so_once_a_line() -> None:
    loss, count, flag = large().sum(), large().astype(int).sum(), large().any()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            values = float(loss)
        assert math.isnan(values)
        assert math.isnan(np.asarray(loss))
        assert int(count) == int(loss) == 0
        assert not bool(flag)
        assert np.isnan(np.add(large()[0, :3], 1)).all()
        assert large()[0, :2].tolist()[0] is not None
    assert all(warning.category is TpuWarning and NOT in str(warning.message) for warning in caught)
    assert {Path(warning.filename).name for warning in caught} == {"test_dry_runs.py"}
    lines = [warning.lineno for warning in caught]
    assert len(lines) == len(set(lines)) == 6


@pytest.mark.usefixtures("dry")
@pytest.mark.parametrize("save", [np.asarray, jax.device_get, pickle.dumps, np.from_dlpack])
def test_large_arrays_are_not_saved(save: Callable[[Any], Any]) -> None:
    with pytest.raises(RuntimeError, match=f"{NOT}.*no values"):
        save(large())


PARTS: dict[str, Callable[[Any], Any]] = {
    "a part": lambda part: part,
    "its copy on another device": lambda part: jax.device_put(part, jax.devices()[3]),
    "in the host's memory": lambda part: jax.device_put(
        part, part.sharding.with_memory_kind("pinned_host")
    ),
}


@pytest.mark.usefixtures("dry")
@pytest.mark.parametrize("name", PARTS)
def test_large_arrays_are_not_saved_in_parts(name: str) -> None:
    """A checkpoint of several processes reads the parts, each of which is small."""
    whole = jax.device_put(large(), along_rows())
    part = PARTS[name](whole.addressable_shards[0].data)
    with pytest.raises(RuntimeError, match=f"{NOT}.*no values"):
        np.asarray(part)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert math.isnan(whole.sum().addressable_data(0))


@pytest.mark.usefixtures("dry")
def test_an_array_with_an_uncomputed_part_is_uncomputed() -> None:
    """Orbax puts the parts of an array on the devices one by one."""
    part = jax.device_put(large().sum(keepdims=True)[0], jax.devices()[7])
    parts = [*(jax.device_put(np.ones(1, "f"), device) for device in jax.devices()[:7]), part]
    rows = along_rows()
    in_order = [parts[device.id] for device in rows.mesh.devices.flat]
    array = jax.make_array_from_single_device_arrays((8,), rows, in_order)
    assert not is_computed(array)
    assert not is_computed(array + 1)


@pytest.mark.usefixtures("dry")
def test_copies_on_the_host_say_so() -> None:
    host = jax.devices("cpu")[0]
    with pytest.warns(TpuWarning, match=NOT):
        copied = jax.device_put(large().sum(), host)
    assert math.isnan(copied)
    assert copied.devices() == {host}
    with pytest.raises(RuntimeError, match="no values to read"):
        jax.device_put(large(), host)


@pytest.mark.usefixtures("dry")
def test_many_copied_arrays_take_little_memory() -> None:
    copied = [jnp.asarray(np.ones(2**20, "f")) for _ in range(160)]
    computed = list(map(is_computed, copied))
    assert computed[0]
    assert not computed[-1]
    assert sum(computed) * 4 * MIB <= GIB / 2


SAVED: dict[str, Callable[[Any, Path], Any]] = {
    "np.save": lambda x, path: np.save(path, x),
    "np.savez": lambda x, path: np.savez(path, x=x),
    "np.savetxt": lambda x, path: np.savetxt(path, x),
    "jnp.save": lambda x, path: jnp.save(path, x),
    "savez of an earlier import": lambda x, path: savez(path, {"x": x}),
    "h5py": lambda x, path: h5py.File(path, "w").create_dataset("x", data=x),
    "pickle": lambda x, path: pickle.dump(x, path.open("wb")),
}


def savez(path: Path, arrays: dict[str, Any], save: Any = np.savez) -> None:
    save(path, **arrays)


@pytest.mark.usefixtures("dry")
@pytest.mark.parametrize("name", SAVED)
@pytest.mark.filterwarnings("ignore:unclosed file")
def test_small_arrays_are_not_saved_either(name: str, tmp_path: Path) -> None:
    """A file of NaN would look like a result."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        refused = ""
        try:
            SAVED[name](large()[:2, :3], tmp_path / "uncomputed")
        except RuntimeError as error:
            refused = str(error)
    said = [refused, *(str(warning.message) for warning in caught)]
    assert any("not saved" in each or "no values to" in each for each in said)
    SAVED[name](jnp.ones((2, 3)), tmp_path / "computed")
    assert any(path.stat().st_size for path in tmp_path.glob("computed*"))


class Composite(types.SimpleNamespace):
    """Arguments of Orbax, which raises a KeyError for an absent attribute."""

    def __getattr__(self, name: str) -> Any:
        """Raise the error."""
        raise KeyError(name)


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Any]:
    """Return a function that imports a stand-in of a package's module with some source."""

    def make(name: str, source: str) -> Any:
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True)
        path.write_text(source, encoding="utf-8")
        parts = name.split(".")
        for count in range(len(parts)):
            monkeypatch.delitem(sys.modules, ".".join(parts[: count + 1]), raising=False)
        return importlib.import_module(name)

    monkeypatch.syspath_prepend(str(tmp_path))
    return make


@pytest.mark.parametrize("is_imported", [False, True])
def test_orbax_saves_no_uncomputed_arrays(
    is_imported: bool, connect: Connect, imported: Callable[[str, str], Any]
) -> None:
    name = "orbax.checkpoint.checkpoint_manager"
    source = "class CheckpointManager:\n    def save(self, step, args): return f'{step}: {args}'\n"
    if is_imported:
        manager = imported(name, source).CheckpointManager()
    connect(dry=True)
    if not is_imported:
        manager = imported(name, source).CheckpointManager()
    with pytest.warns(TpuWarning, match="not saved"):
        assert manager.save(1, args=Composite(tree={"w": [large()]})) is False
    assert manager.save(2, args="all") == "2: all"
    connect()
    assert manager.save(3, args="all") == "3: all"


class Stored:
    """An array in a file, which does not read its values."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        self.dtype = types.SimpleNamespace(numpy_dtype=np.dtype("f"))

    def __getitem__(self, part: Any) -> jax.Array:
        """Return no rows."""
        assert part == slice(None, 0)
        return jnp.zeros((0, *self.shape[1:]), jnp.bfloat16)

    def get_shape(self) -> list[int]:
        return list(self.shape)


@pytest.mark.usefixtures("dry")
def test_orbax_reads_no_values_of_large_arrays(imported: Callable[[str, str], Any]) -> None:
    module = imported(
        "orbax.checkpoint._src.serialization.serialization",
        "async def _read_and_create_array(t, *, global_shape, dtype, sharding): return 'read', 4\n",
    )
    rows = along_rows()

    def restored(*shape: int, dtype: Any = None) -> Any:
        read = module._read_and_create_array(
            Stored(*shape), global_shape=shape, dtype=dtype, sharding=rows
        )
        return asyncio.run(read)

    array, size = restored(2048, 4096)
    assert not is_computed(array)
    assert (array.shape, array.dtype, array.sharding, size) == ((2048, 4096), "float32", rows, 0)
    assert restored(4096, 4096, dtype=np.dtype("int8"))[0].dtype == "int8"
    assert restored(8) == ("read", 4)


@pytest.mark.usefixtures("dry")
def test_safetensors_reads_no_values_of_large_arrays(
    imported: Callable[[str, str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = imported("safetensors.flax", "def load_file(filename): raise AssertionError\n")
    stored = {"large": Stored(4096, 4096), "small": Stored(3), "number": Stored()}
    file = types.SimpleNamespace(
        keys=lambda: stored, get_slice=stored.__getitem__, get_tensor=lambda name: f"read {name}"
    )
    opened = contextlib.nullcontext(file)
    monkeypatch.setattr(
        sys.modules["safetensors"], "safe_open", lambda *args, **named: opened, raising=False
    )
    loaded = module.load_file("model.safetensors")
    assert (loaded["small"], loaded["number"]) == ("read small", "read number")
    assert not is_computed(loaded["large"])
    assert (loaded["large"].shape, loaded["large"].dtype) == ((4096, 4096), jnp.bfloat16)


@pytest.mark.usefixtures("dry")
def test_computed_arrays_are_read_as_ever() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        array = jnp.arange(4.0)
        assert np.asarray(array).tolist() == [0, 1, 2, 3]
        assert float(array[3]) == 3
        assert pickle.loads(pickle.dumps(array)).sum() == 6


@pytest.mark.usefixtures("dry")
def test_donated_arrays_are_deleted() -> None:
    given, kept = large(), large()
    result = jax.jit(lambda x, y: (x + y, y.sum()), donate_argnums=0)(given, kept)
    assert given.is_deleted()
    assert not kept.is_deleted()
    assert not is_computed(result[0])
    with pytest.raises(RuntimeError, match="deleted"):
        np.asarray(given)


@pytest.mark.parametrize("places", [along_rows, lambda: jax.devices()[0]])
def test_arrays_that_share_parts_are_deleted_and_counted_alone(
    places: Callable[[], Any], dry: Any
) -> None:
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    start = jax.device_put(large(), places())
    given = [start + number for number in range(3)]
    before = max(dry.memory_per_core())
    made = step(given[0])
    given[1].delete()
    assert [array.is_deleted() for array in (*given, start, made)] == [True, True] + 3 * [False]
    assert max(dry.memory_per_core()) == before - start.nbytes // len(start.devices())
    assert NOT in repr(step(given[2]))
    with pytest.raises(RuntimeError, match="deleted"):
        given[1] + 1


@pytest.mark.usefixtures("dry")
def test_jax_is_asked_for_a_program_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX compares arguments with a program's in Python, which takes longer than a step may."""
    asked: list[str] = []
    resolve = jax._src.pjit._resolve_and_lower

    def noted(args: Any, *rest: Any, name: str, **named: Any) -> Any:
        asked.append(name)
        return resolve(args, *rest, name=name, **named)

    @jax.jit
    def step(x: jax.Array, key: jax.Array, factor: float) -> Any:
        return x * factor, jax.random.split(key)[0], x.sum()

    monkeypatch.setattr(jax._src.pjit, "_resolve_and_lower", noted)
    rows, key = along_rows(), jax.random.key(0)
    for place in (rows, NamedSharding(rows.mesh, P()), rows):
        x = jax.device_put(large(), place)
        for _ in range(3):
            x, key, _ = step(x, key, 0.5)
            assert x.sharding.is_equivalent_to(place, 2)
    step(x.astype(jnp.bfloat16), key, 2)
    count = asked.count("step")
    assert 4 <= count <= 6  # where a key has another place after the first call
    for _ in range(9):
        x, key, _ = step(x, key, 0.5)
    assert asked.count("step") == count


@pytest.mark.usefixtures("dry")
@pytest.mark.filterwarnings("ignore:Each call of .* to Python on the host")
def test_callbacks_of_uncomputed_calls_are_not_called() -> None:
    called: list[float] = []

    @jax.jit
    def step(x: jax.Array) -> jax.Array:
        jax.debug.callback(lambda value: called.append(float(value)), x.sum())
        return x * 2

    step(large())
    step(jnp.ones(3))
    jax.effects_barrier()
    assert called == [3.0]


def test_arrays_stay_uncomputed_when_the_dry_run_has_ended(connect: Connect) -> None:
    connect(dry=True)
    array = large()
    connect()
    assert NOT in repr(array)
    with pytest.raises(RuntimeError, match="no values"):
        array + 1
    with pytest.raises(RuntimeError, match="no values"):
        jax.device_put(array, jax.devices("cpu")[0])
    assert (jnp.ones(3) + 1).tolist() == [2, 2, 2]


CALLS: dict[str, Callable[[NamedSharding], Any]] = {
    "jit": lambda whole: jax.jit(lambda: jnp.zeros(2**26), out_shardings=whole)(),
    "ahead": lambda whole: (
        jax.jit(lambda: jnp.zeros(2**26), out_shardings=whole).lower().compile()()
    ),
    "an operation": lambda whole: jnp.zeros(2**29),
    "device_put": lambda whole: jax.device_put(np.zeros(2**26, "f"), whole),
}


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave this machine 1 GiB of free memory."""
    monkeypatch.setattr(resources, "measure", lambda: resources.Memory(16 * GIB, GIB))


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("name", CALLS)
def test_what_this_machine_cannot_hold_is_refused(name: str, connect: Connect) -> None:
    connect()
    whole = NamedSharding(along_rows().mesh, P())
    for _ in range(2):
        with pytest.raises(MemoryError, match=r"takes 2 GiB .* 1 GiB are free.*--dry"):
            CALLS[name](whole)
    assert jnp.ones(2**20).sum() == 2**20


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("name", CALLS)
def test_a_dry_run_leaves_it_out(name: str, connect: Connect) -> None:
    connect(dry=True)
    assert not is_computed(CALLS[name](NamedSharding(along_rows().mesh, P())))


def test_calls_that_are_looked_at_compute(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Donated results of earlier calls do not count, and none of them is asked."""
    monkeypatch.setattr(host_memory, "LOOKED_AT", 1)
    connect()
    step = jax.jit(lambda x, y: (x + y, y.sum(), jax.random.key(3)), donate_argnums=0)
    x, y = jnp.zeros(2**16), jnp.ones(2**16)
    for _ in range(5):
        x, total, key = step(x, y)
    assert (float(x[0]), float(total)) == (5, 2**16)
    assert jax.random.key_data(key).tolist() == [0, 3]


@pytest.mark.parametrize("dry", [False, True])
def test_calls_with_tokens_run(dry: bool, connect: Connect) -> None:
    connect(dry=dry)
    token, x = jax.jit(lambda x, token: (token, x + 1))(jnp.ones(2), jax.lax.create_token())
    token, x = jax.jit(lambda x, token: (token, x + 1))(x, token)
    assert x.tolist() == [3, 3]
    if dry:
        with pytest.raises(NotImplementedError, match="token"):
            jax.jit(lambda x, token: (token, x + 1))(large(), token)


def test_the_limit_of_addresses_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda kind: (2**62, 2**62))
    unlimited = resources.measure().available
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1, 1))
    assert unlimited
    assert resources.measure().available == 0


def donating() -> tuple[Any, ...]:
    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.scan(jax.checkpoint(lambda x, w: (jnp.tanh(x @ w), None)), x, weights)[
            0
        ].mean()

    @functools.partial(jax.jit, donate_argnums=0)
    def step(weights: jax.Array, x: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, x)
        return weights - gradients, value

    rows = along_rows()
    places = NamedSharding(rows.mesh, P(None, "d"))
    weights = jax.jit(lambda: jnp.ones((4, 1024, 1024)), out_shardings=places)()
    return step, weights, jax.device_put(np.ones((4096, 1024), "f"), rows)


def sharded_by_hand() -> tuple[Any, ...]:
    rows = along_rows()
    step = jax.jit(
        jax.shard_map(
            lambda w, x: (w - jax.lax.psum(x, "d").mean(0), jax.lax.axis_index("d")[None]),
            mesh=rows.mesh,
            in_specs=(P(), P("d")),
            out_specs=(P(), P("d")),
        )
    )
    return step, jax.device_put(large()[0], NamedSharding(rows.mesh, P())), large(4096, 4096)


def accumulating() -> tuple[Any, ...]:
    @functools.partial(jax.jit, static_argnames="parts", donate_argnames="state")
    def step(state: dict[str, Any], x: Any, rate: float, *, parts: int) -> Any:
        gradient = jax.grad(lambda w, x: ((x @ w) ** 2).mean())

        def add(total: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
            return total + gradient(state["w"], x), None

        w, batches = state["w"], x.reshape(parts, -1, x.shape[-1])
        total, _ = jax.lax.scan(add, jnp.zeros_like(w), batches)
        key = jax.random.fold_in(state["key"], state["count"])
        noise = jax.random.normal(key, w.shape)
        return {"w": w - rate * total + noise, "key": key, "count": state["count"] + 1}

    rows = along_rows()
    w = jax.device_put(large(2048, 2048), NamedSharding(rows.mesh, P(None, "d")))
    state = {"w": w, "key": jax.random.key(0), "count": jnp.int32(0)}
    return functools.partial(step, parts=4), state, np.ones((64, 2048), "f"), 0.5


def on_one_device() -> tuple[Any, ...]:
    def step(x: jax.Array) -> Any:
        return jax.lax.platform_dependent(x, tpu=jnp.sin, default=jnp.cos), x.astype(jnp.int4)

    return jax.jit(step), large()


FORMS = [donating, sharded_by_hand, accumulating, on_one_device]


@pytest.mark.parametrize("form", FORMS)
def test_the_compiler_gets_what_compile_gives_it(
    form: Callable[[], tuple[Any, ...]], connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same operations, shardings and donated arguments, so the verdicts are equal."""
    judged: dict[str, bytes] = {}

    def begin(judge: Any, program: Any, *rest: Any) -> Judgement:
        judged[program.name] = program.for_a_tpu.artifact()
        return Judgement(program.name)

    def read(module: bytes, deadline: Any) -> Any:
        raise StopIteration(module)

    monkeypatch.setattr(Judge, "begin", begin)
    monkeypatch.setattr(libtpu, "read_exported", read)
    monkeypatch.setattr(libtpu, "start", lambda **options: None)
    connect(dry=True, judge="wait")
    step, *args = form()
    step(*args)
    with pytest.raises(StopIteration) as compiled:
        tpunb.compile(step, *args)
    name = getattr(step, "func", step).__name__
    assert operations(judged[name]) == operations(compiled.value.value)


def operations(module: bytes) -> str:
    """Return the text of a module without what `jax.export` adds, and numbers in JAX's names."""
    with (context := mlir.make_ir_context()):
        text = str(stablehlo.deserialize_portable_artifact(context, module))
    text = text.replace("jax.uses_shape_polymorphism = false, ", "")
    return re.sub(r"(@\w+?)_\d+\b", r"\1", text)


@pytest.mark.usefixtures("libtpu")
def test_verdicts_are_those_of_compile(connect: Connect) -> None:
    """Byte for byte, for a step with collectives that overwrites its weights."""
    connection = connect(dry=True, judge="wait")
    rows = along_rows()

    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0].mean()

    @functools.partial(jax.jit, donate_argnums=0)
    def step(weights: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(weights, x)
        return weights - gradients, value

    places = NamedSharding(rows.mesh, P(None, "d"))
    weights = jax.jit(lambda: jnp.ones((4, 2048, 2048)), out_shardings=places)()
    x = jax.device_put(np.ones((4096, 2048), "f"), rows)
    for _ in range(2):
        weights, _ = step(weights, x)
    judged = connection.dry.calls[-1].program
    compiled = tpunb.compile(step, weights, x)
    assert judged.name == "step"
    assert judged.memory == compiled.memory
    assert judged.collectives == compiled.collectives != ()


# The command

SCRIPT = """\
import argparse
import jax, jax.numpy as jnp

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int)
width = parser.parse_args().width
step = jax.jit(lambda w: (w - 0.1 * w, (w @ w).mean()))
w = jax.jit(lambda: jnp.ones((width, width)))()
for number in range(3):
    w, loss = step(w)
    print(number, f"loss {loss:.1f}")
"""


def run(folder: Path, *arguments: str) -> tuple[int, Any]:
    """Run the command with a report."""
    report = folder / "report.json"
    code = main(["run", "--tpu", "v5e-8", "--dry", "--json", str(report), *arguments])
    return code, json.loads(report.read_text(encoding="utf-8"))


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT, encoding="utf-8")
    return str(path)


@pytest.mark.usefixtures("libtpu")
def test_a_script_runs_dry(script: str, tmp_path: Path, capfd: Any) -> None:
    code, report = run(tmp_path, script, "--width", "8192")
    shown = capfd.readouterr().out
    assert code == 0
    assert f"2 loss <{NOT}>" in shown
    assert "train.py:10" in shown
    assert report["verdict"] == "fits"
    assert [call["line"] for call in report["calls"]] == [8, 10]
    step = report["calls"][1]
    assert (step["program"], step["calls"], step["computed"]) == ("<lambda>", 3, 0)
    assert 2 * 256 * MIB <= step["peak"] < GIB
    assert report["peak"] == step["peak"]


TOO_LARGE = """\
import jax, jax.numpy as jnp
w = jax.jit(lambda: jnp.ones((24, 4096, 4096)))()
x = jnp.ones((24576, 4096))

def loss(w, x):
    def layer(x, w):
        return jnp.tanh(x @ w), None
    return jax.lax.scan(layer, x, w)[0].mean()

@jax.jit
def step(w, x):
    value, gradients = jax.value_and_grad(loss)(w, x)
    return w - gradients, value

w, value = step(w, x)
"""


@pytest.mark.usefixtures("libtpu")
def test_a_script_that_does_not_fit(tmp_path: Path, capfd: Any) -> None:
    path = tmp_path / "large.py"
    path.write_text(TOO_LARGE, encoding="utf-8")
    code, report = run(tmp_path, str(path))
    assert code == 1
    assert report["verdict"] == "does-not-fit"
    captured = capfd.readouterr()
    assert "It does not fit: step in large.py:15" in captured.out
    fix = "jax.checkpoint wraps the body of jax.lax.scan at line 8"
    assert all(fix in said for said in (captured.out, captured.err, report["calls"][-1]["refused"]))


def test_a_script_without_a_judge(script: str, tmp_path: Path) -> None:
    code, report = run(tmp_path, "--judge", "off", script, "--width", "8192")
    assert (code, report["verdict"], report["calls"]) == (3, "not-known", [])


def test_a_script_that_fails(tmp_path: Path, capfd: Any) -> None:
    path = tmp_path / "fails.py"
    path.write_text("import jax\njax.devices()\nraise SystemExit(7)\n", encoding="utf-8")
    assert main(["run", "--tpu", "v5e-8", "--dry", "--judge", "off", str(path)]) == 3
    assert main(["run", "--tpu", "v5e-8", "--judge", "off", str(path)]) == 7
    assert main(["run", str(path)]) == 2
    assert "--tpu v5e-8 fails.py" in capfd.readouterr().err


KERAS = """\
import os
os.environ["KERAS_BACKEND"] = "jax"
import keras, numpy as np
model = keras.Sequential([keras.Input((2048,)), keras.layers.Dense(4096), keras.layers.Dense(1)])
model.compile("sgd", "mse")
kept = keras.callbacks.ModelCheckpoint("kept.weights.h5", save_weights_only=True)
x, y = np.ones((64, 2048)), np.ones(64)
print(model.fit(x, y, callbacks=[kept], verbose=0).history, os.path.exists("kept.weights.h5"))
"""


def test_keras_trains_and_saves_nothing(
    tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(KERAS, encoding="utf-8")
    assert main(["run", "--tpu", "v5e-8", "--dry", "--judge", "off", "train.py"]) == 3
    captured = capfd.readouterr()
    assert "{'loss': [nan]} False" in captured.out
    assert "checkpoint is not saved" in captured.err


@pytest.mark.usefixtures("libtpu")
def test_a_notebook_runs_dry(tmp_path: Path, capfd: Any) -> None:
    sources = [
        "import jax, jax.numpy as jnp\nw = jnp.ones((8192, 8192))",
        "step = jax.jit(lambda w: (w + 1, w.sum()))\nw, loss = step(w)\nprint(loss)",
        "%load_ext tpunb\n%tpu_connect\n%tpu_status",
    ]
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    path = tmp_path / "notebook.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    code, report = run(tmp_path, str(path), "-o", str(tmp_path / "out.ipynb"))
    assert code == 0
    assert report["calls"][-1]["cell"] == 2
    executed = nbformat.read(tmp_path / "out.ipynb", 4)
    assert NOT in executed.cells[1].outputs[0].text
    status = "".join(str(output) for output in executed.cells[2].outputs)
    assert "This is a dry run" in status
    assert "Dry run: " in status
    assert "line 2" in capfd.readouterr().out
