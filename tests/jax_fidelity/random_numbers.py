"""Random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_fidelity.operation import SAME, Operation, on_one_device

LAST_DIGITS = "from the same bits; the last digits differ"
REJECTED = "from the same bits; the last digits can decide that a value is drawn again"


def drawn(
    draw: Callable[[Any], Any], on_a_tpu: str = SAME, implementation: str = "threefry2x32"
) -> Operation:
    """Return the operation that draws numbers with a key."""

    def function(seed: Any) -> Any:
        return draw(jax.random.key(seed, impl=implementation))

    return on_one_device(function, np.uint32(7), on_a_tpu=on_a_tpu)


def _continuous(key: Any) -> Any:
    draws = (jax.random.normal, jax.random.exponential, jax.random.gumbel, jax.random.laplace)
    return [draw(key, (1000,)) for draw in draws]


OPERATIONS = {
    "bits, uniform, randint, bernoulli": drawn(
        lambda key: (
            jax.random.bits(key, (1000,)),
            jax.random.uniform(key, (1000,)),
            jax.random.randint(key, (1000,), 0, 50),
            jax.random.bernoulli(key, 0.3, (1000,)),
        )
    ),
    "split, fold_in": drawn(lambda key: (jax.random.split(key, 3), jax.random.fold_in(key, 5))),
    "permutation, choice": drawn(
        lambda key: (
            jax.random.permutation(key, 1000),
            jax.random.choice(key, 1000, (50,), replace=False),
        )
    ),
    "normal, exponential, gumbel, laplace": drawn(_continuous, LAST_DIGITS),
    "truncated_normal, multivariate_normal": drawn(
        lambda key: (
            jax.random.truncated_normal(key, -1.0, 2.0, (1000,)),
            jax.random.multivariate_normal(key, jnp.zeros(2), jnp.eye(2), (500,)),
        ),
        LAST_DIGITS,
    ),
    "categorical": drawn(
        lambda key: jax.random.categorical(key, jnp.arange(9.0), shape=(1000,)),
        "from the same bits; almost equal scores may change places",
    ),
    "gamma, beta, dirichlet": drawn(
        lambda key: (
            jax.random.gamma(key, 2.5, (1000,)),
            jax.random.beta(key, 2.5, 0.5, (1000,)),
            jax.random.dirichlet(key, jnp.ones(3), (300,)),
        ),
        REJECTED,
    ),
    "poisson, binomial": drawn(
        lambda key: (
            jax.random.poisson(key, 4.0, (1000,)),
            jax.random.binomial(key, 20, 0.3, (1000,)),
        ),
        REJECTED,
    ),
    "`rbg` keys": drawn(lambda key: jax.random.bits(key, (1000,)), "other bits", "rbg"),
    "`unsafe_rbg` keys": drawn(
        lambda key: jax.random.bits(key, (1000,)), "other bits", "unsafe_rbg"
    ),
}
