"""Products, sums, orders and places."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jax_fidelity.operation import SQUARE, on_one_device

ORDER_OF_SUMS = "sums in another order, so the last digits differ"
ROUNDED = (
    "operands are rounded to bfloat16, unless you set `precision` or `jax.default_matmul_precision`"
)
ANOTHER_KERNEL = "another kernel, so the last digits differ"

SMALL_INTEGERS = (SQUARE * 2).astype("int8")

OPERATIONS = {
    "float32 product": on_one_device(lambda x: x @ x, on_a_tpu=ROUNDED),
    'float32 product, `precision="highest"`': on_one_device(
        lambda x: jnp.matmul(x, x, precision="highest"), on_a_tpu=ORDER_OF_SUMS
    ),
    "bfloat16 product": on_one_device(
        lambda x: x @ x, SQUARE.astype(jnp.bfloat16), on_a_tpu=ORDER_OF_SUMS
    ),
    "float8 product": on_one_device(
        lambda x: jnp.matmul(x, x, preferred_element_type=jnp.float32),
        SQUARE.astype(jnp.float8_e4m3fn),
        on_a_tpu=ORDER_OF_SUMS,
    ),
    "int8 product": on_one_device(
        lambda x: jnp.matmul(x, x, preferred_element_type=jnp.int32), SMALL_INTEGERS
    ),
    "int4 arrays": on_one_device(
        lambda x: ((x[3:] * x[:-3]).astype("int8"), x.T.astype("int8") @ x.astype("int8")),
        SMALL_INTEGERS.astype(jnp.int4),
    ),
    "int4 product": on_one_device(
        lambda x: jnp.matmul(x, x, preferred_element_type=jnp.int32),
        SMALL_INTEGERS.astype(jnp.int4),
        on_a_tpu="it runs",
    ),
    "convolution": on_one_device(
        lambda x: jax.lax.conv(x[None, None], x[None, None, :3, :3], (1, 1), "SAME"),
        on_a_tpu=ROUNDED,
    ),
    "attention": on_one_device(
        lambda x: jax.nn.dot_product_attention(*[x.reshape(1, 64, 4, 64)] * 3), on_a_tpu=ROUNDED
    ),
    "sum, mean, variance": on_one_device(
        lambda x: (x.sum(), x.mean(0), x.var(1)), on_a_tpu=ORDER_OF_SUMS
    ),
    "cumulative sum": on_one_device(lambda x: jnp.cumsum(x, axis=1), on_a_tpu=ORDER_OF_SUMS),
    "exp, tanh, logistic, erf": on_one_device(
        lambda x: (jnp.exp(x), jnp.tanh(x), jax.nn.sigmoid(x), jax.scipy.special.erf(x)),
        on_a_tpu=ANOTHER_KERNEL,
    ),
    "FFT": on_one_device(lambda x: jnp.fft.fft2(x), on_a_tpu=ANOTHER_KERNEL),
    "sort, argsort": on_one_device(lambda x: (jnp.sort(x), jnp.argsort(x, axis=0))),
    "top_k": on_one_device(lambda x: jax.lax.top_k(x, 5)),
    "approx_max_k": on_one_device(
        lambda x: jax.lax.approx_max_k(x, 5),
        on_a_tpu="some of the largest values may be missing (`recall_target`); a CPU finds all",
    ),
    "gather": on_one_device(lambda x: (x[jnp.array([3, 1, 4])], jnp.take(x, jnp.array([200])))),
    "scatter": on_one_device(
        lambda x: x.at[jnp.array([3, 1, 3])].add(1.5),
        on_a_tpu="the order of sums in a repeated place is not defined",
    ),
    "segment sum": on_one_device(
        lambda x: jax.ops.segment_sum(x, jnp.arange(128) // 8, 16), on_a_tpu=ORDER_OF_SUMS
    ),
}
