"""Indexing, scattering, sorting, shapes; sparse and ragged tensors, segments."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from verdicts.specs import B, F, I, L, entries, gradient_of, variable, with_state

X, IDS = F(8, 16), I(8)


def sparse(x: Any) -> Any:
    return tf.sparse.SparseTensor([[0, 1], [2, 3]], x[0, :2], [8, 8])


def ragged(x: Any) -> Any:
    return tf.RaggedTensor.from_row_lengths(x, [3, 0, 5])


FUNCTIONS = entries(
    gather=(tf.gather, X, IDS),
    gather_gradient=(lambda x, i: gradient_of(lambda value: tf.gather(value, i))(x), X, IDS),
    gather_along_axis=(lambda x, i: tf.gather(x, i, axis=1), X, IDS),
    gather_in_batches=(lambda x, i: tf.gather(x, i, batch_dims=1), X, I(8, 3)),
    gather_nd=(tf.gather_nd, X, I(5, 2)),
    gather_with_long_ids=(tf.gather, X, L(8)),
    scatter_nd=(lambda i, x: tf.scatter_nd(i[:, None], x, [32, 16]), IDS, X),
    scatter_add=(lambda x, i, y: tf.tensor_scatter_nd_add(x, i[:, None], y), X, IDS, X),
    scatter_max=(lambda x, i, y: tf.tensor_scatter_nd_max(x, i[:, None], y), X, IDS, X),
    scatter_update=(lambda x, i, y: tf.tensor_scatter_nd_update(x, i[:, None], y), X, IDS, X),
    scatter_into_long=(
        lambda x, i: tf.tensor_scatter_nd_add(x, i[:, None], tf.ones_like(x)),
        L(8),
        IDS,
    ),
    scatter_into_variable=(
        with_state(variable(8, 16), lambda v, i, x: v.scatter_nd_add(i[:, None], x)),
        IDS,
        X,
    ),
    variable_rows=(
        with_state(variable(8, 16), lambda v, i, x: v.scatter_update(tf.IndexedSlices(x, i))),
        IDS,
        X,
    ),
    variable_slice=(with_state(variable(8, 16), lambda v, x: v[2:4].assign(x)), F(2, 16)),
    sort=(tf.sort, X),
    sort_down=(lambda x: tf.sort(x, direction="DESCENDING", axis=0), X),
    argsort=(tf.argsort, X),
    argsort_stable=(lambda x: tf.argsort(x, stable=True), X),
    sort_gradient=(gradient_of(tf.sort), X),
    sort_integers=(tf.sort, I(8, 16)),
    sort_long=(tf.sort, L(8, 16)),
    top_k=(lambda x: tf.math.top_k(x, 4), X),
    top_k_gradient=(gradient_of(lambda x: tf.math.top_k(x, 4)[0]), X),
    top_k_approximate=(lambda x: tf.math.approx_max_k(x, 4), F(8, 256)),
    argmax=(lambda x: (tf.argmax(x, 1), tf.argmin(x, 0, tf.int32)), X),
    search_sorted=(lambda x, y: tf.searchsorted(x, y), F(8, 16), F(8, 4)),
    segment_sum=(lambda x, i: tf.math.unsorted_segment_sum(x, i, 4), X, IDS),
    segment_mean=(lambda x, i: tf.math.unsorted_segment_mean(x, i, 4), X, IDS),
    segment_max=(lambda x, i: tf.math.unsorted_segment_max(x, i, 4), X, IDS),
    sorted_segments=(tf.math.segment_sum, X, IDS),
    bincount=(lambda i: tf.math.bincount(i, minlength=8, maxlength=8), IDS),
    bincount_open=(tf.math.bincount, IDS),
    histogram=(lambda x: tf.histogram_fixed_width(x, [0.0, 1.0], 10), X),
    one_hot=(lambda i: tf.one_hot(i, 10), IDS),
    cumulative=(lambda x: (tf.cumsum(x, 1), tf.math.cumprod(x), tf.cumsum(x, reverse=True)), X),
    cumulative_logsumexp=(tf.math.cumulative_logsumexp, X),
    reverse=(lambda x: tf.reverse(x, [0, 1]), X),
    reverse_sequence=(lambda x, n: tf.reverse_sequence(x, n, seq_axis=1), X, IDS),
    roll=(lambda x: tf.roll(x, [1, 2], [0, 1]), X),
    roll_by_data=(lambda x, n: tf.roll(x, n[0], 0), X, IDS),
    pad=(
        lambda x: (
            tf.pad(x, [[1, 1], [2, 0]]),
            tf.pad(x, [[1, 1], [1, 1]], "REFLECT"),
            tf.pad(x, [[1, 1], [1, 1]], "SYMMETRIC"),
        ),
        X,
    ),
    tile=(lambda x: tf.tile(x, [2, 3]), X),
    repeat=(lambda x: tf.repeat(x, 3, axis=0), X),
    repeat_each=(lambda x: tf.repeat(x, [1, 2, 3, 0, 1, 1, 2, 1], axis=0), X),
    transpose=(lambda x: tf.transpose(x, [2, 0, 1]), F(2, 3, 4)),
    reshape=(lambda x: tf.reshape(x, [-1, 4]), X),
    split=(lambda x: tf.split(x, [4, 12], 1), X),
    stack=(lambda x: (tf.stack([x, x]), tf.unstack(x, axis=1)[:2], tf.concat([x, x], 1)), X),
    strided=(lambda x: x[1:7:2, ::-1], X),
    strided_gradient=(gradient_of(lambda x: x[1:7:2, ::-1]), X),
    row_by_data=(lambda x, i: x[i[0]], X, IDS),
    slice_of_fixed_size=(lambda x, i: tf.slice(x, [i[0], 0], [2, 16]), X, IDS),
    meshgrid=(lambda x: tf.meshgrid(x, x), F(8)),
    diagonals=(lambda x: (tf.linalg.diag(x), tf.linalg.diag_part(tf.linalg.diag(x))), X),
    banded=(lambda x: tf.linalg.diag(x, k=(-1, 1), num_rows=8), F(3, 8)),
    set_diagonal=(lambda x, d: tf.linalg.set_diag(x, d), F(8, 8), F(8)),
    space_to_depth=(lambda x: tf.nn.depth_to_space(tf.nn.space_to_depth(x, 2), 2), F(1, 8, 8, 4)),
    space_to_batch=(lambda x: tf.space_to_batch(x, [2, 2], [[0, 0], [0, 0]]), F(1, 8, 8, 4)),
    where=(lambda m, x: tf.where(m, x, -x), B(8, 16), X),
    sequence_mask=(lambda n: tf.sequence_mask(n, 10), IDS),
    sequence_mask_open=(tf.sequence_mask, IDS),
    bitcast=(lambda x: tf.bitcast(x, tf.int32), X),
    bitcast_to_long=(lambda x: tf.bitcast(x, tf.int64), I(8, 2)),
    quantize=(lambda x: tf.quantization.fake_quant_with_min_max_args(x), X),
    quantize_and_dequantize=(
        lambda x: tf.quantization.quantize_and_dequantize_v2(x, -1.0, 1.0, range_given=True),
        X,
    ),
    checked=(lambda x: tf.debugging.check_numerics(x, "no number"), X),
    asserted=(lambda x: (tf.debugging.assert_positive(x), x * 2.0)[1], X),
    ensured=(lambda x: tf.ensure_shape(x, [8, 16]), X),
    broadcast=(lambda x: tf.broadcast_to(x, [4, 8, 16]), X),
    edit_distance=(lambda x: tf.edit_distance(sparse(x), sparse(x)), X),
    sparse_to_dense=(lambda x: tf.sparse.to_dense(sparse(x)), X),
    sparse_product=(lambda x: tf.sparse.sparse_dense_matmul(sparse(x), x), X),
    sparse_sum=(lambda x: tf.sparse.reduce_sum(sparse(x)), X),
    sparse_reorder=(lambda x: tf.sparse.reorder(sparse(x)).values, X),
    sparse_softmax=(lambda x: tf.sparse.softmax(sparse(x)).values, X),
    from_dense=(lambda x: tf.sparse.from_dense(x).values, X),
    indexed_slices=(
        lambda x, i: tf.convert_to_tensor(tf.IndexedSlices(x, i, tf.constant([16, 16]))),
        X,
        IDS,
    ),
    ragged_sum=(lambda x: tf.reduce_sum(ragged(x), axis=1), X),
    ragged_to_dense=(lambda x: ragged(x).to_tensor(), X),
    ragged_to_fixed=(lambda x: ragged(x).to_tensor(shape=[3, 8, 16]), X),
    ragged_map=(lambda x: tf.ragged.map_flat_values(tf.nn.relu, ragged(x)).flat_values, X),
    ragged_from_lengths=(
        lambda x, n: tf.reduce_sum(tf.RaggedTensor.from_row_lengths(x, n, validate=False), 1),
        X,
        IDS,
    ),
    ragged_range=(lambda n: tf.ragged.range(n).flat_values, IDS),
)
