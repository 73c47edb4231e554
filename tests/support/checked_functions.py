"""Functions of many kinds, with the rule that each breaks or the warning that it causes, if any."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

X = tf.TensorSpec([8, 16])
SQUARE = tf.TensorSpec([16, 16])
IMAGES = tf.TensorSpec([4, 8, 8, 3])
IDS = tf.TensorSpec([8, 5], tf.int32)
DOUBLE = tf.TensorSpec([16, 16], tf.float64)
MARK = "# here"

CHECK, LIBTPU = "check", "libtpu"
BOTH = CHECK, LIBTPU
"""The checkers of a function: our rules, the TPU's own compiler, or both."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A function with its arguments.

    Attributes:
        function: The function.
        args: Its arguments.
        refused: The rule that it breaks, if any.
        warned: The rule of its warning, if any.
        by: The checkers that it is for.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    refused: str
    warned: str
    by: tuple[str, ...]

    @property
    def line(self) -> int:
        """The line of the problem: the marked line, or the function's first."""
        lines, first = inspect.getsourcelines(self.function)
        marked = [k for k, line in enumerate(lines, first) if line.rstrip().endswith(MARK)]
        return marked[0] if marked else first


CASES: dict[str, Case] = {}
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def asked(who: str, attribute: str = "") -> list[str]:
    """Return the names of a checker's functions: all, or those with a problem of a kind."""
    return [
        name
        for name, case in CASES.items()
        if who in case.by and (not attribute or getattr(case, attribute))
    ]


def _listed(args: Any, by: Any, refused: str = "", warned: str = "") -> Decorator:
    def add(fn: Callable[..., Any]) -> Callable[..., Any]:
        CASES[fn.__name__] = Case(fn, args, refused, warned, by)
        return fn

    return add


def compiles(*args: Any, by: Any = (CHECK,)) -> Decorator:
    """List a function that compiles for a TPU."""
    return _listed(args, by)


def refused(code: str, *args: Any, by: Any = (CHECK,)) -> Decorator:
    """List a function that a TPU refuses, at the marked line."""
    return _listed(args, by, refused=code)


def warned(code: str, *args: Any, by: Any = (CHECK,)) -> Decorator:
    """List a function that compiles with a warning, at the marked line."""
    return _listed(args, by, warned=code)


@compiles(X, tf.TensorSpec([16, 4]), by=BOTH)
def dense(x: Any, w: Any) -> Any:
    return tf.nn.softmax(tf.nn.relu(x @ w))


@compiles(IMAGES, tf.TensorSpec([3, 3, 3, 8]), by=BOTH)
def convolution(x: Any, w: Any) -> Any:
    y = tf.nn.conv2d(x, w, 1, "SAME")
    return tf.gradients(tf.nn.max_pool2d(y, 2, 2, "VALID"), [x, w])


@compiles(tf.TensorSpec([2, 4, 16, 8]), by=BOTH)
def attention(x: Any) -> Any:
    weights = tf.nn.softmax(tf.einsum("bhqd,bhkd->bhqk", x, x) / 4.0)
    return tf.einsum("bhqk,bhkd->bhqd", weights, x)


@compiles(tf.TensorSpec([8, 5, 16]), SQUARE, by=BOTH)
def recurrent(x: Any, w: Any) -> Any:
    state = tf.zeros([8, 16])
    for step in tf.range(5):
        state = tf.tanh(x[:, step] + state @ w)
    return state


@compiles(X, tf.TensorSpec([8], tf.int32), by=BOTH)
def scatter(x: Any, ids: Any) -> Any:
    return tf.math.unsorted_segment_sum(x, ids, 8), tf.tensor_scatter_nd_add(x, ids[:, None], x)


@compiles(X, by=BOTH)
def sort(x: Any) -> Any:
    return tf.sort(x), tf.argsort(x), tf.math.top_k(x, 3)


@compiles(tf.TensorSpec([16, 16], tf.int64), by=BOTH)
def sums_of_long_integers(x: Any) -> Any:
    return tf.reduce_sum(x * x + 1), tf.cumsum(x), x // 3


@compiles(tf.TensorSpec([8, 16], tf.uint8), by=BOTH)
def small_integers(x: Any) -> Any:
    return tf.cast(x, tf.float32) / 255.0, tf.bitwise.bitwise_and(x, tf.constant(3, tf.uint8))


@compiles(DOUBLE, by=LIBTPU)
def product_in_float64(x: Any) -> Any:
    return x @ x


@compiles(DOUBLE, by=LIBTPU)
def decompositions_in_float64(x: Any) -> Any:
    return tf.linalg.cholesky(x @ tf.transpose(x) + tf.eye(16, dtype=tf.float64))


@compiles(SQUARE, by=BOTH)
def loops_and_branches_that_ask_the_host(x: Any) -> Any:
    ask = tf.compat.v1.tpu.outside_compilation
    for _ in tf.range(3):
        x = ask(lambda x: tf.strings.to_number(tf.strings.as_string(x)), x) @ x
    if tf.reduce_sum(x) > 0.0:
        seen, number = ask(lambda x: (tf.reduce_any(x > 1.0), tf.constant(2, tf.uint8)), x)
        x *= tf.cast(seen, tf.float32) + tf.cast(number, tf.float32)
    return x


@compiles(X)
def elementwise(x: Any) -> Any:
    return tf.nn.relu(x) * 2.0 + tf.exp(-tf.abs(x))


@compiles(X)
def reductions(x: Any) -> Any:
    return tf.reduce_mean(x), tf.reduce_logsumexp(x, axis=1), tf.argmax(x, axis=-1)


@compiles(X)
def static_reshaping(x: Any) -> Any:
    return tf.transpose(tf.reshape(x, [tf.shape(x)[0], 4, -1]), [0, 2, 1])


@compiles(X)
def a_loop_of_fixed_length(x: Any) -> Any:
    for _ in tf.range(10):
        x = tf.tanh(x)
    return x


@compiles(X, tf.TensorSpec([], tf.int32))
def a_loop_of_any_length(x: Any, n: Any) -> Any:
    for _ in tf.range(n):
        x = tf.tanh(x)
    return x


@compiles(X, by=BOTH)
def a_loop_that_waits(x: Any) -> Any:
    while tf.reduce_sum(x) < 1000.0:
        x = x * 2.0 + 1.0
    return x


@compiles(X)
def the_gradient_of_a_fixed_loop(x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x
        for _ in tf.range(3):
            y = y * x
    return tape.gradient(y, x)


@compiles(X, by=BOTH)
def branches(x: Any) -> Any:
    if tf.reduce_sum(x) > 0:
        y = x * 3.0
    else:
        y = tf.zeros_like(x)
        y -= x
    return tf.switch_case(tf.argmax(y[0], output_type=tf.int32) % 2, [lambda: y, lambda: y * 2.0])


@compiles(X)
def slices_of_fixed_length(x: Any) -> Any:
    total = 0.0
    for i in tf.range(4):
        total += tf.reduce_sum(tf.slice(x, [2 * i, 0], [2, 16])) + tf.reduce_sum(x[i])
    return total


@compiles(X)
def where_with_three_arguments(x: Any) -> Any:
    return tf.where(x > 0, x, tf.zeros_like(x))


@compiles(IDS)
def embedding_lookup(ids: Any) -> Any:
    return tf.gather(tf.ones([100, 4]), ids), tf.one_hot(ids, 10)


@compiles(tf.TensorSpec([8], tf.int32))
def a_mask_of_fixed_length(lengths: Any) -> Any:
    return tf.sequence_mask(lengths, maxlen=64)


@compiles(X)
def a_tensor_array_of_fixed_size(x: Any) -> Any:
    array = tf.TensorArray(tf.float32, size=4)
    for i in tf.range(4):
        array = array.write(i, x * tf.cast(i, tf.float32))
    return array.stack()


@compiles(X)
def a_scan(x: Any) -> Any:
    return tf.scan(lambda total, row: total + row, x), tf.map_fn(tf.reduce_sum, x)


@compiles(X, by=BOTH)
def random_numbers(x: Any) -> Any:
    drawn = tf.random.stateless_normal(tf.shape(x), [1, 2]) + tf.random.uniform(tf.shape(x))
    return tf.nn.dropout(x, 0.5) + drawn


@compiles(X)
def bfloat16(x: Any) -> Any:
    half = tf.cast(x, tf.bfloat16)
    return tf.cast(tf.matmul(half, half, transpose_b=True), tf.float32)


@compiles(X, by=BOTH)
def linear_algebra(x: Any) -> Any:
    square = tf.matmul(x, x, transpose_b=True) + 100.0 * tf.eye(8)
    return tf.linalg.cholesky(square), tf.einsum("ij,kj->ik", x, x), tf.linalg.inv(square)


@compiles(X)
def assertions(x: Any) -> Any:
    tf.debugging.assert_greater(x, -1.0, message="too small")
    tf.debugging.Assert(tf.reduce_all(x < 1.0), [x])
    return x


@compiles(X, tf.TensorSpec([8], tf.int64))
def losses(x: Any, labels: Any) -> Any:
    per_example = keras.losses.sparse_categorical_crossentropy(labels, x, from_logits=True)
    return tf.nn.compute_average_loss(per_example, global_batch_size=8)


@compiles(tf.TensorSpec([8], tf.int32), X)
def segments_of_a_fixed_number(ids: Any, x: Any) -> Any:
    return tf.math.unsorted_segment_sum(x, ids, num_segments=4)


@compiles(X, by=BOTH)
def a_fourier_transform(x: Any) -> Any:
    return tf.abs(tf.signal.rfft(x)), tf.image.resize(x[:, :, None], [4, 4])


@compiles(X)
def a_function_in_the_function(x: Any) -> Any:
    inner = tf.function(lambda y: tf.nn.softmax(y))
    return tf.recompute_grad(inner)(x)


@warned("dynamic-shape", X)
def where_with_one_argument(x: Any) -> Any:
    return tf.reduce_sum(tf.where(x > 0))  # here


@warned("dynamic-shape", X, by=BOTH)
def a_boolean_mask(x: Any) -> Any:
    kept = tf.boolean_mask(x, x > 0)  # here
    return tf.reduce_mean(kept)


@warned("dynamic-shape", IDS)
def distinct_values(ids: Any) -> Any:
    return tf.unique(tf.reshape(ids, [-1]))  # here


@warned("dynamic-shape", X)
def parts(x: Any) -> Any:
    halves = tf.dynamic_partition(x, tf.cast(x > 0, tf.int32), 2)  # here
    return tf.reduce_sum(halves[0])


@warned("bounded-shape", X, tf.TensorSpec([], tf.int32), by=BOTH)
def a_slice_of_any_length(x: Any, n: Any) -> Any:
    return tf.reduce_sum(x[:n])  # here


@warned("bounded-shape", X)
def a_slice_in_a_loop(x: Any) -> Any:
    total = 0.0
    for i in tf.range(4):
        total += tf.reduce_sum(x[2 * i : 2 * i + 2])  # here
    return total


@refused("unsupported-op", X, by=BOTH)
def printing(x: Any) -> Any:
    tf.print("mean", tf.reduce_mean(x), output_stream="file:///dev/null")  # here
    return x


@refused("unsupported-op", X)
def python(x: Any) -> Any:
    y = tf.py_function(lambda value: value * 2, [x], tf.float32)  # here
    return tf.reshape(y, [8, 16])


@refused("unsupported-op", X)
def numpy_function(x: Any) -> Any:
    y = tf.numpy_function(np.square, [x], tf.float32)  # here
    return tf.ensure_shape(y, [8, 16])


@refused("unsupported-op", X)
def strings(x: Any) -> Any:
    text = tf.strings.as_string(x)  # here
    return tf.strings.length(text)


@refused("unsupported-type", tf.TensorSpec([8], tf.string))
def a_string_argument(words: Any) -> Any:
    return tf.ones([8])


@refused("unsupported-type", X, by=BOTH)
def a_string_result(x: Any) -> Any:
    return tf.constant("done")  # here


@refused("unsupported-op", IDS)
def a_table(ids: Any) -> Any:
    with tf.init_scope():
        rows = tf.lookup.KeyValueTensorInitializer([1, 2], [10, 20])
        table = tf.lookup.StaticHashTable(rows, -1)
    return table.lookup(ids)  # here


@refused("constant-size", tf.TensorSpec([8], tf.int32))
def a_mask_of_any_length(lengths: Any) -> Any:
    return tf.sequence_mask(lengths)  # here


@refused("constant-size", tf.TensorSpec([], tf.int32))
def as_many_as_it_says(n: Any) -> Any:
    return tf.zeros([n, 4])  # here


@refused("constant-size", X, tf.TensorSpec([], tf.int32))
def the_first_few(x: Any, n: Any) -> Any:
    return tf.reduce_sum(tf.reshape(x, [n, -1]))  # here


@refused("list-size", X, by=BOTH)
def a_growing_tensor_array(x: Any) -> Any:
    array = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
    for i in tf.range(3):
        array = array.write(i, x)  # here
    return array.stack()


@refused("list-size", X)
def the_gradient_of_an_open_loop(x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x
        while tf.reduce_sum(y) < 100.0:
            y = y * 2.0
    return tape.gradient(y, x)  # here


@refused("x64-op", by=BOTH)
def random_numbers_in_float64() -> Any:
    return tf.random.normal([8], dtype=tf.float64)  # here


@refused("unsupported-type", X, by=BOTH)
def complex_numbers_inside(x: Any) -> Any:
    return tf.cast(tf.abs(tf.cast(x, tf.complex128) * 1j), tf.float32)  # here


@refused("unsupported-op", tf.RaggedTensorSpec([8, None], tf.int32, ragged_rank=1))
def ragged(x: Any) -> Any:
    return x.to_tensor()  # here


@refused("unsupported-op", X)
def sparse(x: Any) -> Any:
    matrix = tf.sparse.SparseTensor([[0, 1]], [1.0], [4, 8])
    return tf.sparse.sparse_dense_matmul(matrix, x)  # here


@refused("unsupported-op", tf.TensorSpec([8, 8, 8, 3]))
def an_image_resized(x: Any) -> Any:
    return tf.image.resize(x, [4, 4], method="bicubic")  # here


@refused("unsupported-op", X)
def in_a_branch(x: Any) -> Any:
    if tf.reduce_sum(x) > 0:
        tf.print("positive")  # here
    return x


@refused("unsupported-op", X)
def in_a_loop(x: Any) -> Any:
    for i in tf.range(3):
        tf.print(i)  # here
        x = x + 1.0
    return x


@refused("unsupported-op", X)
def in_a_nested_function(x: Any) -> Any:
    @tf.function
    def inner(y: Any) -> Any:
        tf.print(y)  # here
        return y

    return inner(x) + 1.0


@refused("x64-op", X, by=BOTH)
def product_of_long_integers(x: Any) -> Any:
    x = tf.cast(x, tf.int64)
    return tf.matmul(x, x, transpose_b=True)  # here


@refused("x64-op", tf.TensorSpec([2, 4, 4], tf.int64), by=BOTH)
def einsum_of_long_integers(x: Any) -> Any:
    return tf.einsum("bij,bjk->bik", x, x)  # here


@refused("x64-op", tf.TensorSpec([2, 8, 8, 1], tf.float64), by=BOTH)
def the_gradient_of_max_pooling_in_float64(x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.nn.max_pool2d(x, 2, 2, "VALID")
    return tape.gradient(y, x)  # here


@refused("constant-size", X, by=BOTH)
def counted_by_data(x: Any) -> Any:
    return tf.reduce_sum(tf.range(tf.cast(x[0, 0], tf.int32) + 2))  # here


@refused("unsupported-op", SQUARE, by=BOTH)
def a_text_beside_what_the_host_does(x: Any) -> Any:
    if tf.reduce_sum(x) > 0.0:
        x = tf.compat.v1.tpu.outside_compilation(tf.square, x)
        x += tf.strings.to_number(tf.strings.as_string(x))  # here
    return x


def shape_changing_loop(x: Any) -> Any:
    i = tf.constant(0)
    while i < 2:
        tf.autograph.experimental.set_loop_options(
            shape_invariants=[(x, tf.TensorShape([None, 16]))]
        )
        x = tf.concat([x, x], 0)
        i += 1
    return tf.reduce_sum(x)


# For each rule: a function of `X` that breaks it, TensorFlow's message, the message's entry in the
# catalogue.
REFUSED: dict[str, tuple[Callable[[Any], Any], str, int | None]] = {
    "unsupported-op": (printing, "Detected unsupported operations", 23),
    "unsupported-type": (a_string_result, "Unsupported data type for TPU: string", 24),
    "constant-size": (counted_by_data, "must be a compile-time constant", 27),
    "list-size": (a_growing_tensor_array, "requires a fixed tensor list size", 29),
    "x64-op": (product_of_long_integers, "not contain X64 element types", 25),
    "compile": (shape_changing_loop, "XLA", None),
}
