"""Functions of many kinds, with what libtpu says of each: compiles, or the rule that it breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

X = tf.TensorSpec([8, 16])
SQUARE = tf.TensorSpec([16, 16])
IMAGES = tf.TensorSpec([4, 8, 8, 3])
IDS = tf.TensorSpec([8], tf.int32)
LONG = tf.TensorSpec([16, 16], tf.int64)
DOUBLE = tf.TensorSpec([16, 16], tf.float64)

CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {}


def case(*args: Any, refused: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Lists a function, with its arguments and the rule that it breaks."""

    def add(fn: Callable[..., Any]) -> Callable[..., Any]:
        CASES[fn.__name__] = fn, args, refused
        return fn

    return add


def gradient(fn: Callable[[Any], Any], x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = fn(x)
    return tape.gradient(y, x)


@case(X, tf.TensorSpec([16, 4]))
def dense(x: Any, w: Any) -> Any:
    return tf.nn.softmax(tf.nn.relu(x @ w))


@case(IMAGES, tf.TensorSpec([3, 3, 3, 8]))
def convolution(x: Any, w: Any) -> Any:
    y = tf.nn.conv2d(x, w, 1, "SAME")
    return tf.gradients(tf.nn.max_pool2d(y, 2, 2, "VALID"), [x, w])


@case(tf.TensorSpec([2, 4, 16, 8]))
def attention(x: Any) -> Any:
    weights = tf.nn.softmax(tf.einsum("bhqd,bhkd->bhqk", x, x) / 4.0)
    return tf.einsum("bhqk,bhkd->bhqd", weights, x)


@case(tf.TensorSpec([8, 5, 16]), SQUARE)
def recurrent(x: Any, w: Any) -> Any:
    state = tf.zeros([8, 16])
    for step in tf.range(5):
        state = tf.tanh(x[:, step] + state @ w)
    return state


@case(X, IDS)
def scatter(x: Any, ids: Any) -> Any:
    return tf.math.unsorted_segment_sum(x, ids, 8), tf.tensor_scatter_nd_add(x, ids[:, None], x)


@case(X)
def sort(x: Any) -> Any:
    return tf.sort(x), tf.argsort(x), tf.math.top_k(x, 3)


@case(SQUARE)
def linear_algebra(x: Any) -> Any:
    spd = x @ tf.transpose(x) + tf.eye(16)
    return tf.linalg.cholesky(spd), tf.linalg.inv(spd), tf.linalg.qr(x)


@case(LONG, refused="x64-op")
def product_of_long_integers(x: Any) -> Any:
    return x @ x


@case(tf.TensorSpec([2, 4, 4], tf.int64), refused="x64-op")
def einsum_of_long_integers(x: Any) -> Any:
    return tf.einsum("bij,bjk->bik", x, x)


@case(LONG)
def sums_of_long_integers(x: Any) -> Any:
    return tf.reduce_sum(x * x + 1), tf.cumsum(x), x // 3


@case(DOUBLE)
def product_in_float64(x: Any) -> Any:
    return x @ x


@case(DOUBLE)
def decompositions_in_float64(x: Any) -> Any:
    return tf.linalg.cholesky(x @ tf.transpose(x) + tf.eye(16, dtype=tf.float64))


@case(tf.TensorSpec([2, 8, 8, 1], tf.float64), refused="x64-op")
def max_pool_gradient_in_float64(x: Any) -> Any:
    return gradient(lambda one: tf.nn.max_pool2d(one, 2, 2, "VALID"), x)


@case(refused="x64-op")
def random_in_float64() -> Any:
    return tf.random.normal([8], dtype=tf.float64)


@case()
def random_in_float32() -> Any:
    return tf.random.normal([8]), tf.random.stateless_uniform([8], [1, 2])


@case(X, refused="unsupported-type")
def complex128_inside(x: Any) -> Any:
    return tf.cast(tf.abs(tf.cast(x, tf.complex128) * 1j), tf.float32)


@case(X)
def complex64(x: Any) -> Any:
    return tf.abs(tf.signal.fft(tf.cast(x, tf.complex64)))


@case(X)
def masked(x: Any) -> Any:
    return tf.reduce_sum(tf.boolean_mask(x, x > 0))


@case(X, tf.TensorSpec([], tf.int32))
def sliced_by_data(x: Any, n: Any) -> Any:
    return tf.reduce_sum(x[:n])


@case(X, refused="unsupported-type")
def words(x: Any) -> Any:
    del x
    return tf.constant("text")


@case(X, refused="unsupported-op")
def printed(x: Any) -> Any:
    tf.print(x, output_stream="file:///dev/null")
    return x * 2.0


@case(X, refused="list-size")
def growing(x: Any) -> Any:
    array = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
    for i in tf.range(3):
        array = array.write(i, x)
    return array.stack()


@case(X, refused="constant-size")
def counted_by_data(x: Any) -> Any:
    return tf.reduce_sum(tf.range(tf.cast(x[0, 0], tf.int32) + 2))


@case(X)
def branches(x: Any) -> Any:
    return tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2.0, lambda: tf.nn.relu(x))


@case(X)
def open_loop(x: Any) -> Any:
    while tf.reduce_sum(x) < 100.0:
        x = x * 2.0
    return x


@case(tf.TensorSpec([8, 16], tf.uint8))
def small_integers(x: Any) -> Any:
    return tf.cast(x, tf.float32) / 255.0, tf.bitwise.bitwise_and(x, tf.constant(3, tf.uint8))


@case(SQUARE)
def loops_and_branches_that_ask_the_host(x: Any) -> Any:
    ask = tf.compat.v1.tpu.outside_compilation
    for _ in tf.range(3):
        x = ask(lambda x: tf.strings.to_number(tf.strings.as_string(x)), x) @ x
    if tf.reduce_sum(x) > 0.0:
        seen, number = ask(lambda x: (tf.reduce_any(x > 1.0), tf.constant(2, tf.uint8)), x)
        x *= tf.cast(seen, tf.float32) + tf.cast(number, tf.float32)
    return x


@case(SQUARE, refused="unsupported-op")
def a_text_beside_what_the_host_does(x: Any) -> Any:
    if tf.reduce_sum(x) > 0.0:
        x = tf.compat.v1.tpu.outside_compilation(tf.square, x)
        x += tf.strings.to_number(tf.strings.as_string(x))
    return x
