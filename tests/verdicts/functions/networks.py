"""Layers: dense, convolutions, attention, recurrence, normalisation, losses."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from verdicts.specs import B, F, H, I, S, entries, gradient, gradient_of, variable, with_state

nn = tf.nn


def attention(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    scores = tf.einsum("bqhd,bkhd->bhqk", q, k) / 4.0
    if mask is not None:
        scores = tf.where(mask[:, None, None, :], scores, -1e9)
    return tf.einsum("bhqk,bkhd->bqhd", nn.softmax(scores), v)


def lstm(x: Any, w: Any, u: Any) -> Any:
    h = c = tf.zeros([4, 8])
    for t in tf.range(6):
        i, f, g, o = tf.split(x[:, t] @ w + h @ u, 4, axis=1)
        c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
        h = tf.sigmoid(o) * tf.tanh(c)
    return h


def gru(x: Any, w: Any) -> Any:
    h = tf.zeros([4, 8])
    states = tf.TensorArray(tf.float32, size=6, element_shape=[4, 8])
    for t in tf.range(6):
        z = tf.sigmoid(tf.concat([x[:, t], h], 1) @ w)
        h = z * h + (1.0 - z) * tf.tanh(x[:, t])
        states = states.write(t, h)
    return states.stack()


def batch_norm(x: Any) -> Any:
    mean, variance = nn.moments(x, [0, 1, 2])
    return nn.batch_normalization(x, mean, variance, None, None, 1e-3)


def train(w: Any, x: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ w) ** 2)
    w.assign_sub(0.1 * tape.gradient(loss, w))
    return loss


def momentum(state: Any, x: Any) -> Any:
    w, m = state
    (g,) = gradient(lambda one: x @ one, w.read_value())
    m.assign(0.9 * m + g)
    w.assign_sub(0.1 * m)
    return w.read_value()


def keras_layer(make: Any) -> Any:
    def layer() -> Any:
        import keras

        return make(keras.layers)

    return with_state(layer, lambda one, *values: one(*values, training=True))


IMAGES, FILTERS = F(2, 16, 16, 3), F(3, 3, 3, 8)
QKV = (F(2, 8, 4, 16),) * 3

FUNCTIONS = entries(
    dense=(lambda x, w, b: nn.relu(x @ w + b), F(8, 16), F(16, 4), F(4)),
    dense_in_bfloat16=(lambda x, w: nn.gelu(x @ w), H(8, 16), H(16, 4)),
    dense_gradient=(gradient_of(lambda x, w: nn.softmax(x @ w)), F(8, 16), F(16, 4)),
    mixed_types=(lambda x, w: tf.cast(tf.cast(x, tf.bfloat16) @ w, tf.float32), F(8, 16), H(16, 4)),
    odd_sizes=(lambda x, w: x @ w, F(7, 13), F(13, 3)),
    batched_products=(lambda x, y: tf.matmul(x, y, transpose_b=True), F(3, 5, 7), F(3, 4, 7)),
    half_precision=(lambda x: x @ x, tf.TensorSpec([8, 8], tf.float16)),
    bytes_product=(lambda x: tf.matmul(x, x, output_type=tf.int32), tf.TensorSpec([8, 8], tf.int8)),
    integer_product=(lambda x: x @ x, I(8, 8)),
    convolution=(lambda x, w: nn.conv2d(x, w, 2, "SAME"), IMAGES, FILTERS),
    convolution_gradient=(gradient_of(lambda x, w: nn.conv2d(x, w, 1, "VALID")), IMAGES, FILTERS),
    convolution_dilated=(lambda x, w: nn.conv2d(x, w, 1, "SAME", dilations=2), IMAGES, FILTERS),
    convolution_channels_first=(
        lambda x, w: nn.conv2d(x, w, 1, "SAME", data_format="NCHW"),
        F(2, 3, 16, 16),
        FILTERS,
    ),
    convolution_in_groups=(lambda x, w: nn.conv2d(x, w, 1, "SAME"), F(2, 8, 8, 8), F(3, 3, 2, 8)),
    convolution_1d=(lambda x, w: nn.conv1d(x, w, 1, "SAME"), F(2, 16, 3), F(5, 3, 4)),
    convolution_3d=(
        gradient_of(lambda x, w: nn.conv3d(x, w, [1, 1, 1, 1, 1], "SAME")),
        F(1, 4, 8, 8, 2),
        F(3, 3, 3, 2, 4),
    ),
    convolution_transposed=(
        lambda x, w: nn.conv2d_transpose(x, w, [2, 16, 16, 3], 2),
        F(2, 8, 8, 8),
        FILTERS,
    ),
    depthwise=(
        gradient_of(lambda x, w: nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME")),
        IMAGES,
        F(3, 3, 3, 2),
    ),
    separable=(
        lambda x, d, p: nn.separable_conv2d(x, d, p, [1, 1, 1, 1], "SAME"),
        IMAGES,
        F(3, 3, 3, 1),
        F(1, 1, 3, 8),
    ),
    max_pool=(gradient_of(lambda x: nn.max_pool2d(x, 3, 2, "SAME")), IMAGES),
    max_pool_in_bfloat16=(gradient_of(lambda x: nn.max_pool2d(x, 2, 2, "VALID")), H(2, 8, 8, 4)),
    max_pool_with_argmax=(lambda x: nn.max_pool_with_argmax(x, 2, 2, "VALID"), IMAGES),
    average_pool=(gradient_of(lambda x: nn.avg_pool2d(x, 2, 2, "VALID")), IMAGES),
    pool_3d=(gradient_of(lambda x: nn.max_pool3d(x, 2, 2, "VALID")), F(1, 4, 8, 8, 2)),
    dilation=(
        lambda x, w: nn.dilation2d(x, w, [1, 1, 1, 1], "SAME", "NHWC", [1, 1, 1, 1]),
        IMAGES,
        F(3, 3, 3),
    ),
    fractional_pool=(lambda x: nn.fractional_max_pool(x, 1.5)[0], IMAGES),
    attention=(attention, *QKV),
    attention_gradient=(gradient_of(attention), *QKV),
    attention_masked=(attention, *QKV, B(2, 8)),
    attention_causal=(lambda x: nn.softmax(tf.linalg.band_part(x, -1, 0)), F(2, 4, 8, 8)),
    lstm=(lstm, F(4, 6, 5), F(5, 32), F(8, 32)),
    lstm_gradient=(gradient_of(lstm), F(4, 6, 5), F(5, 32), F(8, 32)),
    gru_with_states=(gru, F(4, 6, 8), F(16, 8)),
    gru_gradient=(gradient_of(gru), F(4, 6, 8), F(16, 8)),
    batch_norm=(gradient_of(batch_norm), IMAGES),
    fused_batch_norm=(
        gradient_of(lambda x, s, o: tf.compat.v1.nn.fused_batch_norm(x, s, o)[0]),
        IMAGES,
        F(3),
        F(3),
    ),
    layer_norm=(
        gradient_of(
            lambda x: (
                (x - tf.reduce_mean(x, -1, keepdims=True))
                * tf.math.rsqrt(tf.math.reduce_variance(x, -1, keepdims=True))
            )
        ),
        F(4, 16),
    ),
    local_response=(gradient_of(nn.local_response_normalization), IMAGES),
    dropout=(lambda x: nn.dropout(x, 0.5), F(8, 16)),
    stateless_dropout=(lambda x: nn.experimental.stateless_dropout(x, 0.5, seed=[1, 2]), F(8, 16)),
    embedding=(gradient_of(lambda t: nn.embedding_lookup(t, [1, 2, 1])), F(16, 8)),
    embedding_of_ids=(lambda t, ids: nn.embedding_lookup(t, ids), F(16, 8), I(4, 5)),
    safe_embedding=(
        lambda t, ids: tf.gather(t, tf.clip_by_value(ids, 0, 15), batch_dims=0),
        F(16, 8),
        I(4),
    ),
    cross_entropy=(
        gradient_of(lambda x: nn.softmax_cross_entropy_with_logits(tf.one_hot([1, 2], 10), x)),
        F(2, 10),
    ),
    sparse_cross_entropy=(
        lambda y, x: nn.sparse_softmax_cross_entropy_with_logits(y, x),
        I(4),
        F(4, 10),
    ),
    sampled_softmax=(
        lambda w, b, y, x: nn.sampled_softmax_loss(w, b, y, x, 4, 16),
        F(16, 8),
        F(16),
        tf.TensorSpec([4, 1], tf.int64),
        F(4, 8),
    ),
    ctc=(
        lambda y, x, n, m: nn.ctc_loss(y, x, n, m, blank_index=0),
        I(2, 4),
        F(8, 2, 6),
        I(2),
        I(2),
    ),
    ctc_greedy=(lambda x, n: nn.ctc_greedy_decoder(x, n)[1], F(8, 2, 6), I(2)),
    in_top_k=(lambda x, y: nn.in_top_k(y, x, 3), F(4, 10), I(4)),
    activations=(
        lambda x: [
            f(x)
            for f in (
                nn.elu,
                nn.selu,
                nn.swish,
                nn.softplus,
                nn.relu6,
                nn.crelu,
                nn.leaky_relu,
                nn.softsign,
                nn.log_softmax,
            )
        ],
        F(4, 8),
    ),
    training_step=(with_state(variable(16, 4), train), F(8, 16)),
    momentum_step=(with_state(lambda: (variable(16, 4)(), variable(16, 4)()), momentum), F(8, 16)),
    keras_dense=(keras_layer(lambda k: k.Dense(4, activation="relu")), F(8, 16)),
    keras_convolution=(keras_layer(lambda k: k.Conv2D(4, 3)), IMAGES),
    keras_batch_norm=(keras_layer(lambda k: k.BatchNormalization()), IMAGES),
    keras_lstm=(keras_layer(lambda k: k.LSTM(8)), F(4, 6, 5)),
    keras_bidirectional=(keras_layer(lambda k: k.Bidirectional(k.GRU(8))), F(4, 6, 5)),
    keras_attention=(keras_layer(lambda k: k.MultiHeadAttention(2, 8)), F(2, 6, 16), F(2, 6, 16)),
    keras_embedding=(keras_layer(lambda k: k.Embedding(100, 8)), I(4, 5)),
    keras_augmentation=(keras_layer(lambda k: k.RandomFlip()), IMAGES),
    keras_rotation=(keras_layer(lambda k: k.RandomRotation(0.1)), IMAGES),
    keras_normalization=(keras_layer(lambda k: k.LayerNormalization()), F(4, 8)),
    keras_words=(keras_layer(lambda k: k.StringLookup(vocabulary=["a", "b"])), S(4)),
)
