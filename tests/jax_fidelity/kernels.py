"""Pallas kernels. On plain CPU devices, JAX's own option interprets them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jax_fidelity.numbers import ORDER_OF_SUMS
from jax_fidelity.operation import SAME, SQUARE, Operation, mapped

ANY = getattr(pl, "ANY", None) or pltpu.ANY
WHOLE = jax.ShapeDtypeStruct((128, 128), jnp.float32)
PART = jax.ShapeDtypeStruct((16, 128), jnp.float32)
SIGNAL, WAIT = (
    getattr(pl, name, None) or getattr(pltpu, name)
    for name in ("semaphore_signal", "semaphore_wait")
)


def on_one_device(kernel: Callable[..., Any], on_a_tpu: str = SAME, **options: Any) -> Operation:
    """Return the operation that runs a kernel on the first device."""

    def run(devices: list[Any]) -> Any:
        interpret = devices[0].platform == "cpu"
        call = pl.pallas_call(kernel, out_shape=WHOLE, interpret=interpret, **options)
        return jax.jit(lambda x: call(x))(jax.device_put(SQUARE, devices[0]))

    return Operation(run, on_a_tpu)


def _double(x: Any, out: Any) -> None:
    out[...] = x[...] * 2


def _square(x: Any, out: Any, total: Any) -> None:
    total[...] = jnp.zeros_like(total)
    values = x[...].astype(jnp.bfloat16)
    total[...] += jnp.dot(values, values, preferred_element_type=jnp.float32)
    out[...] = total[...]


def _copy_in_turns(x: Any, out: Any, buffer: Any, done: Any) -> None:
    for turn in range(4):
        rows = pl.ds(turn * 32, 32)
        copy = pltpu.make_async_copy(x.at[rows], buffer.at[turn % 2], done.at[turn % 2])
        copy.start()
        copy.wait()
        out[rows, :] = buffer[turn % 2] * 2


def _signal(x: Any, out: Any, ready: Any) -> None:
    SIGNAL(ready, 2)
    WAIT(ready, 2)
    out[...] = x[...] + 1


def _to_the_right(x: Any, out: Any, send: Any, receive: Any) -> None:
    right = jax.lax.rem(jax.lax.axis_index("x") + 1, jnp.int32(8))
    copy = pltpu.make_async_remote_copy(
        src_ref=x, dst_ref=out, send_sem=send, recv_sem=receive, device_id=(right,)
    )
    copy.start()
    copy.wait()


def _remote(devices: list[Any]) -> Any:
    interpret: Any = pltpu.InterpretParams() if devices[0].platform == "cpu" else False
    call = pl.pallas_call(
        _to_the_right,
        out_shape=PART,
        in_specs=[pl.BlockSpec(memory_space=ANY)],
        out_specs=pl.BlockSpec(memory_space=ANY),
        scratch_shapes=[pltpu.SemaphoreType.DMA] * 2,
        interpret=interpret,
    )
    mesh = Mesh(np.array(devices), ("x",))
    return mapped(lambda x: call(x), mesh)(jax.device_put(SQUARE, NamedSharding(mesh, P("x"))))


def _random_bits(x: Any, out: Any) -> None:
    pltpu.prng_seed(7)
    bits = pltpu.bitcast(pltpu.prng_random_bits((128, 128)), jnp.int32)
    out[...] = x[...] + (bits % 10).astype(jnp.float32)


UNLESS_RACING = "the same, unless copies race: the virtual TPU does not show races"

BLOCK = pl.BlockSpec((32, 128), lambda i: (i, 0))

OPERATIONS = {
    "Pallas: blocks and a grid": on_one_device(
        _double, grid=(4,), in_specs=[BLOCK], out_specs=BLOCK
    ),
    "Pallas: scratch memory": on_one_device(
        _square, ORDER_OF_SUMS, scratch_shapes=[pltpu.VMEM((128, 128), jnp.float32)]
    ),
    "Pallas: copies (DMA)": on_one_device(
        _copy_in_turns,
        UNLESS_RACING,
        in_specs=[pl.BlockSpec(memory_space=ANY)],
        scratch_shapes=[pltpu.VMEM((2, 32, 128), jnp.float32), pltpu.SemaphoreType.DMA((2,))],
    ),
    "Pallas: semaphores": on_one_device(
        _signal,
        scratch_shapes=[pltpu.SemaphoreType.REGULAR],
    ),
    "Pallas: copies to other devices": Operation(_remote, UNLESS_RACING),
    "Pallas: `prng_random_bits`": on_one_device(_random_bits, "it runs"),
}
