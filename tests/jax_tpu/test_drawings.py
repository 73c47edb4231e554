"""Drawings of collectives and shardings with the values of JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from support.shell import Notebook

import tpunb
from tpunb.errors import TpunbError

SETUP = """\
import jax, jax.numpy as jnp, tpunb
%load_ext tpunb
%tpu_connect --simulate v5e-8 --framework jax --judge off"""

CELL = """%%tpu_run
row = jnp.arange(8) + 10 * replica_id
exchanged = ctx.all_to_all(row)
largest = ctx.all_reduce("max", row)
total = jax.lax.psum(row, "replica")
moved = ctx.ppermute(row, [(0, 1)])
parts = ctx.all_gather(row)
"""


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    with Notebook(tmp_path_factory.mktemp("ipython"), SETUP) as notebook:
        yield notebook


def test_a_cell_of_jax_is_drawn(shell: Notebook) -> None:
    shell.good("%tpu_connect --simulate v5e-8 --framework jax --judge off")
    shell.good(CELL)
    rows = np.arange(8) + 10 * np.arange(8)[:, None]
    row = shell.names["row"]
    for operation, name, options in (
        ("all_to_all", "exchanged", {}),
        ("pmax", "largest", {}),
        ("psum", "total", {}),
        ("ppermute", "moved", {"pairs": [(0, 1)]}),
        ("all_gather", "parts", {}),
    ):
        effect = tpunb.draw.collective(operation, row, **options).description
        assert np.array_equal([held.values for held in effect.before], rows)
        own = [np.asarray(part) for part in shell.names[name].values]
        assert np.array_equal([held.values for held in effect.after], own)


def test_an_array_is_taken_in_the_order_of_its_mesh(connect: Callable[..., Any]) -> None:
    connect()
    devices = np.array(jax.devices()[:4])[::-1]
    array = jax.device_put(jnp.arange(4), NamedSharding(Mesh(devices, ("x",)), P("x")))
    effect = tpunb.draw.collective("all_gather", array).description
    assert effect.after[0].values.tolist() == [0, 1, 2, 3]


def test_a_mesh_of_jax_is_drawn_with_its_devices(connect: Callable[..., Any]) -> None:
    connect()
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    for drawn in (mesh, mesh.abstract_mesh, {"data": 4, "model": 2}):
        (_, placement), (_, whole) = tpunb.draw.sharding(
            (8, 4), P("data"), P(), mesh=drawn, dtype=jnp.bfloat16
        ).description
        array = jax.device_put(jnp.ones((8, 4), jnp.bfloat16), NamedSharding(mesh, P("data")))
        said = {holder.position: part.ranges for part in placement.parts for holder in part.holders}
        for shard in array.addressable_shards:
            (position,) = np.argwhere(mesh.devices == shard.device).tolist()
            ranges = [
                index.indices(size)[:2] for index, size in zip(shard.index, (8, 4), strict=True)
            ]
            assert said[tuple(position)] == tuple(ranges)
        assert (placement.bytes, len(whole.parts)) == (64, 1)


def test_an_entry_that_is_no_name_is_refused() -> None:
    with pytest.raises(TpunbError, match="no axis"):
        tpunb.draw.sharding((8, 4), P(P.UNCONSTRAINED), mesh={"data": 4})
