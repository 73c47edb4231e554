"""Programs whose compilation needs a custom call."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl


def factors(x):
    return jnp.linalg.svd(x), jax.lax.approx_max_k(x, 4)


def kernel(x):
    def double(read, write):
        write[...] = read[...] * 2

    return pl.pallas_call(double, out_shape=x)(x)


factors_args = kernel_args = (jax.ShapeDtypeStruct((64, 128), jnp.float32),)
