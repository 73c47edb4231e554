"""Training steps of every kind, correct and with the classic mistake, for `tpunb.compare`.

Each function takes a strategy and returns the step and its arguments. With `wrong=True`, the step
makes the mistake: it takes the mean over the examples of a replica, and does not divide it by the
number of replicas.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tf_keras

Kind = Callable[..., tuple[Any, tuple[Any, ...]]]
KINDS: dict[str, Kind] = {}
FEATURES = 6


def kind(function: Kind) -> Kind:
    KINDS[function.__name__] = function
    return function


def batch(replicas: int, each: int = 3, *, seed: int = 1, extra: int = 0) -> tf.data.Dataset:
    """Return a dataset whose batches have `each` examples for each replica, and some extra."""
    rows = np.random.default_rng(seed)
    count = replicas * each + extra
    x = rows.normal(size=[count, FEATURES]).astype("float32")
    y = rows.normal(size=[count, 1]).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(count)


def args_of(strategy: Any, **options: Any) -> tuple[Any, ...]:
    """Return a global batch, distributed to the replicas."""
    data = strategy.experimental_distribute_dataset(batch(strategy.num_replicas_in_sync, **options))
    return tuple(next(iter(data)))


def dense_model(lib: Any = keras, *layers: Any) -> Any:
    return lib.Sequential(
        [
            lib.layers.Input([FEATURES]),
            lib.layers.Dense(5, activation="tanh"),
            *layers,
            lib.layers.Dense(1),
        ]
    )


def mean(strategy: Any, wrong: bool, value: Any) -> Any:
    """Return a replica's share of the global mean; the mistake does not divide by the replicas."""
    mean_value = tf.reduce_mean(value)
    return mean_value if wrong else mean_value / strategy.num_replicas_in_sync


def training(
    strategy: Any, opt: Any, weights: Callable[[], list[Any]], loss: Callable[[Any, Any], Any]
) -> tuple[Any, tuple[Any, ...]]:
    """Return a step that applies the gradients of a loss of a batch, and its arguments."""

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            value = loss(x, y)
        variables = weights()
        opt.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))

    return step, args_of(strategy)


def loop(
    strategy: Any,
    wrong: bool,
    *,
    lib: Any = keras,
    optimizer: Callable[[], Any] | None = None,
    layers: Callable[[], list[Any]] = list,
    loss: Callable[[Any, int], Any] | None = None,
    more: Callable[[Any], Any] = lambda model: 0.0,
    change: Callable[[list[Any]], list[Any]] = lambda gradients: gradients,
    **options: Any,
) -> tuple[Any, tuple[Any, ...]]:
    """Return a custom training step with Keras's model and optimizer, and its arguments."""
    with strategy.scope():
        model = dense_model(lib, *layers())
        opt = (optimizer or (lambda: lib.optimizers.SGD(0.1)))()
    replicas = strategy.num_replicas_in_sync  # outside of the step, as a Python constant

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            error = tf.square(model(x, training=True) - y)
            if loss is not None and not wrong:
                value = loss(error, replicas)
            else:
                value = mean(strategy, wrong, error)
            value += more(model)
        gradients = tape.gradient(value, model.trainable_variables)
        opt.apply_gradients(zip(change(gradients), model.trainable_variables, strict=True))
        return value

    return step, args_of(strategy, **options)


LOOPS: dict[str, dict[str, Any]] = {
    # Optimizers of Keras 3
    "sgd": {},
    "momentum": {"optimizer": lambda: keras.optimizers.SGD(0.1, momentum=0.9)},
    "adam": {"optimizer": lambda: keras.optimizers.Adam(1e-3)},
    "adamw": {"optimizer": lambda: keras.optimizers.AdamW(1e-3, weight_decay=0.1)},
    "weight_decay_of_sgd": {"optimizer": lambda: keras.optimizers.SGD(0.1, weight_decay=0.01)},
    "rmsprop": {"optimizer": lambda: keras.optimizers.RMSprop(1e-3)},
    "lion": {"optimizer": lambda: keras.optimizers.Lion(1e-3)},
    "adafactor": {"optimizer": lambda: keras.optimizers.Adafactor(1e-3)},
    "adagrad": {"optimizer": lambda: keras.optimizers.Adagrad(1e-2)},
    "clipped_by_global_norm": {
        "optimizer": lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.01)
    },
    "clipped_by_norm": {"optimizer": lambda: keras.optimizers.Adam(1e-3, clipnorm=0.01)},
    "clipped_by_value": {"optimizer": lambda: keras.optimizers.SGD(0.1, clipvalue=0.001)},
    "clipped_by_hand": {"change": lambda found: tf.clip_by_global_norm(found, 0.05)[0]},
    "accumulated_by_keras": {
        "optimizer": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=3)
    },
    # Keras 2
    "legacy_adam": {"lib": tf_keras},
    "legacy_optimizer": {
        "lib": tf_keras,
        "optimizer": lambda: tf_keras.optimizers.legacy.Adam(1e-3),
    },
    "legacy_dropout": {"lib": tf_keras, "layers": lambda: [tf_keras.layers.Dropout(0.5)]},
    # Layers
    "batch_norm": {"layers": lambda: [keras.layers.BatchNormalization()]},
    "sync_batch_norm": {"layers": lambda: [keras.layers.BatchNormalization(synchronized=True)]},
    "dropout": {"layers": lambda: [keras.layers.Dropout(0.5)]},
    "noise": {"layers": lambda: [keras.layers.GaussianNoise(0.5)]},
    # Losses from the squared errors and the number of replicas
    "average_loss": {"loss": lambda error, _: tf.nn.compute_average_loss(error[:, 0])},
    "average_loss_of_a_known_batch": {
        "loss": lambda error, n: tf.nn.compute_average_loss(error[:, 0], global_batch_size=3 * n)
    },
    "sum_over_the_global_batch": {"loss": lambda error, n: tf.reduce_sum(error) * (1 / (3 * n))},
    "divided_by_a_python_number": {"loss": lambda error, n: tf.reduce_mean(error) / n},
    "divided_by_a_cast_number": {
        "loss": lambda error, n: tf.reduce_mean(error) / tf.cast(n, tf.float32)
    },
    # Data
    "parts_of_unequal_size": {"extra": 1},
}
"""The arguments of `loop` for each kind of step that needs no custom code."""

KINDS |= {name: functools.partial(loop, **options) for name, options in LOOPS.items()}


def _l2(model: Any) -> Any:
    return 0.3 * tf.add_n([tf.nn.l2_loss(w) for w in model.trainable_variables])


@kind
def l2_in_the_loss(strategy: Any, wrong: bool) -> Any:
    share = 1 if wrong else strategy.num_replicas_in_sync
    return loop(strategy, wrong, more=lambda model: _l2(model) / share)


@kind
def l2_scaled_by_tensorflow(strategy: Any, wrong: bool) -> Any:
    scale = tf.identity if wrong else tf.nn.scale_regularization_loss
    return loop(strategy, wrong, more=lambda model: scale(_l2(model)))


@kind
def divided_by_a_tensor(strategy: Any, wrong: bool) -> Any:
    n = tf.constant(float(strategy.num_replicas_in_sync))
    return loop(strategy, wrong, loss=lambda error, _: tf.reduce_mean(error) / n)


@kind
def gradients_divided(strategy: Any, wrong: bool) -> Any:
    n = 1 if wrong else strategy.num_replicas_in_sync
    return loop(strategy, wrong=True, change=lambda found: [gradient / n for gradient in found])


@kind
def loss_of_keras(strategy: Any, wrong: bool) -> Any:
    with strategy.scope():
        model, opt = dense_model(), keras.optimizers.Adam(1e-2)
        per_example = keras.losses.MeanSquaredError(reduction=None)

    def loss(x: Any, y: Any) -> Any:
        values = per_example(y, model(x, training=True))
        return tf.reduce_mean(values) if wrong else tf.nn.compute_average_loss(values)

    return training(strategy, opt, lambda: model.trainable_variables, loss)


def _by_hand(strategy: Any, reduction: Any, divides: bool) -> Any:
    with strategy.scope():
        w = tf.Variable(tf.ones([FEATURES, 1]), name="w")
        b = tf.Variable(0.5, name="b")

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(x, w) + b - y))
            if divides:
                loss /= strategy.num_replicas_in_sync
        found = tape.gradient(loss, [w, b])
        context = tf.distribute.get_replica_context()
        for variable, gradient in zip([w, b], context.all_reduce(reduction, found), strict=True):
            variable.assign_sub(0.1 * gradient)

    return step, args_of(strategy)


@kind
def optimizer_by_hand(strategy: Any, wrong: bool) -> Any:
    return _by_hand(strategy, tf.distribute.ReduceOp.SUM, divides=not wrong)


@kind
def mean_of_gradients(strategy: Any, wrong: bool) -> Any:
    how = tf.distribute.ReduceOp
    return _by_hand(strategy, how.SUM if wrong else how.MEAN, divides=False)


@kind
def gradients_divided_after_the_sum(strategy: Any, wrong: bool) -> Any:
    with strategy.scope():
        w = tf.Variable(tf.ones([FEATURES, 1]), name="w")

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - y))
        context = tf.distribute.get_replica_context()
        total = context.all_reduce("sum", tape.gradient(loss, w))
        w.assign_sub(0.1 * total / (1 if wrong else context.num_replicas_in_sync))

    return step, args_of(strategy)


@kind
def aggregated_by_the_variable(strategy: Any, wrong: bool) -> Any:
    how = tf.VariableAggregation
    with strategy.scope():
        w = tf.Variable(tf.ones([FEATURES, 1]), aggregation=how.SUM if wrong else how.MEAN)

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - y))
        w.assign_sub(0.1 * tape.gradient(loss, w))

    return step, args_of(strategy)


@kind
def reduced_in_a_merge_call(strategy: Any, wrong: bool) -> Any:
    with strategy.scope():
        w = tf.Variable(tf.ones([FEATURES, 1]), name="w")
    how = tf.distribute.ReduceOp.SUM if wrong else tf.distribute.ReduceOp.MEAN

    def merged(strategy: Any, gradient: Any) -> None:
        total = strategy.extended.reduce_to(how, gradient, destinations=w)
        strategy.extended.update(w, lambda v, g: v.assign_sub(0.1 * g), args=(total,))

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - y))
        tf.distribute.get_replica_context().merge_call(merged, args=(tape.gradient(loss, w),))

    return step, args_of(strategy)


@kind
def accumulated_in_a_step(strategy: Any, wrong: bool) -> Any:
    with strategy.scope():
        model, opt = dense_model(), keras.optimizers.Adam(1e-2)

    def step(x: Any, y: Any) -> None:
        total: list[Any] = []
        for part in range(2):
            with tf.GradientTape() as tape:
                error = tf.square(model(x * (part + 1.0), training=True) - y)
                loss = mean(strategy, wrong, error) / 2.0
            found = tape.gradient(loss, model.trainable_variables)
            total = [a + b for a, b in zip(total, found, strict=True)] if total else found
        opt.apply_gradients(zip(total, model.trainable_variables, strict=True))

    return step, args_of(strategy)


@kind
def loss_scale(strategy: Any, wrong: bool) -> Any:
    with strategy.scope():
        model = dense_model()
        opt = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))

    def loss(x: Any, y: Any) -> Any:
        return opt.scale_loss(mean(strategy, wrong, tf.square(model(x, training=True) - y)))

    return training(strategy, opt, lambda: model.trainable_variables, loss)


@kind
def bfloat16(strategy: Any, wrong: bool) -> Any:
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input([FEATURES]),
                keras.layers.Dense(5, activation="tanh", dtype="mixed_bfloat16"),
                keras.layers.Dense(1, dtype="mixed_bfloat16"),
            ]
        )
        opt = keras.optimizers.Adam(1e-2)

    def loss(x: Any, y: Any) -> Any:
        return mean(strategy, wrong, tf.square(tf.cast(model(x, training=True), tf.float32) - y))

    return training(strategy, opt, lambda: model.trainable_variables, loss)


@kind
def embedding(strategy: Any, wrong: bool) -> Any:
    with strategy.scope():
        table = tf.Variable(tf.random.stateless_normal([50, 4], [1, 2]), name="table")
        out = tf.Variable(tf.ones([4, 1]), name="out")
        opt = keras.optimizers.Adam(1e-2)

    def step(x: Any, y: Any) -> None:
        ids = tf.cast(tf.math.floormod(tf.abs(x) * 100, 50.0), tf.int32)
        with tf.GradientTape() as tape:
            mixed = tf.reduce_sum(tf.nn.embedding_lookup(table, ids), axis=1)
            loss = mean(strategy, wrong, tf.square(tf.matmul(mixed, out) - y))
        found = tape.gradient(loss, [table, out])
        assert isinstance(found[0], tf.IndexedSlices)
        opt.apply_gradients(zip(found, [table, out], strict=True))

    return step, args_of(strategy)


@kind
def replicas_with_data_of_their_own(strategy: Any, wrong: bool) -> Any:
    with strategy.scope():
        model, opt = dense_model(), keras.optimizers.SGD(0.1)

    def loss(x: Any, y: Any) -> Any:
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        x += 0.01 * tf.cast(replica, tf.float32) * 0
        return mean(strategy, wrong, tf.square(model(x, training=True) - y))

    return training(strategy, opt, lambda: model.trainable_variables, loss)


@kind
def caller_of_run(strategy: Any, wrong: bool) -> Any:
    inner, args = loop(strategy, wrong)
    with strategy.scope():
        steps = tf.Variable(0, dtype=tf.int64)

    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        losses = strategy.run(inner, args=(x, y))
        steps.assign_add(1)
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    return train_step, args


@kind
def replica_function_of_tensorflow(strategy: Any, wrong: bool) -> Any:
    inner, args = loop(strategy, wrong)
    return tf.function(inner), args


@kind
def metrics_of_keras(strategy: Any, wrong: bool) -> Any:
    inner, args = loop(strategy, wrong)
    with strategy.scope():
        metric = keras.metrics.Mean()

    def step(x: Any, y: Any) -> None:
        metric.update_state(inner(x, y))

    return step, args


@kind
def trained_by_hand_in_train_step(strategy: Any, wrong: bool) -> Any:
    class Model(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = dense_model()

        def call(self, x: Any, training: bool = False) -> Any:
            return self.inner(x, training=training)

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = mean(
                    tf.distribute.get_strategy(), wrong, tf.square(self(x, training=True) - y)
                )
            found = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(found, self.trainable_variables, strict=True))
            return {"loss": loss}

    with strategy.scope():
        model = Model()
        model.compile(keras.optimizers.Adam(1e-2))
    return model, (batch(strategy.num_replicas_in_sync),)


def _compiled(strategy: Any, lib: Any, wrong: bool) -> tuple[Any, tuple[Any, ...]]:
    """Return a compiled model; the mistake is in a custom train step."""
    with strategy.scope():
        model = dense_model(lib)
        model.compile(lib.optimizers.Adam(1e-3), "mse", metrics=["mae"])
        if wrong:
            model.train_step = functools.partial(_train_step_of_its_own, model)
    return model, (batch(strategy.num_replicas_in_sync),)


def _train_step_of_its_own(model: Any, data: Any) -> Any:
    x, y = data
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
    found = tape.gradient(loss, model.trainable_variables)
    model.optimizer.apply_gradients(zip(found, model.trainable_variables, strict=True))
    return {"loss": loss}


@kind
def compiled_model(strategy: Any, wrong: bool) -> Any:
    return _compiled(strategy, keras, wrong)


@kind
def compiled_legacy_model(strategy: Any, wrong: bool) -> Any:
    return _compiled(strategy, tf_keras, wrong)


@kind
def two_networks(strategy: Any, wrong: bool) -> Any:
    """Train a generator and a discriminator, with a tape for each."""
    with strategy.scope():
        generator, discriminator = keras.Sequential([keras.layers.Dense(FEATURES)]), dense_model()
        opts = [keras.optimizers.Adam(1e-3) for _ in range(2)]
        generator.build([None, FEATURES])

    def step(x: Any, y: Any) -> None:
        z = tf.random.normal(tf.shape(x))
        with tf.GradientTape() as generator_tape, tf.GradientTape() as discriminator_tape:
            fake, real = discriminator(generator(z)), discriminator(x)
            loss_1 = mean(strategy, wrong, tf.square(fake - 1))
            loss_2 = mean(strategy, wrong, tf.square(fake) + tf.square(real - 1))
        for tape, loss, model, opt in (
            (generator_tape, loss_1, generator, opts[0]),
            (discriminator_tape, loss_2, discriminator, opts[1]),
        ):
            found = tape.gradient(loss, model.trainable_variables)
            opt.apply_gradients(zip(found, model.trainable_variables, strict=True))

    return step, args_of(strategy)


@kind
def two_divisions_by_python_numbers(strategy: Any, wrong: bool) -> Any:
    n = 1 if wrong else strategy.num_replicas_in_sync
    with strategy.scope():
        first, second = dense_model(), dense_model()
        opt = keras.optimizers.SGD(1e-3)

    def loss(x: Any, y: Any) -> Any:
        squares = tf.reduce_mean(tf.square(first(x) - y)) / n
        return squares + tf.reduce_mean(tf.abs(second(x) - y)) * (1 / n)

    def weights() -> list[Any]:
        return [*first.trainable_variables, *second.trainable_variables]

    return training(strategy, opt, weights, loss)


@kind
def images(strategy: Any, wrong: bool) -> Any:
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input([4, 4, 1]),
                keras.layers.Conv2D(3, 3, padding="same"),
                keras.layers.BatchNormalization(),
                keras.layers.ReLU(),
                keras.layers.SpatialDropout2D(0.3),
                keras.layers.GlobalAveragePooling2D(),
                keras.layers.Dense(3),
            ]
        )
        opt = keras.optimizers.AdamW(1e-3, global_clipnorm=0.1)
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
    n = strategy.num_replicas_in_sync

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            losses = entropy(y, model(x, training=True))
            loss = tf.reduce_mean(losses) if wrong else tf.reduce_sum(losses) / (4 * n)
        found = tape.gradient(loss, model.trainable_variables)
        opt.apply_gradients(zip(found, model.trainable_variables, strict=True))

    rows = np.random.default_rng(3)
    x = rows.normal(size=[4 * n, 4, 4, 1]).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, rows.integers(0, 3, 4 * n)))
    return step, tuple(next(iter(strategy.experimental_distribute_dataset(data.batch(4 * n)))))


@kind
def recurrent(strategy: Any, wrong: bool) -> Any:
    with strategy.scope():
        model = keras.Sequential(
            [keras.layers.Input([3, 2]), keras.layers.LSTM(4), keras.layers.Dense(1)]
        )
        opt = keras.optimizers.RMSprop(1e-3)

    def loss(x: Any, y: Any) -> Any:
        error = tf.square(model(tf.reshape(x, [-1, 3, 2]), training=True) - y)
        return tf.reduce_mean(error) if wrong else tf.nn.compute_average_loss(error[:, 0])

    return training(strategy, opt, lambda: model.trainable_variables, loss)


@kind
def two_optimizers(strategy: Any, wrong: bool) -> Any:
    with strategy.scope():
        first, second = dense_model(), dense_model()
        opts = [keras.optimizers.Adam(1e-3), keras.optimizers.SGD(1e-2)]

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape(persistent=True) as tape:
            loss_1 = mean(strategy, wrong, tf.square(first(x, training=True) - y))
            error = tf.abs(second(x, training=True) - tf.stop_gradient(first(x)))
            loss_2 = mean(strategy, wrong, error)
        for model, opt, loss in zip([first, second], opts, [loss_1, loss_2], strict=True):
            found = tape.gradient(loss, model.trainable_variables)
            opt.apply_gradients(zip(found, model.trainable_variables, strict=True))

    return step, args_of(strategy)


@kind
def gradient_penalty(strategy: Any, wrong: bool) -> Any:
    with strategy.scope():
        model, opt = dense_model(), keras.optimizers.Adam(1e-3)

    def loss(x: Any, y: Any) -> Any:
        with tf.GradientTape() as inner:
            inner.watch(x)
            out = model(x, training=True)
        slope = inner.gradient(out, x)
        value = tf.reduce_mean(tf.square(out - y)) + tf.reduce_mean(tf.square(slope))
        return mean(strategy, wrong, value)

    return training(strategy, opt, lambda: model.trainable_variables, loss)


@kind
def attention_with_a_scale_of_an_eighth(strategy: Any, wrong: bool) -> Any:
    with strategy.scope():
        q, k = (tf.Variable(tf.random.stateless_normal([FEATURES, 64], [1, n])) for n in range(2))
        opt = keras.optimizers.Adam(1e-3)

    def loss(x: Any, y: Any) -> Any:
        scores = tf.matmul(x @ q, x @ k, transpose_b=True) * 0.125
        return mean(strategy, wrong, tf.square(tf.nn.softmax(scores / 8.0) @ y - y))

    return training(strategy, opt, lambda: [q, k], loss)


def _trained(strategy: Any, loss: Callable[[Any, Any, Any], Any]) -> tuple[Any, Any, Any, Any]:
    """Return a model, its optimizer, its loss with gradients, and a function to apply gradients."""
    with strategy.scope():
        model, opt = dense_model(), keras.optimizers.SGD(0.1)

    def gradients(x: Any, y: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            value = loss(model, x, y)
        return value, tape.gradient(value, model.trainable_variables)

    def apply(found: Any) -> None:
        opt.apply_gradients(zip(found, model.trainable_variables, strict=True))

    return model, opt, gradients, apply


def _squared(strategy: Any, wrong: bool) -> Callable[[Any, Any, Any], Any]:
    return lambda model, x, y: mean(strategy, wrong, tf.square(model(x, training=True) - y))


@kind
def loop_in_the_graph(strategy: Any, wrong: bool) -> Any:
    _, _, gradients, apply = _trained(strategy, _squared(strategy, wrong))

    def step(x: Any, y: Any) -> None:
        for _ in tf.range(2):
            apply(gradients(x, y)[1])

    return step, args_of(strategy)


@kind
def compiled_by_xla(strategy: Any, wrong: bool) -> Any:
    _, _, gradients, apply = _trained(strategy, _squared(strategy, wrong))

    def step(x: Any, y: Any) -> None:
        apply(gradients(x, y)[1])

    return tf.function(step, jit_compile=True), args_of(strategy)


@kind
def only_if_the_loss_is_finite(strategy: Any, wrong: bool) -> Any:
    _, _, gradients, apply = _trained(strategy, _squared(strategy, wrong))

    def step(x: Any, y: Any) -> None:
        loss, found = gradients(x, y)
        if tf.math.is_finite(loss):
            apply(found)

    return step, args_of(strategy)


@kind
def sharpness_aware(strategy: Any, wrong: bool) -> Any:
    model, _, gradients, apply = _trained(strategy, _squared(strategy, wrong))

    def step(x: Any, y: Any) -> None:
        weights = model.trainable_variables
        total = tf.distribute.get_replica_context().all_reduce("sum", gradients(x, y)[1])
        norm = tf.linalg.global_norm(total) + 1e-12
        moves = [0.05 * gradient / norm for gradient in total]
        for weight, move in zip(weights, moves, strict=True):
            weight.assign_add(move)
        found = gradients(x, y)[1]
        for weight, move in zip(weights, moves, strict=True):
            weight.assign_sub(move)
        apply(found)

    return step, args_of(strategy)


@kind
def pixels_divided_by_a_python_number(strategy: Any, wrong: bool) -> Any:
    n = 1 if wrong else strategy.num_replicas_in_sync

    def loss(model: Any, x: Any, y: Any) -> Any:
        error = tf.square(model(x) - y)[:, :, None, None] * tf.ones([1, 1, 2, 2])
        return tf.reduce_mean(error / n)

    _, _, gradients, apply = _trained(strategy, loss)
    return lambda x, y: apply(gradients(x, y)[1]), args_of(strategy)


@kind
def recomputed(strategy: Any, wrong: bool) -> Any:
    with strategy.scope():
        inner = tf.Variable(tf.random.stateless_normal([FEATURES, 5], [1, 2]))
        outer = tf.Variable(tf.random.stateless_normal([5, 1], [1, 3]))
        opt = keras.optimizers.Adam(1e-3)
    model = tf.recompute_grad(lambda x: tf.matmul(tf.tanh(tf.matmul(x, inner)), outer))

    def loss(x: Any, y: Any) -> Any:
        return mean(strategy, wrong, tf.square(model(x) - y))

    return training(strategy, opt, lambda: [inner, outer], loss)


@kind
def minimized_in_a_caller(strategy: Any, wrong: bool) -> Any:
    """Train with an optimizer that the first trace of a nested function builds."""
    with strategy.scope():
        model, opt = dense_model(tf_keras), tf_keras.optimizers.Adam(1e-3)

    def replica(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = mean(strategy, wrong, tf.square(model(x) - y))
        opt.minimize(loss, model.trainable_variables, tape=tape)

    @tf.function
    def train(pair: Any) -> None:
        strategy.run(replica, args=pair)

    return lambda x, y: train((x, y)), args_of(strategy)
