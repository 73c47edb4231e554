"""`tpunb.virtual.install` for JAX: JAX's own names find the virtual TPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from counterparts.children import run_code

import tpunb
from tpunb import virtual
from tpunb.connection.tpu_connection import open_connections
from tpunb.errors import ConnectError
from tpunb.virtual.installation import current, failure

Connect = Callable[..., Any]


@pytest.fixture(autouse=True)
def _uninstalled() -> Iterator[None]:
    yield
    virtual.uninstall()


def kinds() -> set[str]:
    return {device.device_kind for device in jax.devices()}


def test_install_and_uninstall() -> None:
    before = jax.devices()
    virtual.install("v5e-8", judge="off")
    assert kinds() == {"TPU v5 lite"}
    virtual.install("v3-8", judge="off")  # replaces it
    assert kinds() == {"TPU v3"}
    virtual.uninstall()
    assert jax.devices() == before
    assert current() is None
    assert not open_connections()
    assert "tensorflow" not in sys.modules


def test_installed_restores_what_was_there() -> None:
    before = jax.devices()
    with virtual.installed("v5e-8", framework="jax", judge="off") as outer:
        assert outer.name == "v5e-8"
        with virtual.installed("v4-8", framework="jax", judge="off"):
            assert kinds() == {"TPU v4"}
        assert kinds() == {"TPU v5 lite"}
    assert jax.devices() == before


def test_the_environment_has_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TPU_ACCELERATOR_TYPE", raising=False)
    virtual.install("v5e-8", environment=True, judge="off")
    assert os.environ["TPU_ACCELERATOR_TYPE"] == "v5e-8"
    virtual.uninstall()
    assert "TPU_ACCELERATOR_TYPE" not in os.environ


def test_a_connection_takes_the_place_of_the_installation_until_it_is_closed(
    connect: Connect,
) -> None:
    virtual.install("v5e-8", judge="off")
    x = jnp.arange(4.0)
    connection = connect("v4-8")
    assert kinds() == {"TPU v4"}
    connection.close()
    double = jax.jit(lambda x: x * 2)
    assert double(x).devices() == {jax.devices()[0]}
    assert kinds() == {"TPU v5 lite"}


def test_connecting_without_a_type_means_the_installed_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TPUNB_TPU", raising=False)
    virtual.install("v4-8", judge="off")
    connection = tpunb.connect(framework="jax", judge="off")
    assert connection.tpu == "v4-8"
    assert "JAX's names refer to a virtual v4-8 here." in connection.notes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arithmetic": "tpu"}, "--arithmetic is an option of virtual TPUs for TensorFlow"),
        ({"strict": False}, "--lenient is an option of virtual TPUs for TensorFlow"),
        ({"judge": "sometimes"}, "There is no judge 'sometimes'"),
        ({"framework": "torch"}, "There is no framework 'torch'"),
        ({"tpu": 8}, "need a TPU type"),
    ],
)
def test_a_refused_installation_changes_nothing(options: dict[str, Any], message: str) -> None:
    virtual.install("v4-8", judge="off")
    with pytest.raises(ConnectError, match=message):
        virtual.install(**{"tpu": "v5e-8", "framework": "jax", **options})
    assert kinds() == {"TPU v4"}


FIRST_USE = """
import sys
from tpunb import virtual
from tpunb.virtual.installation import failure
virtual.install_when_imported("v5e-8", judge="off", required=True)
assert "jax" not in sys.modules
import jax
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized()
jax.config.update("jax_num_cpu_devices", 3)
jax.config.update("jax_platforms", "cpu")
for _ in range(2):
    try:
        jax.devices()
        print("no error")
    except Exception as error:
        assert error is failure()
        print(type(error).__name__)
jax.config.update("jax_platforms", None)
print(len(jax.devices()), jax.default_backend(), failure())
print(jax.jit(lambda x: x + 1)(1), "tensorflow" in sys.modules)
virtual.uninstall()
print(jax.default_backend())
"""


def test_jax_gets_the_tpu_when_it_is_first_used() -> None:
    """A notebook may set JAX up after the import, and an error at the first use is no end."""
    run = run_code(FIRST_USE)
    assert run.stderr == ""
    assert run.stdout.splitlines() == [
        "ConnectError",
        "ConnectError",
        "8 tpu None",
        "2 False",
        "cpu",
    ]


THREADS = """
import threading
from tpunb import virtual
virtual.install_when_imported("v5e-8", judge="off", required=True)
import jax, jax.numpy as jnp
seen = []
def look():
    seen.append((len(jax.devices()), float(jnp.ones(3).sum())))
threads = [threading.Thread(target=look) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(set(seen), len(seen))
"""


def test_threads_that_use_jax_first_get_one_tpu() -> None:
    run = run_code(THREADS)
    assert run.stdout == "{(8, 3.0)} 8\n", run.stderr


def test_failure_is_none_after_an_installation_that_works() -> None:
    virtual.install("v5e-8", judge="off")
    assert failure() is None
