"""The connection to a real TPU for JAX, on devices that stand for those of a TPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from support.shell import Notebook

import tpunb
from tpunb.errors import ConnectError


@pytest.fixture
def tpu(connect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the devices of a virtual TPU stand for this machine's."""
    virtual = connect("v5e-8")
    monkeypatch.setattr("tpunb.connection.tpu_connection._opened", [])
    yield
    virtual.close()


def test_the_devices_are_those_of_jax(tpu: None) -> None:
    connection = tpunb.connect("local", framework="jax")
    assert repr(connection) == "<connection to TPU v5e-8 for JAX, 8 devices>"
    assert connection.kind == "hardware"
    assert connection.describe().accelerator == "v5e-8"
    result = connection.run_cell("mine = replica_id * 2\nctx.all_reduce('sum', mine)", {})
    assert [int(part) for part in result.value.values] == [56] * 8
    assert len(connection.memory_per_core()) == 8
    connection.close()
    assert len(jax.devices()) == 8


def test_the_magics(tpu: None, tmp_path: Path) -> None:
    book = Notebook(tmp_path)
    book.good("%load_ext tpunb")
    book.good("%tpu_connect local --framework jax")
    book.good("%%tpu_run\nmine = replica_id + 1")
    assert int(book.good("mine.values[3]").value) == 4
    assert "Connection to TPU v5e-8 for JAX" in repr(book.good("%tpu_status").value)
    book.good("%tpu_disconnect")
    book.good("%unload_ext tpunb")


def test_jax_without_a_tpu() -> None:
    with pytest.raises(ConnectError, match="JAX has no TPU here: its devices are cpu"):
        tpunb.connect("local", framework="jax")


def test_another_machines_tpu() -> None:
    with pytest.raises(ConnectError, match="and my-tpu is another one"):
        tpunb.connect("my-tpu", framework="jax")
