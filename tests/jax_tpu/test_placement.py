"""The places of arrays on a virtual TPU."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from counterparts.children import environment
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.patience import PATIENCE

import tpunb
from tpunb.display.describe.placement import ArrayPlacement, TreePlacement, placement_of
from tpunb.display.describe.replicas import describe_replica_values

Connect = Callable[..., Any]


def put(array: Any, *spec: Any) -> Any:
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    return jax.device_put(array, NamedSharding(mesh, P(*spec)))


def test_coordinates_are_those_of_the_mesh(connect: Connect) -> None:
    connect("v5e-8")
    array = put(jnp.ones((64, 128)), "data", "model")
    found = placement_of(array)
    assert isinstance(found, ArrayPlacement)
    devices = array.sharding.mesh.devices
    for part in found.parts:
        (holder,) = part.holders
        assert holder.name == f"TPU {devices[holder.position].id}"
        assert part.ranges == tuple(
            (place * size, place * size + size)
            for place, size in zip(holder.position, (16, 64), strict=True)
        )


def test_values_of_any_size_are_read_on_a_virtual_tpu(connect: Connect) -> None:
    connect("v5e-8")
    description = describe_replica_values(put(jnp.zeros((4, 2**20)), "data"))
    assert description.unread == ""
    assert len(description.sections) == 1


@pytest.mark.parametrize(("spec", "is_cut"), [(("data",), True), ((), False)])
def test_only_copies_are_compared(connect: Connect, spec: tuple[str, ...], is_cut: bool) -> None:
    connect("v5e-8")
    description = describe_replica_values({"w": put(jnp.arange(8.0), *spec)})
    (section,) = description.sections
    assert (section.is_cut, section.all_equal) == (is_cut, not is_cut)
    assert section.num_differing == 0


def test_show_draws_the_array_above_its_values(
    connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    connect("v5e-8")
    tpunb.show(put(jnp.arange(8.0), "data"))
    shown = capsys.readouterr().out
    assert "cut into 4 parts over data, 2 copies of each" in shown
    assert "[0:2]" in shown
    assert "[0, 1]" in shown


def test_modules_of_flax_and_equinox_are_trees(connect: Connect) -> None:
    nnx = pytest.importorskip("flax.nnx")
    equinox = pytest.importorskip("equinox")
    connect("v5e-8")
    found = placement_of(nnx.Linear(8, 16, rngs=nnx.Rngs(0)))
    assert isinstance(found, TreePlacement)
    assert (found.bytes, found.idle) == (4 * (8 * 16 + 16), 7)
    found = placement_of(equinox.nn.MLP(8, 4, 16, 2, key=jax.random.key(0)))
    assert isinstance(found, TreePlacement)
    assert [leaf.path for leaf in found.leaves[:2]] == [".layers[0].weight", ".layers[0].bias"]


HOST = """
import os, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
import jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from tpunb.display.describe.replicas import describe_replica_values
from tpunb.display.draw.replicas.html import replicas_html
from tpunb.display.draw.replicas.text import replicas_text
sharding = NamedSharding(Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model")), P("data"))
array = jax.make_array_from_process_local_data(sharding, np.ones((8, 4), np.float32))
description = describe_replica_values(array)
assert replicas_html(description)
print(replicas_text(description))
"""


def test_parts_of_other_processes_are_drawn(tmp_path: Path) -> None:
    """Two processes have four devices each. Both draw all parts, and read their own values."""
    with socket.create_server(("localhost", 0)) as unused:
        port = unused.getsockname()[1]
    program = tmp_path / "host.py"
    program.write_text(HOST, encoding="utf-8")
    settings = {**environment(), "JAX_PLATFORMS": "cpu", "TPUNB_WIDGETS": "never"}
    hosts = [
        subprocess.Popen(
            [sys.executable, str(program), f"localhost:{port}", str(number)],
            env=settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(2)
    ]
    texts = [host.communicate(timeout=PATIENCE)[0] for host in hosts]
    for text in texts:
        assert "cut into 4 parts over data, 2 copies of each" in text, text
        assert "4 devices of these belong to other processes." in text
        assert "all 4 replicas equal" in text
    assert ", process 1" in texts[0]
    assert ", process 0" in texts[1]
