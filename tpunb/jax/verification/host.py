"""Claims about programs that call the host, and about branches on the platform."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tpunb.jax.verification.jax_suite import JaxSuite
from tpunb.verification.suite import Outcome, close


class Host(JaxSuite):
    """Claims about programs that call the host."""

    group = "JAX host"

    def pure_callback(self) -> Outcome:
        """Check that `jax.pure_callback` runs a function of the host within a program."""
        shape = jax.ShapeDtypeStruct((4,), jnp.float32)

        def step(x: Any) -> Any:
            return jax.pure_callback(lambda x: np.asarray(x) * 3, shape, x) + 1

        return close(np.full(4, 4.0), np.asarray(jax.jit(step)(jnp.ones(4))))

    def debug_callback(self) -> Outcome:
        """Check that `jax.debug.callback` gets the values of the program."""
        seen: list[float] = []

        def step(x: Any) -> Any:
            jax.debug.callback(lambda total: seen.append(float(total)), x.sum())
            return x + 1

        jax.block_until_ready(jax.jit(step)(jnp.ones(4)))
        jax.effects_barrier()
        return close([4.0], seen)

    def branches_of_the_platform(self) -> Outcome:
        """Check that `jax.lax.platform_dependent` takes the branch for TPUs."""
        choose = jax.jit(
            lambda x: jax.lax.platform_dependent(x, tpu=lambda x: x + 1, cpu=lambda x: x - 1)
        )
        return close(np.full(4, 2.0), np.asarray(choose(jnp.ones(4))))
