"""Claims about Pallas kernels."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas

from tpunb.jax.verification.jax_suite import JaxSuite
from tpunb.jax.verification.refusals import known_error
from tpunb.verification.suite import Outcome, close


class Kernels(JaxSuite):
    """Claims about Pallas kernels."""

    group = "JAX kernels"

    def a_kernel(self) -> Outcome:
        """Check that a kernel with a grid computes what `jax.numpy` computes."""
        x = np.arange(64 * 256, dtype=np.float32).reshape(64, 256)
        return close(x * 2, np.asarray(_doubled(x, (8, 128))))

    @known_error("59", judged=True)
    def a_kernel_too_large_for_VMEM(self) -> Any:
        """Check that a kernel whose blocks exceed the VMEM is refused."""
        x = jnp.ones((16_384, 4096), jnp.float32)  # larger than VMEM, which is refused early
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.jit(pallas.pallas_call(_double, out_shape=shape))(x)

    @known_error("61")
    def blocks_that_do_not_fill_tiles(self) -> Any:
        """Check that a kernel whose blocks do not fill tiles is refused."""
        x = jnp.ones((64, 200), jnp.float32)
        return _doubled(x, (8, 100))

    @known_error("120")
    def a_sort_in_a_kernel(self) -> Any:
        """Check that an operation that kernels do not have is refused."""

        def kernel(x: Any, out: Any) -> None:
            out[...] = jnp.sort(x[...])

        shape = jax.ShapeDtypeStruct((8, 128), jnp.float32)
        return jax.jit(pallas.pallas_call(kernel, out_shape=shape))(jnp.ones((8, 128)))


def _double(x: Any, out: Any) -> None:
    out[...] = x[...] * 2


def _doubled(x: Any, size: tuple[int, int]) -> Any:
    """Double an array in a kernel with a grid of 8 by 2 blocks."""
    block = pallas.BlockSpec(size, lambda row, column: (row, column))
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.jit(
        pallas.pallas_call(_double, grid=(8, 2), in_specs=[block], out_specs=block, out_shape=shape)
    )(x)
