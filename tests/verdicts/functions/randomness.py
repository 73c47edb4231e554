"""Random numbers."""

from __future__ import annotations

import tensorflow as tf

from verdicts.specs import F, L, entries, with_state

X = F(8, 16)
random = tf.random


def generator() -> tf.random.Generator:
    return random.Generator.from_seed(1)


def drawn(how: str) -> tuple[object, ...]:
    return with_state(generator, lambda one: getattr(one, how)([8])), *()


FUNCTIONS = entries(
    normal=(lambda: random.normal([8]),),
    uniform=(lambda: random.uniform([8]),),
    uniform_integers=(lambda: random.uniform([8], 0, 10, tf.int32),),
    uniform_long=(lambda: random.uniform([8], 0, 10, tf.int64),),
    uniform_bfloat16=(lambda: random.uniform([8], dtype=tf.bfloat16),),
    uniform_float64=(lambda: random.uniform([8], dtype=tf.float64),),
    truncated=(lambda: random.truncated_normal([8]),),
    truncated_float64=(lambda: random.truncated_normal([8], dtype=tf.float64),),
    gamma=(lambda x: random.gamma([2], x), F(4)),
    poisson=(lambda x: random.poisson([2], x), F(4)),
    categorical=(lambda x: random.categorical(x, 3), X),
    shuffle=(random.shuffle, X),
    stateless_normal=(lambda: random.stateless_normal([8], [1, 2]),),
    stateless_float64=(lambda: random.stateless_normal([8], [1, 2], dtype=tf.float64),),
    stateless_uniform=(lambda s: random.stateless_uniform([8], s), L(2)),
    stateless_integers=(lambda: random.stateless_uniform([8], [1, 2], 0, 10, tf.int32),),
    stateless_full_range=(lambda: random.stateless_uniform([8], [1, 2], None, None, tf.int64),),
    stateless_truncated=(lambda: random.stateless_truncated_normal([8], [1, 2]),),
    stateless_categorical=(lambda x: random.stateless_categorical(x, 3, [1, 2]), X),
    stateless_gamma=(lambda x: random.stateless_gamma([2, 4], [1, 2], x), F(4)),
    stateless_poisson=(lambda x: random.stateless_poisson([2, 4], [1, 2], x), F(4)),
    stateless_binomial=(lambda x: random.stateless_binomial([2, 4], [1, 2], 10.0, x), F(4)),
    stateless_threefry=(lambda: random.stateless_normal([8], [1, 2], alg="threefry"),),
    stateless_split=(lambda: random.experimental.stateless_split([1, 2], 4),),
    stateless_shuffle=(lambda x: random.experimental.stateless_shuffle(x, [1, 2]), X),
    generator_normal=drawn("normal"),
    generator_uniform=drawn("uniform"),
    generator_truncated=drawn("truncated_normal"),
    generator_full_range=drawn("uniform_full_int"),
    fixed_seed=(lambda: random.normal([8], seed=3),),
    gumbel=(lambda x: x - tf.math.log(-tf.math.log(random.uniform([8, 16], 1e-6, 1.0))), X),
)
