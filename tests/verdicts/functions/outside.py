"""Operations of the host: strings, files, Python, tables, printing."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from verdicts.specs import F, I, L, S, entries, with_state

X, WORDS = F(8), S(4)


def table() -> Any:
    pairs = tf.lookup.KeyValueTensorInitializer([1, 2], [3, 4], tf.int64, tf.int64)
    return tf.lookup.StaticHashTable(pairs, 0)


def queue() -> Any:
    return tf.queue.FIFOQueue(4, [tf.float32], [[8]])


def printed(x: Any) -> Any:
    tf.print("sum:", tf.reduce_sum(x))
    return x


FUNCTIONS = entries(
    words=(tf.strings.length, WORDS),
    words_split=(lambda w: tf.strings.split(w).flat_values, WORDS),
    words_joined=(lambda w: tf.strings.join([w, w]), WORDS),
    words_hashed=(lambda w: tf.strings.to_hash_bucket_fast(w, 10), WORDS),
    words_compared=(lambda w: w == "a", WORDS),
    word_constant=(lambda x: (x, tf.constant("text")), X),
    word_unused=(lambda x: (tf.constant("text"), x * 2.0)[1], X),
    number_to_word=(lambda x: tf.strings.length(tf.strings.as_string(x)), X),
    word_to_number=(tf.strings.to_number, WORDS),
    printed=(printed, X),
    asserted=(lambda x: (tf.debugging.assert_greater(x[0], 0.0), x)[1], X),
    python=(lambda x: tf.py_function(lambda y: y, [x], tf.float32), X),
    numpy=(lambda x: tf.numpy_function(lambda y: y, [x], tf.float32), X),
    table=(with_state(table, lambda one, i: one.lookup(i)), L(8)),
    queue=(with_state(queue, lambda one, x: one.dequeue()), X),
    file=(lambda x: (tf.io.read_file("/dev/null"), x)[0], X),
    decoded=(lambda w: tf.io.decode_raw(w, tf.uint8, fixed_length=4), WORDS),
    decoded_image=(lambda w: tf.io.decode_jpeg(w), S()),
    encoded_image=(lambda x: tf.io.encode_jpeg(tf.cast(x, tf.uint8)), I(8, 8, 3)),
    parsed=(
        lambda w: tf.io.parse_single_example(w, {"x": tf.io.FixedLenFeature([], tf.float32)})["x"],
        S(),
    ),
    serialised=(tf.io.serialize_tensor, X),
    timestamp=(lambda x: x + tf.cast(tf.timestamp(), tf.float32), X),
    dataset=(lambda x: tf.data.Dataset.from_tensor_slices(x).reduce(0.0, lambda a, b: a + b), X),
    audio=(lambda x: tf.audio.encode_wav(x[:, None], 8000), X),
    bucketised=(lambda x: tf.raw_ops.Bucketize(input=x, boundaries=[0.0, 1.0]), X),
    parameterised=(
        lambda x: tf.raw_ops.ParameterizedTruncatedNormal(
            shape=[1, 4], means=x[:1], stdevs=x[:1], minvals=x[:1], maxvals=x[:1]
        ),
        X,
    ),
)
