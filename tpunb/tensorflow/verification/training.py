"""Claims about numbers and training, compared with plain TensorFlow on a CPU."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb.tensorflow.verification.strategy_suite import StrategySuite
from tpunb.verification.suite import Outcome, close, equal

STEPS = 20
PER_LOOP = 5
RATE = 0.05
FEATURES, HIDDEN = 4, 8


def _convolution(x: Any) -> Any:
    kernel = tf.reshape(tf.linspace(-1.0, 1.0, 3 * 3 * 4 * 2), [3, 3, 4, 2])
    return tf.nn.conv2d(x[None], kernel, 1, "SAME")


def _gradient(x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(tf.tanh(tf.matmul(x, x, transpose_b=True)))
    return tape.gradient(loss, x)


def _functions(x: Any) -> Any:
    return tf.exp(x) + tf.math.log1p(tf.abs(x)) + tf.tanh(x) + tf.math.erf(x) + tf.sqrt(tf.abs(x))


def _normalisation(x: Any) -> Any:
    mean, variance = tf.nn.moments(x, [0, 1])
    return tf.nn.batch_normalization(x, mean, variance, 0.1, 2.0, 1e-3)


def _sorting(x: Any) -> Any:
    return tf.sort(x) + tf.cast(tf.argsort(x), tf.float32) + tf.math.top_k(x, 4).values


def _moving(x: Any) -> Any:
    rows = tf.gather(x, [3, 1, 0, 2, 7, 6, 5, 4])
    turned = tf.transpose(tf.reverse(rows, [1]), [1, 0, 2])
    return tf.tensor_scatter_nd_add(turned, [[0], [5]], tf.ones([2, 8, 4]))


def _loop(x: Any) -> Any:
    for i in tf.range(5):
        x = tf.where(x > 0.0, x * 0.5, x + tf.cast(i, tf.float32))
    return x


_FUNCTIONS: Mapping[str, tuple[Callable[[Any], Any], bool]] = {
    "matrix product": (lambda x: tf.matmul(x, x, transpose_b=True), True),
    "convolution": (_convolution, True),
    "gradient": (_gradient, True),
    "functions": (_functions, False),
    "softmax": (lambda x: tf.nn.softmax(x) + tf.nn.log_softmax(x), False),
    "normalisation": (_normalisation, False),
    "sorting": (_sorting, False),
    "gather, transpose, scatter": (_moving, False),
    "sums": (lambda x: tf.cumsum(x) + tf.reduce_sum(x, keepdims=True) + tf.reduce_max(x, 0), False),
    "a loop": (_loop, False),
}
"""Functions of float32[8, 8, 4], and whether they have matrix products."""


class Numbers(StrategySuite):
    """Claims about the results of functions on every replica."""

    group = "numbers"
    says = "Every replica computes what TensorFlow computes on a CPU."
    programs = _FUNCTIONS

    def attempt(self, name: str) -> Outcome:
        """Compare the results of one function."""
        function, products = self.programs[name]
        inputs = np.random.default_rng(0).normal(size=[self.replicas, 8, 8, 4])
        inputs = inputs.astype(np.float32)
        with tf.device("/CPU:0"):
            plain = tf.function(function)
            expected = [plain(tf.constant(values)).numpy() for values in inputs]
        found = self.run(function, self.each(inputs))
        return close(expected, found, self.tolerance(products=products))


class Training(StrategySuite):
    """Claims about weights, losses and curves after 20 steps, made in different ways."""

    group = "training"

    def weights_after_20_steps(self) -> Outcome:
        """Check that a custom loop ends with the weights of a CPU."""
        weights, train = self._network()

        @tf.function  # type: ignore[untyped-decorator]
        def step(iterator: Any) -> Any:
            losses = self.strategy.run(train, args=next(iterator))
            return self.strategy.reduce("SUM", losses, axis=None)

        iterator = iter(self.strategy.experimental_distribute_dataset(self._batches()))
        for _ in range(STEPS):
            step(iterator)
        return self._as_on_a_cpu(self._on_a_cpu[0], in_a_row(weights))

    def steps_in_loops(self) -> Outcome:
        """Check that five steps in one call give the same weights."""
        weights, _ = self._in_loops
        return self._as_on_a_cpu(self._on_a_cpu[0], in_a_row(weights))

    def curves(self) -> Outcome:
        """Check that the history has the loss of each of the 20 steps."""
        _, result = self._in_loops
        return self._as_on_a_cpu(self._on_a_cpu[1], result.history.values("loss"))

    def equal_copies(self) -> Outcome:
        """Check that all cores have the same weights afterwards."""
        weights, _ = self._in_loops
        of_replicas = zip(*map(self.local, weights), strict=True)
        copies = [np.concatenate([part.reshape(-1) for part in parts]) for parts in of_replicas]
        return close(self.everywhere(copies[0]), copies)

    def cells(self) -> Outcome:
        """Check that a cell's names are reduced and gathered as `%%tpu_run` requests."""
        names: dict[str, Any] = {"x": self.each(self.ranks[:, None])}
        source = "mean = x + 1.0\nrow = x * 2.0\n"
        self.connection.run_cell(source, names, reduce={"mean": "mean"}, gather={"row": 0})
        found = np.concatenate([np.reshape(names["mean"], [-1]), np.reshape(names["row"], [-1])])
        return close([self.ranks.mean() + 1.0, *self.ranks * 2.0], found, self.tolerance())

    def an_odd_last_batch(self) -> Outcome:
        """Check that examples that do not fill a batch reach the replicas too."""
        count = 2 * self.replicas + 1
        data = tf.data.Dataset.range(count).batch(2 * self.replicas)
        batches = self.strategy.experimental_distribute_dataset(data)
        return equal(count, sum(part.size for batch in batches for part in self.local(batch)))

    def _batches(self) -> Any:
        return batches(self._global_batch)

    @property
    def _global_batch(self) -> int:
        return global_batch(self.replicas)

    def _network(self, on_a_cpu: bool = False) -> tuple[list[Any], Callable[[Any, Any], Any]]:
        """Return the weights of two layers, and a gradient descent step that returns its loss."""
        mean = tf.VariableAggregation.MEAN
        make = tf.Variable if on_a_cpu else functools.partial(self.variable, aggregation=mean)
        first, last = weights = [make(value) for value in initial_weights()]

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                predicted = tf.matmul(tf.tanh(tf.matmul(x, first)), last)
                loss = tf.reduce_sum((predicted - y) ** 2) / self._global_batch
            for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
                if not on_a_cpu:
                    gradient = tf.distribute.get_replica_context().all_reduce("SUM", gradient)
                weight.assign_sub(RATE * gradient)
            return loss

        return weights, step

    @functools.cached_property
    def _on_a_cpu(self) -> tuple[np.ndarray, list[float]]:
        """The weights after 20 steps and the losses of plain TensorFlow."""
        with tf.device("/CPU:0"):
            weights, train = self._network(on_a_cpu=True)
            step = tf.function(train)
            losses = [float(step(x, y)) for x, y in self._batches()]
        return in_a_row(weights), losses

    @functools.cached_property
    def _in_loops(self) -> tuple[list[Any], Any]:
        """The weights after 20 steps, five in one call, and the result of the run."""
        weights, train = self._network()
        return weights, self.connection.run(
            lambda x, y: {"loss": train(x, y)},
            self._batches(),
            steps=STEPS,
            steps_per_loop=PER_LOOP,
            plot="loss",
            reduce={"loss": "sum"},
        )

    def _as_on_a_cpu(self, expected: Any, found: Any) -> Outcome:
        return close(expected, found, self.tolerance(products=True))


def global_batch(replicas: int) -> int:
    """Return the size of a batch: at least 64 examples, divided evenly among the replicas."""
    return replicas * max(1, math.ceil(64 / replicas))


def batches(size: int, steps: int = STEPS) -> Any:
    """Return a dataset with the examples of some steps."""
    x = np.random.default_rng(1).normal(size=[steps * size, FEATURES]).astype(np.float32)
    y = (np.sin(x.sum(axis=1, keepdims=True)) + 0.1).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(size, drop_remainder=True)


def initial_weights() -> list[np.ndarray]:
    """Return the first weights of two layers."""
    random = np.random.default_rng(2)
    shapes = ([FEATURES, HIDDEN], [HIDDEN, 1])
    return [0.5 * random.normal(size=shape).astype(np.float32) for shape in shapes]


def in_a_row(weights: Any) -> np.ndarray:
    """Return the numbers of all variables in one array."""
    return np.concatenate([weight.numpy().reshape(-1) for weight in weights])
