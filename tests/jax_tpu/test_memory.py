"""The memory of a virtual TPU's devices: arrays, and the code of programs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import tpunb
from tpunb.errors import DoesNotFitError
from tpunb.jax.virtual import memory as device_memory

Connect = Callable[..., Any]
MIB = 2**20


def memory_of(connection: Any) -> device_memory.DeviceMemory:
    found: device_memory.DeviceMemory = connection._virtual.memory
    return found


def test_each_device_counts_its_own_arrays(connect: Connect) -> None:
    memory = memory_of(connect())
    before = memory.in_use()
    elsewhere = jnp.ones(2 * MIB // 4)
    half = NamedSharding(Mesh(np.array(jax.devices()[4:]), ("a",)), P("a"))
    mine = jax.device_put(np.ones(4 * MIB // 4, "f"), half)
    used = np.subtract(memory.in_use(), before).tolist()
    assert used == [2 * MIB, 0, 0, 0, MIB, MIB, MIB, MIB]
    assert memory.beside(used[4], range(4, 8)) == ""
    assert "other arrays take 2 MiB of it" in memory.beside(used[4], range(8))
    assert "other arrays take 1 MiB of it" in memory.beside(MIB - 1, range(4, 8))
    assert "[524288]" not in memory.beside(MIB - 1, range(4, 8))
    del elsewhere, mine


@pytest.mark.usefixtures("libtpu")
def test_an_array_on_another_device_does_not_count_beside_a_program(connect: Connect) -> None:
    connect(judge="wait")
    elsewhere = jnp.ones(2**27, jnp.float32)
    half = NamedSharding(Mesh(np.array(jax.devices()[4:]), ("a",)), P("a"))
    shape = 4 * int(7.8 * 2**28) // 1024, 1024
    jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct(shape, "f", sharding=half)).compile()
    whole = NamedSharding(Mesh(np.array(jax.devices()[:4]), ("a",)), P("a"))
    with pytest.raises(jax.errors.JaxRuntimeError, match="other arrays take 512 MiB of it"):
        jax.jit(lambda x: x + 2).lower(jax.ShapeDtypeStruct(shape, "f", sharding=whole)).compile()
    one = jax.ShapeDtypeStruct((1980, 2**20), jnp.float32, sharding=one_device(5))
    assert tpunb.compile(lambda x: x + 1, one).ok
    beside = jax.ShapeDtypeStruct((1980, 2**20), jnp.float32, sharding=one_device(0))
    assert not tpunb.compile(lambda x: x + 3, beside).ok
    del elsewhere


def one_device(number: int) -> Any:
    return jax.sharding.SingleDeviceSharding(jax.devices()[number])


def test_memory_that_arrays_share_counts_once(connect: Connect) -> None:
    memory = memory_of(connect())
    before = memory.in_use()
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    x = jax.device_put(np.ones(8 * MIB // 4, "f"), NamedSharding(mesh, P("data")))
    views = [shard.data for shard in x.addressable_shards]
    assert np.subtract(memory.in_use(), before).tolist() == [MIB] * 8
    assert max(memory._at_most([0] * 8)) >= 2 * MIB  # a bound only
    del views


@pytest.mark.parametrize("change", ["none", "new", "deleted", "donated"])
def test_the_quick_bound_is_never_too_small(connect: Connect, change: str) -> None:
    memory = memory_of(connect("v5e-1"))
    arrays = [jnp.zeros(MIB // 4) + number for number in range(3)]
    memory._at_most(memory.in_use())
    if change == "new":
        arrays += [jax.device_put(np.ones((number, MIB // 4), "f")) for number in range(1, 4)]
    elif change == "deleted":
        del arrays[1:]
    elif change == "donated":
        arrays[-1] = jax.jit(lambda x: x + 1, donate_argnums=0)(arrays[-1])
    for enough in (10**12, 0):
        assert memory._at_most([enough])[0] >= memory.in_use()[0]


def test_a_peak_stays_when_its_arrays_are_gone(connect: Connect) -> None:
    memory = memory_of(connect("v5e-1"))
    x = jnp.ones(64 * MIB // 4)
    memory.look()
    at_peak = memory.in_use()[0]
    del x
    memory.look()
    assert jax.devices()[0].memory_stats()["peak_bytes_in_use"] == at_peak
    assert jax.devices()[0].memory_stats()["bytes_in_use"] == at_peak - 64 * MIB


def test_names_are_sought_only_for_a_display(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect("v5e-1")
    x = jnp.ones(8)
    looked = []
    monkeypatch.setattr(device_memory, "names_of", lambda *_: looked.append(1) or {})
    monkeypatch.setattr(device_memory, "_without_views", lambda arrays: looked.append(2) or arrays)
    connection.overflow()
    looked.clear()
    assert connection.overflow() == ""
    assert looked == []
    connection.live_arrays()
    assert sorted(looked) == [1, 2]
    del x


@pytest.mark.usefixtures("libtpu")
def test_names_do_not_lead_through_objects_of_tpunb(connect: Connect) -> None:
    connection = connect("v5e-1")
    connection._private = {"kept": jnp.ones(8)}
    held = {"weights": connection._private["kept"]}
    array = connection._private["kept"]
    assert device_memory.names_of([array], {"connection": connection}) == {}
    names = device_memory.names_of([array], {"connection": connection, "held": held})
    assert names == {id(array): "held['weights']"}


def test_the_code_of_programs_counts_as_long_as_they_are_alive(connect: Connect) -> None:
    connection = connect("v5e-4", judge="wait")
    memory = memory_of(connection)
    x = jax.device_put(np.ones((64, 64), "f"), jax.devices()[2])
    before = memory.in_use()
    step = jax.jit(lambda x: jnp.tanh(x @ x).T)
    step(x).delete()
    code = connection.programs[-1].memory.code
    assert code > 0
    assert np.subtract(memory.in_use(), before).tolist() == [0, 0, code, 0]
    assert jax.devices()[2].memory_stats()["bytes_in_use"] == before[2] + code
    assert "the code of compiled programs" in memory.beside(0, [2])
    del step
    jax.clear_caches()
    assert np.subtract(memory.in_use(), before).tolist() == [0] * 4


@pytest.mark.usefixtures("libtpu")
def test_the_code_counts_in_the_verdict() -> None:
    program = tpunb.compile(lambda x: jnp.tanh(x @ x), np.ones((64, 64), "f"), tpu="v5e-1")
    memory = program.memory
    assert memory.code > 0
    assert memory.needs == memory.peak + memory.code
    program.raise_if_unfit(memory.needs)
    with pytest.raises(DoesNotFitError):
        program.raise_if_unfit(memory.needs - 1)


def test_a_connection_is_shown_with_its_memory(connect: Connect) -> None:
    pytest.importorskip("anywidget")
    from tpunb.display.widgets.topology import TopologyWidget

    connection = connect("v5e-4")
    kept = jax.device_put(jnp.zeros(2**20), jax.devices()[1])
    widget = TopologyWidget(connection, colour="memory")
    sizes = re.findall(r"variables ([^ ]+ [^ ]+)", widget.html)
    assert sizes[1] == "4 MiB"
    assert sizes[0] != "4 MiB"
    assert tpunb.show(connection) is not None
    del kept
