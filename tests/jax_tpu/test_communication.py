"""The communication of programs of JAX, as the TPU's compiler has it."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import tpunb
from tpunb.tpu.compiled_program import Communication, Transfer

pytestmark = pytest.mark.usefixtures("libtpu")

MESH = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
FULL = 128 * 256 * 4


def array(*spec: Any, shape: tuple[int, ...] = (128, 256), mesh: Any = MESH) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*spec)))


def communication_of(fn: Any, *args: Any, tpu: str = "v5e-8", **options: Any) -> Communication:
    found = tpunb.compile(fn, *args, tpu=tpu, **options).communication
    assert found is not None
    assert [(axis.name, axis.size) for axis in found.mesh] == [("data", 4), ("model", 2)]
    return found


def along(found: Communication, transfer: Transfer) -> tuple[str, ...]:
    return found.groups[transfer.group].axes


def mapped(fn: Any, *out: str) -> Any:
    return jax.shard_map(
        fn, mesh=MESH, in_specs=P("data", "model"), out_specs=P(*out), check_vma=False
    )


@pytest.mark.parametrize("axes", ["data", "model", ("data", "model")])
def test_a_sum_is_along_its_axes(axes: Any) -> None:
    def summed(x: Any) -> Any:
        return jax.lax.psum(x, axes)

    found = communication_of(mapped(summed), array("data", "model"))
    (transfer,) = found.transfers
    names = (axes,) if isinstance(axes, str) else axes
    assert (transfer.kind, along(found, transfer)) == ("all-reduce", names)
    assert transfer.bytes == FULL // 8
    cores = {"data": 4, "model": 2}
    group = cores[axes] if isinstance(axes, str) else 8
    assert transfer.sent == pytest.approx(2 * (group - 1) / group * transfer.bytes, abs=1)
    assert transfer.line is not None
    assert transfer.line.line == summed.__code__.co_firstlineno + 1
    assert transfer.seconds > 0
    assert transfer.fraction is None


@pytest.mark.parametrize("axis", ["data", "model"])
def test_a_permutation_is_along_its_axis(axis: str) -> None:
    size = {"data": 4, "model": 2}[axis]
    around = [(place, (place + 1) % size) for place in range(size)]
    moved = mapped(lambda x: jax.lax.ppermute(x, axis, around), "data", "model")
    found = communication_of(moved, array("data", "model"))
    (transfer,) = found.transfers
    assert (transfer.kind, along(found, transfer)) == ("collective-permute", (axis,))
    assert transfer.sent == transfer.bytes == FULL // 8


def test_an_exchange_and_a_gather() -> None:
    def exchanged(x: Any) -> Any:
        x = jax.lax.all_to_all(x, "data", 0, 1, tiled=True)
        return jax.lax.all_gather(x, "model", axis=1, tiled=True)

    found = communication_of(mapped(exchanged, "data"), array("data", "model"))
    kinds = {transfer.kind: along(found, transfer) for transfer in found.transfers}
    assert kinds == {"all-to-all": ("data",), "all-gather": ("model",)}


def test_parts_of_an_axis_are_groups_without_a_name() -> None:
    halves = [[0, 1], [2, 3]]

    def summed(x: Any) -> Any:
        return jax.lax.psum(x, "data", axis_index_groups=halves)

    found = communication_of(mapped(summed), array("data", "model"))
    (group,) = found.groups
    assert group.axes == ()
    assert {frozenset(each) for each in group.groups} == {
        frozenset(each) for each in ([0, 2], [4, 6], [1, 3], [5, 7])
    }


def test_a_loops_collective_counts_its_runs() -> None:
    def summed(x: Any) -> Any:
        def turn(_: int, y: Any) -> Any:
            return jnp.sin(jax.lax.psum(y, "model"))

        return jax.lax.fori_loop(0, 7, turn, x)

    found = communication_of(mapped(summed, "data"), array("data", "model"))
    (transfer,) = found.transfers
    assert (transfer.count, transfer.runs) == (1, 7.0)
    assert transfer.sent == 7 * FULL // 8


def step(params: Any, batch: Any) -> Any:
    def loss(params: Any) -> Any:
        def layer(h: Any, kernel: Any) -> Any:
            return jax.nn.relu(h @ kernel), None

        h, _ = jax.lax.scan(layer, batch, params)
        return (h.astype(jnp.float32) ** 2).mean()

    return jax.tree.map(lambda value, slope: value - 0.1 * slope, params, jax.grad(loss)(params))


@functools.cache
def sharded_step() -> tuple[Any, Communication]:
    kernels = array(None, "data", "model", shape=(4, 1024, 1024))
    program = tpunb.compile(
        jax.jit(step, donate_argnums=0),
        kernels,
        array("data", shape=(512, 1024)),
        tpu="v5e-8",
        speed=True,
    )
    assert program.communication is not None
    return program, program.communication


def test_each_gather_and_scatter_of_a_step_is_counted_once() -> None:
    """libtpu writes a gather beside other work three times, and a scatter as an all-reduce."""
    program, found = sharded_step()
    whole = {"all-gather": 0, "reduce-scatter": 0}
    for transfer in found.transfers:
        if along(found, transfer) == ("data",) and transfer.kind in whole:
            whole[transfer.kind] += round(transfer.runs)
    # Each of the four kernels is gathered for its two passes, and its gradient is scattered.
    assert whole == {"all-gather": 8, "reduce-scatter": 4}
    assert sum(each.count for each in program.collectives) == sum(
        transfer.count for transfer in found.transfers
    )


def test_shares_add_up_to_the_estimates_share() -> None:
    program, found = sharded_step()
    shares = [transfer.fraction or 0.0 for transfer in found.transfers]
    assert sum(shares) == pytest.approx(program.time.collectives_fraction)
    assert sum(transfer.seconds for transfer in found.transfers) == pytest.approx(
        program.time.collectives_fraction * program.time.estimate
    )
    assert shares == sorted(shares, reverse=True)


def test_the_step_is_drawn_with_its_axes_and_lines() -> None:
    program, _ = sharded_step()
    text, html = str(program), program._repr_html_()
    assert "along data: (0, 0) (1, 0) (2, 0) (3, 0)  (0, 1) (1, 1) (2, 1) (3, 1)" in text
    assert "along data · line" in text
    assert "cores of the same colour exchange data along data" in html
    assert "of the step." in html


def test_a_program_without_collectives_has_no_communication() -> None:
    program = tpunb.compile(lambda x: x * 2, array("data", "model"), tpu="v5e-8")
    assert program.communication is None
    assert "Communication" not in program._repr_html_()


def test_a_program_of_pmap_has_its_axis_at_most(connect: Any) -> None:
    connection = connect("v5e-4", judge="wait")
    jax.pmap(lambda x: jax.lax.pmean(x * 17, "i"), axis_name="i")(jnp.arange(4.0))
    (program,) = connection.programs
    found = program.communication
    # Since JAX 0.12, jax.pmap makes a mesh.
    names = tuple(axis.name for axis in found.mesh)
    assert names in ((), ("i",))
    assert (found.groups[0].known, found.groups[0].groups, found.groups[0].axes) == (
        True,
        (),
        names,
    )
    assert ("along i" if names else "all 4 cores") in str(program)


def test_an_argument_that_is_gathered_is_named() -> None:
    def slope(params: Any, x: Any) -> Any:
        return jax.grad(lambda params: jnp.mean((x @ params["w"]) ** 2))(params)

    kernel = array("data", "model", shape=(1024, 1024))
    program = tpunb.compile(slope, {"w": kernel}, array("data", shape=(512, 1024)), tpu="v5e-8")
    assert program.communication is not None
    moved = {each.argument: each.kind for each in program.communication.transfers if each.argument}
    assert moved == {"params['w']": "all-gather"}
    assert "all-gather of 1 MiB · along data · argument params['w']" in str(program)
    assert ">argument params[&#x27;w&#x27;]<" in program._repr_html_()


def test_loops_of_unknown_length_are_said() -> None:
    def halved(x: Any) -> Any:
        def is_large(state: Any) -> Any:
            return jnp.abs(state).sum() > 1

        return jax.lax.while_loop(is_large, lambda y: jax.lax.psum(y, "data") / 8, x)

    program = tpunb.compile(mapped(halved, "data"), array("data", "model"), tpu="v5e-8")
    assert program.communication is not None
    assert "Collectives in loops of unknown length count as one run." in program.notes
