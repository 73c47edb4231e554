"""64-bit and 128-bit types."""

from __future__ import annotations

import tensorflow as tf

from verdicts.specs import D, F, I, L, entries, gradient_of, variable, with_state

LONG, DOUBLE, IDS = L(8, 8), D(8, 8), I(8)
la = tf.linalg
C128 = tf.TensorSpec([8, 8], tf.complex128)
U64 = tf.TensorSpec([8, 8], tf.uint64)

FUNCTIONS = entries(
    long_arithmetic=(lambda x: (x + x, x * x, x - 1, -x, abs(x)), LONG),
    long_division=(lambda x: (x // 3, x % 7, tf.truncatediv(x, 3)), LONG),
    long_comparison=(lambda x: (x > 3, tf.maximum(x, 1)), LONG),
    long_power=(lambda x: x**3, LONG),
    long_product=(lambda x: x @ x, LONG),
    long_vector_product=(lambda x: la.matvec(x, x[0]), LONG),
    long_einsum=(lambda x: tf.einsum("ij,kj->ik", x, x), LONG),
    long_tensordot=(lambda x: tf.tensordot(x, x, 1), LONG),
    long_sum=(lambda x: (tf.reduce_sum(x), tf.reduce_max(x, 1), tf.reduce_prod(x, 0)), LONG),
    long_cumsum=(tf.cumsum, LONG),
    long_argmax=(lambda x: tf.argmax(x, 1), LONG),
    long_top_k=(lambda x: tf.math.top_k(x, 2), LONG),
    long_scatter=(lambda x, i: tf.math.unsorted_segment_sum(x, i, 4), LONG, IDS),
    long_gather=(lambda x, i: tf.gather(x, i), LONG, IDS),
    long_where=(lambda x: tf.where(x > 0, x, 0), LONG),
    long_shift=(lambda x: tf.bitwise.right_shift(x, 2), LONG),
    long_to_float=(lambda x: tf.cast(x, tf.float32) / 3.0, LONG),
    long_to_double=(lambda x: tf.cast(x, tf.float64), LONG),
    long_one_hot=(lambda x: tf.one_hot(x, 4, dtype=tf.int64), LONG),
    long_pool=(lambda x: tf.nn.pool(x[None, :, :, None], [2, 2], "MAX", [2, 2]), LONG),
    unsigned_arithmetic=(lambda x: (x + x, x * x, x // 3), U64),
    unsigned_product=(lambda x: tf.raw_ops.MatMul(a=x, b=x), U64),
    unsigned_small_product=(
        lambda x: tf.raw_ops.MatMul(a=x, b=x),
        tf.TensorSpec([8, 8], tf.uint32),
    ),
    double_arithmetic=(lambda x: (x + x, x * x, x / 3.0, tf.sqrt(x)), DOUBLE),
    double_functions=(lambda x: (tf.exp(x), tf.math.log(x), tf.sin(x), tf.tanh(x)), DOUBLE),
    double_special=(lambda x: (tf.math.erf(x), tf.math.lgamma(x)), DOUBLE),
    double_product=(lambda x: x @ x, DOUBLE),
    double_gradient=(gradient_of(lambda x: tf.nn.softmax(x @ x)), DOUBLE),
    double_convolution=(lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), D(1, 8, 8, 2), D(3, 3, 2, 4)),
    double_convolution_gradient=(
        gradient_of(lambda x, w: tf.nn.conv2d(x, w, 1, "SAME")),
        D(1, 8, 8, 2),
        D(3, 3, 2, 4),
    ),
    double_max_pool=(lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID"), D(1, 8, 8, 2)),
    double_max_pool_gradient=(
        gradient_of(lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID")),
        D(1, 8, 8, 2),
    ),
    double_average_pool_gradient=(
        gradient_of(lambda x: tf.nn.avg_pool2d(x, 2, 2, "VALID")),
        D(1, 8, 8, 2),
    ),
    double_sum=(lambda x: (tf.reduce_sum(x), tf.reduce_max(x), tf.cumsum(x)), DOUBLE),
    double_sort=(tf.sort, DOUBLE),
    double_argsort=(tf.argsort, DOUBLE),
    double_top_k=(lambda x: tf.math.top_k(x, 2), DOUBLE),
    double_cholesky=(lambda x: la.cholesky(x @ tf.transpose(x)), DOUBLE),
    double_inverse=(la.inv, DOUBLE),
    double_solve=(la.triangular_solve, DOUBLE, DOUBLE),
    double_qr=(la.qr, DOUBLE),
    double_svd=(la.svd, DOUBLE),
    double_eigh=(la.eigh, DOUBLE),
    double_determinant=(la.det, DOUBLE),
    double_scatter=(lambda x, i: tf.math.unsorted_segment_sum(x, i, 4), DOUBLE, IDS),
    double_segment_max=(lambda x, i: tf.math.unsorted_segment_max(x, i, 4), DOUBLE, IDS),
    double_resize=(lambda x: tf.image.resize(x, [4, 4]), D(1, 8, 8, 3)),
    double_fft=(lambda x: tf.abs(tf.signal.fft(tf.cast(x, tf.complex128))), DOUBLE),
    double_real_fft=(lambda x: tf.abs(tf.signal.rfft(x)), DOUBLE),
    double_bitcast=(lambda x: tf.bitcast(x, tf.int64), DOUBLE),
    double_to_float=(lambda x: tf.cast(x, tf.float32), DOUBLE),
    double_inside=(lambda x: tf.cast(tf.cast(x, tf.float64) * 3.0, tf.float32), F(8, 8)),
    double_loop=(lambda x: tf.while_loop(lambda y: y[0, 0] < 5, lambda y: [y * 2], [x])[0], DOUBLE),
    double_variable=(
        with_state(variable(8, 8, dtype=tf.float64), lambda v, x: v.assign_add(x)),
        DOUBLE,
    ),
    double_batch_norm=(lambda x: tf.nn.moments(x, [0]), DOUBLE),
    double_one_hot=(lambda i: tf.one_hot(i, 4, dtype=tf.float64), IDS),
    double_random=(lambda: tf.random.normal([8], dtype=tf.float64),),
    double_floor=(lambda x: (tf.floor(x), tf.round(x), tf.math.is_nan(x)), DOUBLE),
    complex128=(lambda z: z + z, C128),
    complex128_product=(lambda z: z @ z, C128),
    complex128_inside=(lambda x: tf.cast(tf.abs(tf.cast(x, tf.complex128)), tf.float32), F(8, 8)),
)
