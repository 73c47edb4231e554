"""`%%tpu_run` on a virtual TPU for JAX, compared with `jax.shard_map` written by hand."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from tpunb.errors import CellError, TpunbError, TpuWarning
from tpunb.virtual.per_replica import PerReplica

N = 8

TRAINING = """
def loss_of(params):
    errors = x @ params["w"] + params["b"] - y
    return ctx.all_reduce("mean", jnp.mean(errors**2))

loss, gradients = jax.value_and_grad(loss_of)(params)
params = jax.tree.map(lambda value, gradient: value - 0.1 * gradient, params, gradients)
steps = steps + 1
"""


@pytest.fixture
def connection(connect: Callable[..., Any]) -> Any:
    return connect("v5e-8")


@pytest.fixture
def names(connection: Any) -> dict[str, Any]:
    random = np.random.default_rng(0)
    devices = connection.cells.mesh.devices.reshape(4, 2)
    mesh = jax.sharding.Mesh(devices, ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    def cut(spec: P, *shape: int) -> Any:
        # Quarters: XLA for CPUs adds up in an order that differs between two programs, also
        # without tpunb, and sums of quarters are exact.
        values = (np.round(random.normal(size=shape) * 4) / 4).astype(np.float32)
        return jax.device_put(values, NamedSharding(mesh, spec))

    return {
        "jax": jax,
        "jnp": jnp,
        "np": np,
        "rows": cut(P(("data", "model")), 16, 4),
        "columns": cut(P(None, ("data", "model")), 4, 16),
        "tiles": cut(P("data", "model"), 8, 4),
        "halves": cut(P("model"), 8, 3),
        "whole": jnp.asarray(np.round(random.normal(size=(4, 3)) * 4) / 4, jnp.float32),
        "host": random.normal(size=(4,)).astype(np.float32),
        "key": jax.random.key(3),
        "params": {"w": jnp.zeros(4), "b": jnp.zeros(())},
        "steps": 0,
        "data": (
            random.normal(size=(64, 4)).astype(np.float32),
            random.normal(size=64).astype(np.float32),
        ),
    }


def parts_of(value: Any) -> list[Any]:
    """Return a value's part on each device."""
    if isinstance(value, PerReplica):
        return [np.asarray(part) for part in value.values]
    by_device = {shard.device: shard.data for shard in value.addressable_shards}
    return [np.asarray(by_device[device]) for device in value.sharding.mesh.devices.flat]


CELLS = [
    "y = jnp.sin(rows) * (replica_id + 1)",
    "y = ctx.all_reduce('sum', rows @ whole)",
    "y = ctx.all_reduce('mean', rows)",
    "y = ctx.all_reduce('max', tiles)",
    "y = ctx.all_reduce('min', columns)",
    "y = ctx.all_gather(rows)",
    "y = ctx.all_gather(columns, axis=1)",
    "y = ctx.ppermute(halves, [(k, (k + 1) % num_replicas) for k in range(num_replicas)])",
    "y = ctx.all_to_all(jnp.arange(16.0) + replica_id)",
    "y = jax.lax.psum(tiles, 'replica') / num_replicas",
    "y = jax.lax.psum_scatter(jnp.tile(host, 4), 'replica', tiled=True)",
    "y = jax.random.normal(jax.random.fold_in(key, replica_id), (3,))",
    "y = jax.grad(lambda w: jnp.sum(jnp.square(rows @ w)))(whole)",
    "y = jnp.where(replica_id == 3, halves.sum(), 0.0)",
    "y = jax.lax.fori_loop(0, 5, lambda k, v: v * 1.5 + k, rows)",
    "y = jnp.linalg.qr(tiles @ tiles.T + jnp.eye(2))[0]",
    "def double(v):\n    return v * 2\ny = double(rows) + double(host)",
    "y = rows.astype(jnp.bfloat16) @ whole.astype(jnp.bfloat16)",
]


@pytest.mark.parametrize("cell", CELLS)
def test_numbers_equal_shard_map(connection: Any, names: dict[str, Any], cell: str) -> None:
    y = connection.cells.run(cell, names).assigned["y"]

    # By hand: each sharded array is passed with its own spec, and all others whole.
    mesh = names["rows"].sharding.mesh
    read = [name for name in names if name in cell and isinstance(names[name], jax.Array)]
    axes = ("data", "model")

    def by_hand(*values: Any) -> Any:
        class Ctx:
            def all_reduce(self, how: str, value: Any) -> Any:
                return getattr(jax.lax, {"sum": "psum", "mean": "pmean"}.get(how, f"p{how}"))(
                    value, axes
                )

            def all_gather(self, value: Any, axis: int = 0) -> Any:
                return jax.lax.all_gather(value, axes, axis=axis, tiled=True)

            def ppermute(self, value: Any, pairs: Any) -> Any:
                return jax.lax.ppermute(value, axes, pairs)

            def all_to_all(self, value: Any) -> Any:
                return jax.lax.all_to_all(value, axes, 0, 0, tiled=True)

        scope = {
            **names,
            **dict(zip(read, values, strict=True)),
            "ctx": Ctx(),
            "num_replicas": N,
            "replica_id": jax.lax.axis_index(axes),
        }
        exec(cell.replace("'replica'", repr(axes)), scope)
        return scope["y"][None]

    specs = tuple(getattr(names[name].sharding, "spec", P()) for name in read)
    expected = jax.jit(jax.shard_map(by_hand, mesh=mesh, in_specs=specs, out_specs=P(axes)))(
        *(names[name] for name in read)
    )
    for part, wanted in zip(parts_of(y), np.asarray(expected), strict=True):
        np.testing.assert_array_equal(part, wanted)


def test_the_replicas_have_the_order_of_a_mesh(connection: Any) -> None:
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    assert connection.cells.mesh.devices.tolist() == mesh.devices.tolist()


def test_what_comes_back(connection: Any, names: dict[str, Any]) -> None:
    assigned = connection.cells.run(
        "number = replica_id * 2\n"
        "same = ctx.all_reduce('sum', number)\n"
        "nested = {'a': [rows, 3], 'b': 'text'}\n"
        "rows = rows + 1\n"
        "whole = whole * 2\n"
        "def function(v):\n    return v + 1\n"
        "def inner():\n    return number\n"
        "import math",
        names,
    ).assigned
    assert [int(part) for part in assigned["number"].values] == [2 * k for k in range(N)]
    assert [int(part) for part in assigned["same"].values] == [56] * N
    assert assigned["nested"]["a"][1] == 3
    assert assigned["nested"]["b"] == "text"
    assert assigned["nested"]["a"][0].shape == (2, 4)
    # The state keeps its form: cut as before, and whole as before.
    assert assigned["rows"].sharding == names["rows"].sharding
    np.testing.assert_array_equal(assigned["rows"], names["rows"] + 1)
    assert assigned["whole"].is_fully_replicated
    np.testing.assert_array_equal(assigned["whole"], names["whole"] * 2)
    assert assigned["function"](1) == 2
    assert assigned["math"].pi > 3
    assert "inner" not in assigned


def test_a_value_of_replicas_is_read_part_by_part(connection: Any, names: dict[str, Any]) -> None:
    names.update(connection.cells.run("mine = replica_id * 1.0\nrow = rows[0]", names).assigned)
    twice = connection.cells.run("y = mine + row\nz = mine * 2", names).assigned
    assert [float(part) for part in twice["z"].values] == [2.0 * k for k in range(N)]
    for number, part in enumerate(parts_of(twice["y"])):
        np.testing.assert_array_equal(part, number + np.asarray(names["row"].values[number]))


def test_combined_names(connection: Any, names: dict[str, Any]) -> None:
    result = connection.cells.run(
        "mean = replica_id * 1.0\ntotal = replica_id\nids = replica_id[None]\nreplica_id + 1",
        names,
        reduce={"mean": "mean", "total": "sum", "_": "sum"},
        gather={"ids": 0},
    )
    assert float(result.assigned["mean"]) == 3.5
    assert int(result.assigned["total"]) == 28
    assert np.asarray(result.assigned["ids"]).tolist() == list(range(N))
    assert int(result.value) == 36


def test_training_equals_one_device(connection: Any, names: dict[str, Any]) -> None:
    x, y = names["data"]
    params = {"w": np.zeros(4), "b": np.zeros(())}
    for _ in range(20):
        errors = x @ params["w"] + params["b"] - y
        params["w"] = params["w"] - 0.1 * 2 * (x.T @ errors) / len(y)
        params["b"] = params["b"] - 0.1 * 2 * errors.mean()
    before = names["params"]
    result = connection.cells.run(
        TRAINING, names, data=names["data"], names=("x", "y"), steps=20, plot=["loss"]
    )
    np.testing.assert_allclose(result.assigned["params"]["w"], params["w"], rtol=1e-5)
    np.testing.assert_allclose(result.assigned["params"]["b"], params["b"], rtol=1e-4)
    assert int(result.assigned["steps"]) == 20
    assert len(result.history.columns("loss")[1]) == 20
    assert connection.cells.traces == 1
    # The notebook's own arrays were copied before steps overwrote them.
    assert not before["w"].is_deleted()
    assert np.asarray(before["w"]).tolist() == [0.0] * 4


@pytest.mark.parametrize("kind", ["list", "generator", "dict", "jax"])
def test_batches_of_any_kind(connection: Any, names: dict[str, Any], kind: str) -> None:
    batches = [np.full((16, 2), number, np.float32) for number in range(5)]
    data: Any = {
        "list": batches,
        "generator": iter(batches),
        "dict": [{"v": batch} for batch in batches],
        "jax": [jnp.asarray(batch) for batch in batches],
    }[kind]
    values = "batch['v']" if kind == "dict" else "batch"
    cell = f"total = total + ctx.all_reduce('sum', {values}.sum())"
    names["total"] = jnp.zeros(())
    result = connection.cells.run(cell, names, data=data)
    assert result.steps == 5
    assert float(result.assigned["total"]) == 32.0 * 10


def test_data_that_does_not_fit(connection: Any, names: dict[str, Any]) -> None:
    for data, message in [
        (np.zeros((100, 2)), "A batch of 100 cannot be divided among 8 replicas"),
        (np.zeros((4, 2)), "4 examples are too few for 8 replicas"),
        ((np.zeros((16, 2)), np.zeros(8)), "one length along their first axis"),
        ([np.zeros((12, 2))], "A batch of 12 cannot be divided"),
        ([np.float32(1)], "A single number cannot be divided"),
        ([np.array(["a"] * 8)], "not an array of numbers"),
        ("text", "A str holds no batches"),
        (3, "A int holds no batches"),
    ]:
        with pytest.raises(CellError, match=message):
            connection.cells.run("y = batch", names, data=data)


def test_steps_read_the_notebook_again(connection: Any, names: dict[str, Any]) -> None:
    exec("def scaled(v):\n    return v * factor", names)
    names["factor"] = 2.0
    cells = connection.cells
    assert float(cells.run("y = scaled(1.0) + 0 * replica_id", names).assigned["y"].values[0]) == 2
    names["factor"] = 3.0
    assert float(cells.run("y = scaled(1.0) + 0 * replica_id", names).assigned["y"].values[0]) == 3
    traces = cells.traces
    assert cells.run("y = scaled(1.0) + 0 * replica_id", names).trace_reason is None
    assert cells.traces == traces


def test_a_mesh_that_the_notebook_has_set(connection: Any, names: dict[str, Any]) -> None:
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        result = connection.cells.run("y = ctx.all_reduce('sum', rows)", names)
    assert result.assigned["y"].shape == (2, 4)


def test_a_sum_of_a_sum_is_said(connection: Any, names: dict[str, Any]) -> None:
    cell = (
        "gradient = jax.grad(lambda w: jnp.mean((rows @ w) ** 2))(whole)\n"
        "gradient = ctx.all_reduce('mean', gradient)"
    )
    with pytest.warns(TpuWarning, match="already the same on all 8") as caught:
        connection.cells.run(cell, names)
    assert caught[0].lineno == 3
    inside = (
        "step = jax.jit(jax.grad(lambda w: jnp.mean((rows @ w) ** 2)))\n"
        "gradient = jax.lax.psum(step(whole), 'replica')"
    )
    with pytest.warns(TpuWarning, match="8 times as large"):
        connection.cells.run(inside, names)


@pytest.mark.parametrize(
    "cell",
    [
        "mean = ctx.all_reduce('mean', rows)\nspread = ctx.all_reduce('mean', (rows - mean) ** 2)",
        "total = ctx.all_reduce('sum', 1.0 * replica_id)",
        "g = jax.grad(lambda w: ctx.all_reduce('mean', jnp.mean(rows @ w)))(whole)",
        "g = jax.grad(lambda w: jnp.mean(rows @ w))(whole) / num_replicas",
    ],
)
def test_right_sums_are_not_warned_of(connection: Any, names: dict[str, Any], cell: str) -> None:
    connection.cells.run(cell, names)  # a warning is an error


def test_errors_have_the_line(connection: Any, names: dict[str, Any]) -> None:
    for cell, error, line, words in [
        ("a = 1\ny = rows @ whole.T @ host[:2]", TypeError, 3, "shape"),
        ("a = 1\nif replica_id:\n    pass", jax.errors.TracerBoolConversionError, 3, "bool"),
        ("y = ctx.all_reduce(rows, 'sum')", CellError, 2, "The operation comes first"),
        ("y = ctx.all_gather(1.0)", CellError, 2, "a scalar has none"),
    ]:
        with pytest.raises(error, match=words) as caught:
            connection.cells.run(cell, names)
        assert caught.value.tpunb_lines[-1] == line, cell


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"plot": ["y"], "steps": 2}, "its shape is"),
        ({"gather": {"s": 0}}, "cannot be gathered along axis 0"),
        ({"steps_per_loop": 2, "steps": 4}, "-k is for TensorFlow"),
        ({"reduce": {"z": "sum"}}, "does not assign `z`"),
    ],
)
def test_settings_that_do_not_fit(
    connection: Any, names: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(CellError, match=message):
        connection.cells.run("y = rows * 2\ns = 1.0 * replica_id", names, **options)


def test_undefined_names(connection: Any, names: dict[str, Any]) -> None:
    with pytest.raises(CellError, match="name `rowz` is not defined"):
        connection.cells.run("y = rowz + 1", names)


def test_a_stopped_run_continues(connection: Any, names: dict[str, Any]) -> None:
    read = []

    def batches() -> Iterator[Any]:
        for number in range(40):
            read.append(number)
            if number == 10:
                os.kill(os.getpid(), signal.SIGINT)
            yield np.full((8,), number, np.float32)

    assert threading.current_thread() is threading.main_thread()
    names["total"] = jnp.zeros(())
    run = connection.cells.steps(
        "total = total + ctx.all_reduce('sum', batch.sum())", names, data=batches()
    )
    run.go()
    assert run.stopped
    assert run.done == 11
    assert float(run.assigned["total"]) == 8 * sum(range(11))
    kept = run.assigned["total"]
    run.go()
    assert run.done == 40
    assert float(run.assigned["total"]) == 8 * sum(range(40))
    assert float(kept) == 8 * sum(range(11))  # not overwritten


def test_state_whose_form_changes(connection: Any, names: dict[str, Any]) -> None:
    names["state"] = jnp.zeros(())
    result = connection.cells.run("state = state + replica_id", names, steps=3)
    assert [float(part) for part in result.assigned["state"].values] == [3.0 * k for k in range(N)]
    assert connection.cells.traces == 2


def test_later_steps_return_only_what_is_needed(connection: Any, names: dict[str, Any]) -> None:
    options = {"data": names["data"], "names": ("x", "y"), "steps": 9, "plot": ["loss"]}
    expected = connection.cells.run(TRAINING, names, **options).assigned
    run = connection.cells.steps(TRAINING, names, **options)
    run._prepare()
    assert run._single()
    assert run._looped(6)
    assert run._single()
    assert run._single()
    run._plots.flush()
    assert connection.cells.traces == 2
    assert run.history.columns("loss")[1].tolist() == list(range(1, 10))
    assert run.assigned.keys() == expected.keys()
    for name in ("params", "gradients", "loss"):
        for one, other in zip(
            *(jax.tree.leaves(values[name]) for values in (run.assigned, expected)), strict=True
        ):
            np.testing.assert_allclose(*(getattr(each, "array", each) for each in (one, other)))


def test_a_swap_of_donated_arrays(connection: Any, names: dict[str, Any]) -> None:
    names["a"] = names["b"] = jnp.ones(3)
    result = connection.cells.run("a, b = b + 1, a", names, steps=5)
    assert np.asarray(result.assigned["a"]).tolist() == [4.0] * 3
    assert np.asarray(result.assigned["b"]).tolist() == [3.0] * 3


def test_functions_are_refused(connection: Any) -> None:
    with pytest.raises(CellError, match="Only a cell's text"):
        connection.cells.run(lambda: None)


def test_many_steps_return_all_names_at_the_end(connection: Any, names: dict[str, Any]) -> None:
    options = {"data": names["data"], "names": ("x", "y"), "plot": ["loss"]}
    result = connection.cells.run(TRAINING, names, steps=120, **options)
    assert connection.cells.traces == 2
    assert len(result.history.columns("loss")[1]) == 120
    assert int(result.assigned["steps"]) == 120
    assert {"loss", "gradients", "params"} <= result.assigned.keys()
    connection.cells.run(TRAINING, names, steps=90, **options)
    assert connection.cells.traces == 2


def test_a_number_that_goes_from_step_to_step_is_plotted(
    connection: Any, names: dict[str, Any]
) -> None:
    names["total"] = jnp.float32(0)
    cell = "total = total + 1\nconstant = 3\n"
    run = connection.cells.run(cell, names, steps=30, plot=["total", "constant"])
    assert np.array_equal(run.history.values("total"), range(1, 31))
    assert np.array_equal(run.history.values("constant"), [3] * 30)


def test_trees_of_another_form_have_another_program(connection: Any, names: dict[str, Any]) -> None:
    cell = "total = sum(jnp.sum(leaf) for leaf in jax.tree.leaves(batch))\n"
    ones = np.ones(8, np.float32)
    for batch in ({"x": ones, "y": ones}, (ones, ones), [ones, ones]):
        run = connection.cells.run(cell, names, data=[batch])
        assert float(run.assigned["total"].values[0]) == 2.0
    made = "made = jnp.ones((1, 2)) * replica_id\n"
    assert parts_of(connection.cells.run(made, names).assigned["made"])[3].shape == (1, 2)
    gathered = connection.cells.run(made, names, gather={"made": 0}).assigned["made"]
    assert gathered.shape == (N, 2)


def test_a_class_is_not_traced(connection: Any, names: dict[str, Any]) -> None:
    cell = "class Settings:\n    scale = jnp.ones(2)\nscaled = Settings.scale * replica_id\n"
    run = connection.cells.run(cell, names)
    assert np.array_equal(run.assigned["Settings"].scale, np.ones(2))


def test_the_gradient_of_an_integer(connection: Any, names: dict[str, Any]) -> None:
    names["params"] = {"w": jnp.ones(3), "n": jnp.int32(3)}
    cell = "g = jax.grad(lambda p: p['w'].sum(), allow_int=True)(params)\n"
    run = connection.cells.run(cell, names, steps=8)
    assert run.assigned["g"]["n"].dtype == jax.dtypes.float0


@pytest.mark.parametrize("change", ["params['w'] = params['w'] + 1", "seen.append(whole)"])
def test_a_change_in_place_that_is_lost_is_said(
    connection: Any, names: dict[str, Any], change: str
) -> None:
    names |= {"params": {"w": jnp.zeros(2)}, "seen": []}
    name = change.partition(".")[0].partition("[")[0]
    with pytest.warns(TpuWarning, match=f"`{name}` in place"):
        connection.cells.run(f"{change}\n", names)


def test_a_change_in_place_that_is_assigned(connection: Any, names: dict[str, Any]) -> None:
    names["params"] = {"w": jnp.zeros(2)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cell = "params['w'] = params['w'] + 1\nparams = params\n"
        run = connection.cells.run(cell, names, steps=5)
        scaled = "batch['x'] = batch['x'] / 2\nmean = jnp.mean(batch['x'])\n"
        connection.cells.run(scaled, names, data=[{"x": np.ones(N, np.float32)}])
    assert np.array_equal(run.assigned["params"]["w"], [5, 5])


@pytest.mark.filterwarnings("ignore:In each call of the cell, the TPU waits")
@pytest.mark.parametrize("plot", [(), ("total",)])
def test_a_step_that_fails_on_the_devices_leaves_the_names(
    connection: Any, names: dict[str, Any], plot: tuple[str, ...]
) -> None:
    def checked(value: Any) -> Any:
        if value > 3:
            raise ValueError("too large")
        return value

    names |= {"checked": checked, "total": jnp.float32(0)}
    cell = (
        "total = total + 1\n"
        "total = jax.pure_callback(checked, jax.ShapeDtypeStruct((), jnp.float32), total)\n"
    )
    run = connection.cells.steps(cell, names, steps=5, plot=plot)
    with pytest.raises(jax.errors.JaxRuntimeError, match="too large"):
        run.go()
    assert run.assigned == {}
    assert float(names["total"]) == 0


def test_an_array_in_the_memory_of_the_host(connection: Any, names: dict[str, Any]) -> None:
    before = names["rows"]
    names["rows"] = jax.device_put(before, before.sharding.with_memory_kind("pinned_host"))
    run = connection.cells.run("rows = rows + 1\n", names, steps=3)
    assert run.assigned["rows"].sharding == before.sharding
    assert np.array_equal(run.assigned["rows"], np.asarray(before) + 3)


def test_the_time_of_tracing_has_no_other_steps(connection: Any, names: dict[str, Any]) -> None:
    class Slow(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            for batch in super().__iter__():
                time.sleep(0.05)
                yield batch

    names["total"] = jnp.float32(0)
    cell = "total = total + ctx.all_reduce('sum', batch.sum())\nextra = batch * 2\nbatch\n"
    run = connection.cells.steps(cell, names, data=Slow([np.ones(N, np.float32)] * 12))
    began = time.perf_counter()
    run._prepare()
    assert run._single()
    assert run._looped(10)
    assert run.timings.trace + 8 * 0.05 < time.perf_counter() - began


def test_a_value_of_replicas_is_no_array(connection: Any, names: dict[str, Any]) -> None:
    value = connection.cells.run("value = replica_id * 1.0\n", names).assigned["value"]
    for convert in (np.asarray, jnp.asarray):
        with pytest.raises(TpunbError, match="a value on each replica"):
            convert(value)


def test_a_deleted_array_is_named(connection: Any, names: dict[str, Any]) -> None:
    names["params"]["w"].delete()
    with pytest.raises(CellError, match="`params` has an array that was deleted"):
        connection.cells.run("y = params['w'] + 1", names)


def part(value: Any, replica: int = 3) -> Any:
    """Return a replica's part of a value, or the value, as Python numbers."""
    return np.asarray(value.values[replica] if isinstance(value, PerReplica) else value).tolist()


CALLBACKS = [
    "jax.pure_callback(call, kind, index)",
    "jax.jit(lambda v: jax.pure_callback(call, kind, v))(index)",
    "jax.pure_callback(lambda v: call(v), kind, index)",
    "jax.pure_callback(functools.partial(call), kind, index)",
    "jax.pure_callback(thing.call, kind, index)",
    "hook(index)",
]


@pytest.mark.parametrize("how", CALLBACKS)
def test_a_second_run_calls_the_present_callback(
    connection: Any, names: dict[str, Any], how: str
) -> None:
    names |= {"functools": functools, "kind": jax.ShapeDtypeStruct((), np.float32)}
    for factor in (2, 10, 10):
        exec(
            f"def call(v): return np.asarray(v) * np.float32({factor})\n"
            "class Thing:\n"
            f"    def call(self, v): return np.asarray(v) * np.float32({factor})\n"
            "thing = Thing()\n"
            "def hook(v): return jax.pure_callback(lambda v: call(v), kind, v)\n",
            names,
        )
        assigned = connection.cells.run(f"index = replica_id * 1.0\ny = {how}", names).assigned
        assert part(assigned["y"]) == 3.0 * factor


@pytest.mark.parametrize(
    "expression",
    [
        "jnp.sum(box.table)",
        "jnp.ones(4) @ box.table",
        "jax.grad(lambda v: (v * box.table).sum())(1.0)",
        "jax.lax.scan(lambda c, _: (c + jnp.sum(box.table), None), 0.0, None, length=1)[0]",
        "jax.nn.relu(jnp.asarray(box.table)).sum() + jax.nn.gelu(0.0)",
    ],
)
def test_an_array_that_changes_in_place_is_read_again(
    connection: Any, names: dict[str, Any], expression: str
) -> None:
    names["box"] = types.SimpleNamespace(table=np.zeros(4, np.float32))
    reasons = []
    for number in (0, 2, 2, 0):
        names["box"].table[:] = number
        result = connection.cells.run(f"y = {expression} + 0 * replica_id", names)
        reasons.append(result.trace_reason is None)
        assert part(result.assigned["y"]) == 4.0 * number
    assert reasons == [False, False, True, True]  # the same numbers have a program


def test_numbers_that_compare_equal_are_not_the_same(
    connection: Any, names: dict[str, Any]
) -> None:
    names["box"] = types.SimpleNamespace(value=0.0)
    seen = []
    for names["box"].value in (0.0, -0.0):
        run = connection.cells.run("y = rows[0, 0] * 0 + 1\nz = jnp.abs(y) * box.value", names)
        seen.append(np.signbit(part(run.assigned["z"])))
    assert seen == [False, True]


FUNCTIONS = {
    "lambda": ("f = lambda: scale * 2", "f()"),
    "nested": ("def inner(): return scale\ndef f(): return inner() * 2", "f()"),
    "call": ("class Model:\n    def __call__(self): return scale * 2\nf = Model()", "f()"),
    "method": ("class Model:\n    def go(self): return scale * 2\nf = Model()", "f.go()"),
    "partial": ("f = functools.partial(lambda k: scale * k, 2)", "f()"),
    "string": ("def f(): return globals()['scale'] * 2", "f()"),
    "jit": ("f = jax.jit(lambda: scale * 2)", "f()"),
    "checkpoint": ("f = jax.checkpoint(lambda: scale * 2)", "f()"),
    "scan": ("def f(c, _): return c * scale, None", "jax.lax.scan(f, 2.0, None, length=1)[0]"),
}


@pytest.mark.parametrize("form", FUNCTIONS)
def test_functions_see_what_the_cell_assigns(
    connection: Any, names: dict[str, Any], form: str
) -> None:
    setup, call = FUNCTIONS[form]
    names |= {"functools": functools, "scale": 1.0}
    exec(setup, names)
    cell = f"scale = jnp.float32(10.0)\ny = {call}\nscale = scale * 3\nz = {call}"
    for _ in range(2):
        before = names["scale"]
        assigned = connection.cells.run(cell, names).assigned
        assert (part(assigned["y"]), part(assigned["z"])) == (20, 60)
        assert names["scale"] is before  # only the caller binds the names
        names |= assigned


@pytest.mark.parametrize("steps", [3, 120])
@pytest.mark.parametrize("cell", ["lr = lr * 0.5; w = update(w)", "decay(); w = update(w)"])
def test_functions_see_the_state_of_each_step(
    connection: Any, names: dict[str, Any], cell: str, steps: int
) -> None:
    names |= {"lr": 1.0, "w": jnp.float32(0)}
    exec(
        "def update(w): return w - lr * 0.1\ndef decay():\n    global lr\n    lr = lr * 0.5", names
    )
    assigned = connection.cells.run(cell, names, steps=steps).assigned
    assert part(assigned["w"]) == pytest.approx(-0.1 * (1 - 0.5**steps), abs=1e-6)
    assert part(assigned["lr"]) == 0.5**steps


def test_functions_see_the_batch(connection: Any, names: dict[str, Any]) -> None:
    names |= {"x": jnp.zeros(8), "total": jnp.float32(0)}
    exec("def of_batch(): return jax.lax.psum(x.sum(), 'replica')", names)
    data = [np.full(8, number, np.float32) for number in range(4)]
    run = connection.cells.run("total = total + of_batch()", names, data=data, names=("x",))
    assert part(run.assigned["total"]) == 48
    assert names["x"].sum() == 0


def test_what_functions_assign_comes_back(connection: Any, names: dict[str, Any]) -> None:
    names |= {"count": 0, "w": jnp.ones(2)}
    exec("def bump():\n    global count, w\n    count += 1\n    w = w * 2\n    return count", names)
    run = connection.cells.run("first, second = bump(), bump()\ny = count * w", names)
    assert [run.assigned[name] for name in ("first", "second", "count")] == [1, 2, 2]
    assert part(run.assigned["w"]) == [4, 4]
    assert part(run.assigned["y"]) == [8, 8]
    assert names["count"] == 0


def test_an_error_leaves_the_names(connection: Any, names: dict[str, Any]) -> None:
    names |= {"scale": 1.0, "box": types.SimpleNamespace(w=1.0)}
    exec("def f(): return scale", names)
    with pytest.raises(ZeroDivisionError):
        connection.cells.run("scale = f() + replica_id\nbox.w = scale\n1 / 0", names)
    assert names["scale"] == 1.0
    assert names["box"].w == 1.0


def test_copies_that_differ_do_not_make_an_array(connection: Any, names: dict[str, Any]) -> None:
    for steps in (None, 2):
        run = connection.cells.run("halves = halves + replica_id", names, steps=steps)
        for replica, copy in enumerate(parts_of(run.assigned["halves"])):
            wanted = parts_of(names["halves"])[replica] + replica * (steps or 1)
            np.testing.assert_array_equal(copy, wanted)
        assert isinstance(run.assigned["halves"], PerReplica)
    same = connection.cells.run("halves = halves * np.nan", names).assigned["halves"]
    assert same.sharding == names["halves"].sharding


CHANGES = [
    ("box.w = whole * 2", "box.w"),
    ("box.w = box.w * 2\nbox = box", "box.w"),
    ("setattr(box, 'w', whole * 2)", "box.w"),
    ("box.inner.w = whole * 2", "box.inner.w"),
    ("box.values['w'] = whole * 2", "box.values['w']"),
    ("box.new = whole * 2", "box.new"),
    ("box.inner = types.SimpleNamespace(w=whole * 2)", "box.inner"),
    ("store(whole * 2)", "seen[0]"),
    ("change(whole * 2)", "box.w"),
    ("total(whole * 2)", "so_far"),
    ("Slotted.w = whole * 2", "Slotted.w"),
    ("slotted.w = whole * 2", "slotted.w"),
]


@pytest.mark.parametrize("steps", [None, 3])
@pytest.mark.parametrize(("cell", "place"), CHANGES)
def test_an_object_that_would_lose_its_array_is_refused(
    connection: Any, names: dict[str, Any], cell: str, place: str, steps: int | None
) -> None:
    names |= {"types": types, "__name__": "__main__"}
    exec(
        "box = types.SimpleNamespace(w=jnp.ones(2), values={'w': 1}, "
        "inner=types.SimpleNamespace(w=1))\n"
        "seen = []\n"
        "def store(v): seen.append(v)\n"
        "def change(v): box.w = v\n"
        "def totals():\n    so_far = 0\n    def add(v):\n        nonlocal so_far\n"
        "        so_far = so_far + v\n        return so_far\n    return add\n"
        "total = totals()\n"
        "class Slotted:\n    __slots__ = ('w',)\nslotted = Slotted()\nslotted.w = 1\n",
        names,
    )
    box = names["box"]
    before = dict(vars(box))
    with pytest.raises(CellError, match=re.escape(f"`{place}`")):
        connection.cells.run(cell, names, steps=steps)
    assert vars(box) == before
    assert (box.values, box.inner.w, names["seen"]) == ({"w": 1}, 1, [])
    assert names["total"](5) == 5
    assert names["slotted"].w == 1


def test_what_an_object_computes_once_is_computed_again(
    connection: Any, names: dict[str, Any]
) -> None:
    class Model:
        @functools.cached_property
        def norm(self) -> Any:
            return jnp.ones(3).sum()

    names["model"] = Model()
    for _ in range(2):
        run = connection.cells.run("y = model.norm + replica_id", names)
        assert part(run.assigned["y"]) == 6
    assert float(names["model"].norm) == 3


def test_plain_values_of_objects_are_kept(connection: Any, names: dict[str, Any]) -> None:
    names["box"] = types.SimpleNamespace(calls=0, log=[])
    connection.cells.run("box.calls += 1\nbox.log.append('called')\ny = whole * 2", names)
    assert (names["box"].calls, names["box"].log) == (1, ["called"])


def test_an_interrupt_keeps_the_state(
    connection: Any, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    names["total"] = jnp.float32(0)
    run = connection.cells.steps("total = total + 1", names, steps=9)
    call = type(connection.cells.calls).call

    def interrupted(*arguments: Any) -> Any:
        results = call(*arguments)
        if run.done == 5:  # when the arrays are overwritten, and the results are not kept yet
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
        return results

    monkeypatch.setattr(type(connection.cells.calls), "call", interrupted)
    with contextlib.suppress(KeyboardInterrupt):
        run.go()
    assert float(run.assigned["total"]) == run.done == 6


@pytest.mark.filterwarnings("ignore:In each call of the cell, the TPU waits")
def test_an_error_of_a_callback_names_its_step(connection: Any, names: dict[str, Any]) -> None:
    def checked(value: Any) -> Any:
        if value == 4:
            raise ValueError("too large")
        return value

    names |= {"checked": checked, "total": jnp.float32(0)}
    cell = "total = jax.pure_callback(checked, jax.ShapeDtypeStruct((), jnp.float32), total + 1)\n"
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        connection.cells.run(cell, names, steps=10)
    assert caught.value.tpunb_step == 4


def test_a_large_integer_of_the_state(connection: Any, names: dict[str, Any]) -> None:
    names["count"] = 2**31 - 2
    with pytest.warns(TpuWarning, match="`count` went from step to step as int32"):
        connection.cells.run("count = count + 1", names, steps=3)
    names["count"] = 2**31
    with pytest.raises(CellError, match="`count` goes from step to step as int32"):
        connection.cells.run("count = count + 1", names, steps=3)


def test_data_that_ends_too_soon(connection: Any, names: dict[str, Any]) -> None:
    with pytest.raises(CellError, match=r"itertools\.cycle"):
        connection.cells.run("y = batch", names, data=[np.ones(8)] * 3, steps=120)
