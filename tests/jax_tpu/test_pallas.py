"""Pallas kernels on a virtual TPU are interpreted, and the compiler judges the kernel itself."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from tpunb.errors import TpuWarning
from tpunb.errors.explain import explain
from tpunb.jax.virtual import kernels

Connect = Callable[..., Any]

ANY = getattr(pl, "ANY", None) or pltpu.ANY
ROWS = jax.ShapeDtypeStruct((8, 128), jnp.float32)
SIGNAL, WAIT, BARRIER = (
    getattr(pl, name, None) or getattr(pltpu, name)
    for name in ("semaphore_signal", "semaphore_wait", "get_barrier_semaphore")
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of names that moved


def double(x: Any, out: Any) -> None:
    out[...] = x[...] * 2


def product(x: Any, y: Any, out: Any, total: Any) -> None:
    @pl.when(pl.program_id(2) == 0)
    def _() -> None:
        total[...] = jnp.zeros_like(total)

    total[...] += jnp.dot(x[...], y[...], preferred_element_type=jnp.float32)

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _() -> None:
        out[...] = total[...]


def test_blocks_and_scratch(connect: Connect) -> None:
    connect("v5e-1")
    x = np.random.default_rng(0).normal(size=(256, 256)).astype("f")
    call = pl.pallas_call(
        product,
        grid=(2, 2, 2),
        in_specs=[
            pl.BlockSpec((128, 128), lambda i, j, k: (i, k)),
            pl.BlockSpec((128, 128), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((128, 128), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((256, 256), jnp.float32),
        scratch_shapes=[pltpu.VMEM((128, 128), jnp.float32)],
    )
    np.testing.assert_allclose(jax.jit(call)(x, x), x @ x, atol=1e-3)


def test_copies_and_semaphores(connect: Connect) -> None:
    connect("v5e-1")

    def copy_in_turns(x: Any, out: Any, buffer: Any, done: Any) -> None:
        for turn in range(4):
            copy = pltpu.make_async_copy(
                x.at[pl.ds(turn * 8, 8)], buffer.at[turn % 2], done.at[turn % 2]
            )
            copy.start()
            copy.wait()
            out[pl.ds(turn * 8, 8), :] = buffer[turn % 2] * 2

    x = np.arange(32 * 128.0, dtype="f").reshape(32, 128)
    call = pl.pallas_call(
        copy_in_turns,
        out_shape=jax.ShapeDtypeStruct((32, 128), jnp.float32),
        in_specs=[pl.BlockSpec(memory_space=ANY)],
        scratch_shapes=[pltpu.VMEM((2, 8, 128), jnp.float32), pltpu.SemaphoreType.DMA((2,))],
    )
    np.testing.assert_array_equal(jax.jit(call)(x), 2 * x)


def to_the_right(x: Any, out: Any, send: Any, receive: Any) -> None:
    right = jax.lax.rem(jax.lax.axis_index("x") + 1, jnp.int32(4))
    copy = pltpu.make_async_remote_copy(
        src_ref=x, dst_ref=out, send_sem=send, recv_sem=receive, device_id=(right,)
    )
    copy.start()
    copy.wait()


def signal_to_the_right(x: Any, out: Any) -> None:
    barrier = BARRIER()
    right = jax.lax.rem(jax.lax.axis_index("x") + 1, jnp.int32(4))
    SIGNAL(barrier, 1, device_id=(right,))
    WAIT(barrier, 1)
    out[...] = x[...] + 1


@pytest.mark.parametrize("judge", ["off", "wait"])
def test_copies_and_signals_between_devices(connect: Connect, judge: str, libtpu: None) -> None:
    connection = connect("v5e-4", judge=judge)
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    x = np.arange(32 * 128.0, dtype="f").reshape(32, 128)
    semaphores = [pltpu.SemaphoreType.DMA] * 2

    def mapped(kernel: Any, **options: Any) -> Any:
        call = pl.pallas_call(kernel, out_shape=ROWS, **options)
        specs = {"in_specs": P("x"), "out_specs": P("x"), "check_vma": False}
        return jax.jit(jax.shard_map(call, mesh=mesh, **specs))

    any_place = {"in_specs": [pl.BlockSpec(memory_space=ANY)], "scratch_shapes": semaphores}
    moved = mapped(to_the_right, out_specs=pl.BlockSpec(memory_space=ANY), **any_place)(x)
    np.testing.assert_array_equal(moved, np.roll(x, 8, axis=0))
    settings = pltpu.CompilerParams(collective_id=0)
    signalled = mapped(signal_to_the_right, compiler_params=settings)(x)
    np.testing.assert_array_equal(signalled, x + 1)
    assert [program.ok for program in connection.programs] == [True] * (2 * (judge == "wait"))


def test_the_compiler_judges_the_kernel(connect: Connect, libtpu: None) -> None:
    connection = connect("v5e-1", judge="wait")
    call = jax.jit(pl.pallas_call(double, out_shape=ROWS))
    np.testing.assert_array_equal(call(np.ones((8, 128), "f")), np.full((8, 128), 2.0))
    (program,) = connection.programs
    assert "tpu_custom_call" in program.as_text()


def test_a_kernel_that_a_tpu_refuses_does_not_run(connect: Connect, libtpu: None) -> None:
    connect("v5e-1", judge="wait")

    def too_large(x: Any, out: Any, scratch: Any) -> None:
        scratch[...] = jnp.zeros_like(scratch)
        out[...] = x[...] + scratch[:8, :]

    call = pl.pallas_call(
        too_large, out_shape=ROWS, scratch_shapes=[pltpu.VMEM((2**20, 128), jnp.float32)]
    )
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"(?i)vmem"):
        jax.jit(call)(np.ones((8, 128), "f"))


def test_a_kernel_that_the_user_interprets_is_judged_as_written(
    connect: Connect, libtpu: None
) -> None:
    connection = connect("v5e-1", judge="wait")
    call = jax.jit(pl.pallas_call(double, out_shape=ROWS, interpret=True))
    call(np.ones((8, 128), "f"))
    (program,) = connection.programs
    assert "tpu_custom_call" not in program.as_text()


def test_a_kernel_on_a_mesh_of_cores(connect: Connect, libtpu: None) -> None:
    if not hasattr(pl, "kernel"):
        pytest.skip("this JAX has no pl.kernel")
    connection = connect("v5e-1", judge="wait")
    x = np.arange(8 * 128.0, dtype="f").reshape(8, 128)
    cores = pltpu.create_tensorcore_mesh("core")
    named = "out_type" if "out_type" in inspect.signature(pl.kernel).parameters else "out_shape"
    copy = pl.kernel(lambda a, b: pltpu.sync_copy(a, b), mesh=cores, **{named: ROWS})
    np.testing.assert_array_equal(jax.jit(lambda x: copy(x) + 1)(x), x + 1)
    assert "tpu_custom_call" in connection.programs[-1].as_text()


def test_a_core_map_writes_what_it_refers_to(connect: Connect, libtpu: None) -> None:
    connection = connect("v5e-1", judge="wait")
    x = np.arange(8 * 128.0, dtype="f").reshape(8, 128)
    cores = pltpu.create_tensorcore_mesh("core")

    @jax.jit
    def copied(x: Any) -> Any:
        @pl.run_state
        def run(refs: Any) -> None:
            @pl.core_map(cores)
            def _() -> None:
                pltpu.sync_copy(*refs)

        return run((x, jnp.zeros_like(x)))[1]

    np.testing.assert_array_equal(copied(x), x)
    assert "tpu_custom_call" in connection.programs[-1].as_text()


@pytest.mark.parametrize("judge", ["off", "wait"])
def test_a_kernel_that_the_interpreter_cannot_run_is_judged(
    connect: Connect, judge: str, libtpu: None
) -> None:
    if not hasattr(pl, "BoundedSlice"):
        pytest.skip("this JAX has no pl.BoundedSlice")
    connection = connect("v5e-1", judge=judge)

    def rows_of_other_sizes(x: Any, starts: Any, out: Any, scratch: Any) -> None:
        pltpu.sync_copy(starts, scratch)

        def rows(i: Any) -> Any:
            return pl.ds(scratch[i, 0], scratch[i, 1] - scratch[i, 0]), 0

        def copy(a: Any, b: Any) -> None:
            b[...] = a[...]

        spec = pl.BlockSpec((pl.BoundedSlice(8), 128), rows)
        pltpu.emit_pipeline(copy, grid=(4,), in_specs=[spec], out_specs=spec)(x, out)

    anywhere = pl.BlockSpec(memory_space=ANY)
    call = pl.pallas_call(
        rows_of_other_sizes,
        in_specs=[anywhere] * 2,
        out_specs=anywhere,
        out_shape=ROWS,
        scratch_shapes=(pltpu.SMEM((4, 2), jnp.int32),),
    )

    def step(x: Any, starts: Any) -> Any:
        return call(x, starts).sum()

    starts = np.array([[0, 2], [2, 3], [3, 5], [5, 8]], np.int32)
    for _ in range(2):
        with pytest.raises(NotImplementedError, match="cannot run step") as refused:
            jax.jit(step)(jnp.ones((8, 128)), starts)
        assert explain(refused.value) is None  # it is no mistake of the user
        assert ("compiler takes it" in str(refused.value)) == (judge == "wait")
    assert [program.ok for program in connection.programs] == [True] * (judge == "wait")


def test_a_mistake_in_a_kernel_is_the_users(connect: Connect, libtpu: None) -> None:
    connect("v5e-1", judge="wait")

    def bits(x: Any, out: Any) -> None:  # neither the interpreter nor a TPU takes it
        out[...] = jnp.linalg.eigvalsh(x[:8, :8]).sum() + x[...]

    with pytest.raises(Exception, match="eigh") as refused:
        jax.jit(pl.pallas_call(bits, out_shape=ROWS))(jnp.ones((8, 128)))
    assert "cannot run" not in str(refused.value)


@pytest.mark.parametrize("large", [False, True])
def test_a_large_grid_is_announced_before_it_runs(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    connect("v5e-1")
    monkeypatch.setattr(kernels, "_MUCH_MOVED", 4 * (2 + 2) * 8 * 128 * 4 + (not large))
    x = np.ones((16, 128), "f")
    block = pl.BlockSpec((4, 128), lambda i: (i, 0))
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    call = pl.pallas_call(double, grid=(4,), in_specs=[block], out_specs=block, out_shape=out)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", TpuWarning)
        np.testing.assert_array_equal(jax.jit(call)(x), 2 * x)
    assert ["a grid of 4 steps" in str(each.message) for each in said] == [True] * large
