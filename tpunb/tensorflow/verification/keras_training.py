"""Claims about Keras's `fit`: the cases of Keras's own test of strategies, on a TPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb.machine.keras_2 import chooses_keras_2
from tpunb.tensorflow.verification.strategy_suite import StrategySuite
from tpunb.tensorflow.verification.training import (
    FEATURES,
    HIDDEN,
    PER_LOOP,
    RATE,
    STEPS,
    batches,
    global_batch,
    in_a_row,
    initial_weights,
)
from tpunb.verification.suite import NotRunError, Outcome, close, equal

_VALIDATION_STEPS = 3
_OF_FLOAT16 = 1e-2
"""The allowed difference where float16 values are added up in another order."""
_SCALE, _GROWTH = 1024.0, 8
_MOMENTUM = 0.9


class Keras(StrategySuite):
    """Claims about the weights and losses of Keras's `fit`."""

    group = "Keras"

    def fit(self) -> Outcome:
        """Check that Keras's `fit`, with Adam, ends with the weights and the loss of a CPU."""
        # TensorFlow's build for TPUs has no XLA for the CPU (tensorflow/tensorflow#61976).
        expected = self._fitted(tf.device("/CPU:0"), jit_compile=False)
        found = self._fitted(self.strategy.scope(), steps_per_execution=PER_LOOP)
        return close(expected, found, self.tolerance(products=True))

    def batch_normalisation(self) -> Outcome:
        """Check that each replica normalises its own examples.

        Keras 3 then keeps the first replica's moving mean, and Keras 2 the mean of all replicas'.
        """
        examples = np.random.default_rng(5).normal(size=[self.replicas, 8, FEATURES])
        examples = examples.astype(np.float32)
        with self.strategy.scope():
            layer = tf.keras.layers.BatchNormalization(momentum=_MOMENTUM)
            layer.build([None, FEATURES])
        found = self.run(lambda x: layer(x, training=True), self.each(examples))
        means, variances = examples.mean(1, keepdims=True), examples.var(1, keepdims=True)
        own = (examples - means) / np.sqrt(variances + layer.epsilon)
        kept = means.mean(0) if chooses_keras_2() else means[0]
        moving = layer.moving_mean.numpy()
        expected = np.append(own, (1 - _MOMENTUM) * kept)
        return close(expected, np.append(found, moving), self.tolerance())

    def synchronised_batch_normalisation(self) -> Outcome:
        """Check that `BatchNormalization(synchronized=True)` trains as on the CPU's whole batch."""
        expected = self._normalised(tf.device("/CPU:0"), jit_compile=False)
        found = self._normalised(self.strategy.scope(), synchronised=True)
        return close(expected, found, self.tolerance(products=True))

    def loss_scaling(self) -> Outcome:
        """Check that `mixed_float16` with a `LossScaleOptimizer` trains as on a CPU."""
        _need_keras_3()
        expected, _ = self._scaled(tf.device("/CPU:0"), jit_compile=False)
        found, _ = self._scaled(self.strategy.scope())
        return close(expected, found, max(_OF_FLOAT16, self.tolerance(products=True)))

    def a_growing_loss_scale(self) -> Outcome:
        """Check that the scale of the loss doubles after each eight steps without overflow."""
        _need_keras_3()
        _, scale = self._scaled(self.strategy.scope())
        return equal(_SCALE * 2 ** (STEPS // _GROWTH), scale)

    def an_overflow_of_the_scaled_loss(self) -> Outcome:
        """Check that a step whose gradients overflow changes no weight and halves the scale."""
        _need_keras_3()
        optimizer = self._scaling_optimizer
        model = self._model(self.strategy.scope(), [_dense(1)], optimizer)
        before = in_a_row(model.weights)
        x = np.full([self.replicas, FEATURES], 1e30, np.float32)
        model.fit(x, x[:, :1], batch_size=self.replicas, epochs=1, verbose=0)
        found = in_a_row(model.weights)
        return close(np.append(before, _SCALE / 2), np.append(found, _scale_of(model)))

    def validation_data(self) -> Outcome:
        """Check that `fit` reports the loss of validation data as on a CPU."""
        data = batches(global_batch(self.replicas), _VALIDATION_STEPS)
        history = ("loss", "val_loss")
        expected = self._fitted(
            tf.device("/CPU:0"), history, validation_data=data, jit_compile=False
        )
        found = self._fitted(self.strategy.scope(), history, validation_data=data)
        return close(expected, found, self.tolerance(products=True))

    def a_distributed_dataset(self) -> Outcome:
        """Check that `fit` of a distributed dataset ends with the weights and the loss of a CPU."""
        expected = self._fitted(tf.device("/CPU:0"), jit_compile=False)
        data = self.strategy.experimental_distribute_dataset(self._batches())
        found = self._fitted(self.strategy.scope(), data=data, steps_per_epoch=STEPS)
        return close(expected, found, self.tolerance(products=True))

    def _batches(self) -> Any:
        return batches(global_batch(self.replicas))

    def _fitted(
        self,
        scope: Any,
        history: tuple[str, ...] = ("loss",),
        *,
        data: Any = None,
        validation_data: Any = None,
        steps_per_epoch: int | None = None,
        **options: Any,
    ) -> np.ndarray:
        """Return the weights of two layers after 20 steps of `fit`, and values of its history."""
        adam = lambda: tf.keras.optimizers.Adam(0.01)  # noqa: E731
        layers = [_dense(HIDDEN, "tanh"), _dense(1)]
        model = self._model(scope, layers, adam, initial_weights(), **options)
        done = model.fit(
            self._batches() if data is None else data,
            epochs=1,
            verbose=0,
            shuffle=False,
            steps_per_epoch=steps_per_epoch,
            validation_data=validation_data,
        )
        return np.append(in_a_row(model.weights), [done.history[name] for name in history])

    def _normalised(self, scope: Any, *, synchronised: bool = False, **options: Any) -> np.ndarray:
        """Return all weights after 20 steps of a model with batch normalisation."""

        def normalisation() -> Any:
            return tf.keras.layers.BatchNormalization(synchronized=synchronised)

        layers = [_dense(HIDDEN, "tanh"), normalisation, _dense(1)]
        sgd = lambda: tf.keras.optimizers.SGD(RATE)  # noqa: E731
        first, last = initial_weights()
        inner = [np.ones(HIDDEN), np.zeros(HIDDEN), np.zeros(HIDDEN), np.ones(HIDDEN)]
        # Keras lists a layer's gamma and beta before the moving mean and variance.
        model = self._model(scope, layers, sgd, [first, *inner, last], **options)
        model.fit(self._batches(), epochs=1, verbose=0, shuffle=False)
        return in_a_row(model.weights)

    def _scaled(self, scope: Any, **options: Any) -> tuple[np.ndarray, float]:
        """Return the weights and the scale of the loss after 20 steps in `mixed_float16`."""
        layers = [_dense(HIDDEN, "tanh", "mixed_float16"), _dense(1, None, "mixed_float16")]
        optimizer = self._scaling_optimizer
        model = self._model(scope, layers, optimizer, initial_weights(), **options)
        model.fit(self._batches(), epochs=1, verbose=0, shuffle=False)
        return in_a_row(model.weights), _scale_of(model)

    def _scaling_optimizer(self) -> Any:
        optimizers = tf.keras.optimizers
        return optimizers.LossScaleOptimizer(
            optimizers.SGD(RATE), initial_scale=_SCALE, dynamic_growth_steps=_GROWTH
        )

    def _model(
        self,
        scope: Any,
        layers: list[Callable[[], Any]],
        optimizer: Callable[[], Any],
        weights: list[np.ndarray] | None = None,
        **options: Any,
    ) -> Any:
        """Return a compiled model, made in a scope."""
        with scope:
            inputs = tf.keras.layers.Input((FEATURES,))
            model = tf.keras.Sequential([inputs, *(make() for make in layers)])
            if weights is not None:
                model.set_weights(weights)
            model.compile(optimizer(), "mse", **options)
        return model


def _dense(
    units: int, activation: str | None = None, dtype: str | None = None
) -> Callable[[], Any]:
    return lambda: tf.keras.layers.Dense(units, activation, False, dtype=dtype)


def _scale_of(model: Any) -> float:
    return float(model.optimizer.dynamic_scale.numpy())


def _need_keras_3() -> None:
    if chooses_keras_2():
        raise NotRunError("Keras 2 refuses to scale losses on TPUs")
