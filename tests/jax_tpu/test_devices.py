"""The devices of a virtual TPU, and JAX's own devices before, beside and after it."""

from __future__ import annotations

import gc
import importlib
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tpunb
from tpunb.errors import ConnectError
from tpunb.jax.virtual.private_names import PRIVATE_NAMES, owner_of, private
from tpunb.tpu.families import DEVICE_KINDS, HARDWARE
from tpunb.tpu.types import accelerator, accelerator_types

Connect = Callable[..., Any]

SMALL = [name for name in accelerator_types() if accelerator(name).num_devices <= 16]


@pytest.mark.parametrize("name", SMALL)
def test_devices_answer_as_those_of_the_type(connect: Connect, name: str) -> None:
    tpu = accelerator(name)
    connect(name)
    devices = jax.devices()
    places = [place for host in tpu.device_coordinates() for place in host]
    assert [[*device.coords, device.core_on_chip] for device in devices] == [
        list(place) for place in places
    ]
    assert [device.id for device in devices] == list(range(tpu.num_devices))
    assert {device.platform for device in devices} == {"tpu"}
    assert {device.device_kind for device in devices} == {DEVICE_KINDS[tpu.family]}
    assert {device.num_cores for device in devices} == {2 if tpu.family in {"v4", "v5p"} else 1}
    assert {device.slice_index for device in devices} == {0}
    assert {device.process_index for device in devices} == {0}
    assert jax.default_backend() == "tpu"
    assert jax.devices("tpu") == jax.local_devices() == devices
    stats = devices[0].memory_stats()
    assert stats["bytes_limit"] == HARDWARE[tpu.family].usable_bytes
    assert stats["bytes_reservable_limit"] == stats["largest_free_block_bytes"]


def test_texts_are_those_of_a_tpu(connect: Connect) -> None:
    connect("v3-8")
    device = jax.devices()[3]
    assert repr(device) == "TpuDevice(id=3, process_index=0, coords=(1,0,0), core_on_chip=1)"
    assert str(device) == "TPU_3(process=0,(1,0,0,1))"


def test_the_host_stays_beside_it(connect: Connect) -> None:
    connect()
    (host,) = jax.devices("cpu")
    assert (host.platform, host.device_kind) == ("cpu", "cpu")
    assert host.memory_stats() is None
    with pytest.raises(AttributeError):
        _ = host.coords
    on_host = jax.device_put(np.arange(4.0), host)
    moved = jax.device_put(on_host, jax.devices()[5])
    assert moved.devices() == {jax.devices()[5]}
    np.testing.assert_array_equal(jax.device_put(moved, host), on_host)


def test_a_mesh_has_the_order_of_the_type(connect: Connect) -> None:
    """JAX orders the chips of a v5e in a ring (`mesh_utils._V5E_TRAY_RING_ORDER`)."""
    connect("v5e-8")
    mesh = jax.make_mesh((8,), ("x",))
    assert [device.id for device in mesh.devices.flat] == [0, 1, 2, 3, 7, 6, 5, 4]


def _state() -> dict[str, Any]:
    """Return everything that a virtual TPU replaces."""
    device, client = (owner_of(f"jaxlib._jax.{name}") for name in ("Device", "Client"))
    state: dict[str, Any] = {}
    for owner, name in (device, client):
        state |= {f"{name}.{key}": value for key, value in vars(getattr(owner, name)).items()}
    for name in PRIVATE_NAMES:
        owner, attribute = owner_of(name)
        value = getattr(owner, attribute)
        state[name] = dict(value) if isinstance(value, dict) else value
    return state


def test_closing_restores_everything(connect: Connect) -> None:
    jnp.ones(3)  # JAX has started
    before, devices = _state(), jax.devices()
    connection = connect()
    assert _state() != before
    jnp.ones(3)
    connection.close()
    after = _state()
    assert {name for name in before | after if before.get(name) != after.get(name)} == set()
    assert jax.devices() == devices


def test_arrays_outlive_the_connection_and_precede_it(connect: Connect) -> None:
    before = jnp.arange(3.0)
    double = jax.jit(lambda x: x * 2)
    double(before)
    connection = connect()
    assert double(before).devices() == {jax.devices()[0]}  # not what was compiled before
    during = jnp.arange(3.0) + before
    connection.close()
    np.testing.assert_array_equal(during, [0.0, 2.0, 4.0])
    assert double(before).devices() == set(jax.devices())


def test_ten_connections_leak_no_client(connect: Connect) -> None:
    clients = []
    for turn in range(10):
        connect(("v5e-8", "v4-8", "v3-8")[turn % 3])
        jnp.ones(3).block_until_ready()
        clients.append(weakref.ref(jax.devices()[0].client))
    tpunb.connect(simulate="v5e-1", framework="jax", judge="off").close()
    gc.collect()
    assert sum(ref() is not None for ref in clients) <= 1


def test_a_type_without_a_name_is_refused(connect: Connect) -> None:
    devices = jax.devices()
    with pytest.raises(ConnectError, match="need a TPU type"):
        connect("8")
    assert jax.devices() == devices


@pytest.mark.parametrize("platforms", ["cpu", "tpu"])
def test_a_list_of_platforms_is_refused(connect: Connect, platforms: str) -> None:
    jax.devices()
    before = _state()
    jax.config.update("jax_platforms", platforms)
    try:
        with pytest.raises(ConnectError, match=f"use only {platforms}.*\nTry: Unset JAX_PLATFORMS"):
            connect()
    finally:
        jax.config.update("jax_platforms", None)
    assert _state() == before


def test_several_processes_are_refused(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    with pytest.raises(ConnectError, match=r"jax\.distributed is initialised"):
        connect()


def test_an_old_jax_is_refused(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "__version__", "0.6.2")
    with pytest.raises(ConnectError, match=r"needs JAX 0\.7\.2 or later"):
        connect()


def test_a_python_without_a_new_jax_is_named(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "__version__", "0.6.2")
    monkeypatch.setattr("tpunb.machine.jax_releases.ITS_PYTHON", (4, 0))
    with pytest.raises(ConnectError) as raised:
        connect()
    assert "JAX 0.7.2 needs Python 4.0 or later, and this is Python 3." in raised.value.fix


def test_options_of_tensorflow_are_refused(connect: Connect) -> None:
    with pytest.raises(
        ConnectError, match="--arithmetic is an option of virtual TPUs for TensorFlow"
    ):
        connect(arithmetic="tpu")


def test_the_framework_is_the_imported_one() -> None:
    framework = importlib.import_module("tpunb.machine.framework")
    assert framework.framework_for(None, {"jax": jax}) == ("jax", "")
    assert framework.framework_for("tensorflow", {"jax": jax}) == ("tensorflow", "")


def test_other_accelerators_stay_beside_it(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    jax.devices()
    monkeypatch.setitem(private("jax._src.xla_bridge._backends"), "cuda", object())
    (note,) = [note for note in connect(judge="off").notes if "cuda" in note]
    assert note == (
        "jax.devices() are the virtual TPU's. jax.devices('cuda') still lists this machine's."
    )
    tpunb.connect(simulate="v5e-1", framework="jax", judge="off").close()
