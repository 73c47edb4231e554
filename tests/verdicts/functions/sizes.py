"""Data-dependent sizes."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from verdicts.specs import B, F, I, L, entries, gradient_of

X, N, IDS, ROW = F(8, 16), I(), I(8), F(16)


def masked(x: Any) -> Any:
    return tf.boolean_mask(x, x > 0)


def rows(x: Any) -> Any:
    return tf.boolean_mask(x, x[:, 0] > 0)


FUNCTIONS = entries(
    masked=(masked, X),
    masked_sum=(lambda x: tf.reduce_sum(masked(x)), X),
    masked_mean=(lambda x: tf.reduce_mean(masked(x)), X),
    masked_max=(lambda x: tf.reduce_max(masked(x)), X),
    masked_gradient=(gradient_of(masked), X),
    masked_rows=(rows, X),
    masked_rows_product=(lambda x, w: rows(x) @ w, X, F(16, 4)),
    masked_rows_softmax=(lambda x: tf.nn.softmax(rows(x)), X),
    masked_rows_normalised=(lambda x: rows(x) - tf.reduce_mean(rows(x), 0), X),
    masked_outer=(lambda x: masked(x)[:, None] * masked(x)[None], X),
    masked_sorted=(lambda x: tf.sort(masked(x)), X),
    masked_top_k=(lambda x: tf.math.top_k(masked(x), 2), X),
    masked_cumsum=(lambda x: tf.cumsum(masked(x)), X),
    masked_and_padded=(lambda x: tf.pad(masked(x), [[0, 3]]), X),
    masked_and_joined=(lambda x: tf.concat([masked(x), x[0]], 0), X),
    masked_twice=(lambda x: masked(masked(x)), X),
    masked_and_reshaped=(lambda x: tf.reshape(rows(x), [-1]), X),
    masked_and_reversed=(lambda x: tf.reverse(masked(x), [0]), X),
    masked_and_scattered=(
        lambda x: tf.tensor_scatter_nd_update(x, tf.where(x > 0), tf.zeros_like(masked(x))),
        X,
    ),
    masked_segments=(
        lambda x, i: tf.math.unsorted_segment_sum(rows(x), tf.boolean_mask(i, x[:, 0] > 0), 4),
        X,
        IDS,
    ),
    masked_convolution=(
        lambda x, w: tf.nn.conv2d(tf.boolean_mask(x, x[:, 0, 0, 0] > 0), w, 1, "SAME"),
        F(4, 8, 8, 3),
        F(3, 3, 3, 4),
    ),
    masked_shape=(lambda x: tf.shape(masked(x)), X),
    masked_in_loop=(lambda x: _in_loop(x), X),
    where=(tf.where, B(8, 16)),
    where_count=(lambda m: tf.shape(tf.where(m))[0], B(8, 16)),
    where_gathered=(lambda x: tf.gather_nd(x, tf.where(x > 0)), X),
    unique=(lambda i: tf.unique(i)[0], IDS),
    unique_indices=(lambda i: tf.unique(i)[1], IDS),
    unique_counts=(lambda i: tf.unique_with_counts(i)[2], IDS),
    unique_long=(lambda i: tf.unique(i)[0], L(8)),
    difference=(lambda i, j: tf.sets.difference(i[None], j[None]).values, IDS, IDS),
    list_difference=(lambda i, j: tf.raw_ops.ListDiff(x=i, y=j)[0], IDS, IDS),
    partition=(lambda x, i: tf.dynamic_partition(x, i, 3), X, IDS),
    partition_sum=(
        lambda x, i: [tf.reduce_sum(one) for one in tf.dynamic_partition(x, i, 3)],
        X,
        IDS,
    ),
    stitched=(
        lambda x, i: tf.dynamic_stitch(
            tf.dynamic_partition(tf.range(8), i, 2), tf.dynamic_partition(x, i, 2)
        ),
        X,
        IDS,
    ),
    stitched_fixed=(lambda x: tf.dynamic_stitch([[0, 2], [1, 3]], [x[:2], x[2:4]]), X),
    suppression=(lambda b, s: tf.image.non_max_suppression(b, s, 4), F(6, 4), F(6)),
    suppression_gathered=(
        lambda b, s: tf.gather(b, tf.image.non_max_suppression(b, s, 4)),
        F(6, 4),
        F(6),
    ),
    sliced=(lambda x, n: x[:n], X, N),
    sliced_sum=(lambda x, n: tf.reduce_sum(x[:n]), X, N),
    sliced_from=(lambda x, n: x[n:], X, N),
    sliced_product=(lambda x, n, w: x[:n] @ w, X, N, F(16, 4)),
    sliced_convolution=(
        lambda x, n, w: tf.nn.conv1d(x[:, :n], w, 1, "SAME"),
        F(2, 16, 3),
        N,
        F(3, 3, 4),
    ),
    sliced_gradient=(lambda x, n: gradient_of(lambda one: one[:n])(x), X, N),
    sliced_window=(lambda x, n: x[n : n + 2], X, N),
    sliced_by_size=(lambda x, n: tf.slice(x, [0, 0], [n, 16]), X, N),
    top_k_of_data=(lambda x, n: tf.math.top_k(x, n), X, N),
    ranged=(lambda n: tf.range(n), N),
    ranged_sum=(lambda n: tf.reduce_sum(tf.range(n)), N),
    zeros=(lambda n: tf.zeros([n, 4]), N),
    reshaped=(lambda x, n: tf.reshape(x, [n, -1]), X, N),
    tiled=(lambda x, n: tf.tile(x, [n, 1]), X, N),
    repeated=(lambda x, n: tf.repeat(x, n, axis=0), X, IDS),
    broadcast=(lambda x, n: tf.broadcast_to(x, [n, 16]), ROW, N),
    padded=(lambda x, n: tf.pad(x, [[0, n], [0, 0]]), X, N),
    split=(lambda x, n: tf.split(x, [n, 8 - n]), X, N),
    one_hot_depth=(lambda i, n: tf.one_hot(i, n), IDS, N),
    random=(lambda n: tf.random.normal([n]), N),
    linspace=(lambda n: tf.linspace(0.0, 1.0, n), N),
    axis=(lambda x, n: tf.reduce_sum(x, axis=n), X, N),
    transposed=(lambda x, p: tf.transpose(x, p), X, I(2)),
    counted_nonzero=(lambda x: tf.math.count_nonzero(x), X),
    confusion=(lambda i, j: tf.math.confusion_matrix(i, j, 4), IDS, IDS),
)


def _in_loop(x: Any) -> Any:
    total = tf.zeros([])
    for i in tf.range(4):
        total += tf.reduce_sum(tf.boolean_mask(x[i], x[i] > 0))
    return total
