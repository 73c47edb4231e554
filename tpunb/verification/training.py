"""Claims about training: weights, losses and curves after 20 steps, however they are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tpunb.verification.bench import Bench
from tpunb.verification.claims import Claims
from tpunb.verification.observation import Observation
from tpunb.verification.observing import close, equal

__all__ = ["TRAINING"]

TRAINING = Claims("training")
_STEPS = 20
_PER_LOOP = 5
_RATE = 0.05
_FEATURES, _HIDDEN = 4, 8


def _data(bench: Bench) -> tuple[np.ndarray, np.ndarray]:
    """Examples for 20 steps."""
    random = np.random.default_rng(1)
    x = random.normal(size=[_STEPS * bench.global_batch, _FEATURES]).astype(np.float32)
    return x, (np.sin(x.sum(axis=1, keepdims=True)) + 0.1).astype(np.float32)


def _batches(bench: Bench) -> Any:
    import tensorflow as tf

    batches = tf.data.Dataset.from_tensor_slices(_data(bench))
    return batches.batch(bench.global_batch, drop_remainder=True)


def _weights() -> list[np.ndarray]:
    random = np.random.default_rng(2)
    shapes = ([_FEATURES, _HIDDEN], [_HIDDEN, 1])
    return [0.5 * random.normal(size=shape).astype(np.float32) for shape in shapes]


class _Network:
    """Two layers that gradient descent trains, in TensorFlow alone.

    Args:
        make: Makes a variable.
        batch: The global batch size.
        total: Adds up over the replicas.
    """

    def __init__(
        self, make: Callable[[np.ndarray], Any], batch: int, total: Callable[[Any], Any]
    ) -> None:
        self.weights = [make(value) for value in _weights()]
        self._batch, self._total = batch, total

    def step(self, x: Any, y: Any) -> Any:
        """Makes a step; returns this replica's part of the loss."""
        import tensorflow as tf

        first, last = self.weights
        with tf.GradientTape() as tape:
            found = tf.matmul(tf.tanh(tf.matmul(x, first)), last)
            loss = tf.reduce_sum((found - y) ** 2) / self._batch
        gradients = tape.gradient(loss, self.weights)
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.assign_sub(_RATE * self._total(gradient))
        return loss

    def values(self) -> np.ndarray:
        """All weights in a row."""
        return np.concatenate([weight.numpy().reshape(-1) for weight in self.weights])


def _on_a_cpu(bench: Bench) -> tuple[np.ndarray, list[float]]:
    """The weights after 20 steps, and the losses, of plain TensorFlow."""
    import tensorflow as tf

    with tf.device("/CPU:0"):
        network = _Network(tf.Variable, bench.global_batch, lambda gradient: gradient)
        step = tf.function(network.step)
        losses = [float(step(x, y)) for x, y in _batches(bench)]
    return network.values(), losses


def _on_the_tpu(bench: Bench) -> _Network:
    import tensorflow as tf

    def make(value: np.ndarray) -> Any:
        return bench.variable(value, aggregation=tf.VariableAggregation.MEAN)

    def total(gradient: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce("SUM", gradient)

    return _Network(make, bench.global_batch, total)


@TRAINING.claim("weights after 20 steps", "a loop of one's own ends with the weights of a CPU")
def _(bench: Bench) -> Observation:
    import tensorflow as tf

    network = _on_the_tpu(bench)

    @tf.function  # type: ignore[untyped-decorator]
    def step(iterator: Any) -> Any:
        losses = bench.strategy.run(network.step, args=next(iterator))
        return bench.strategy.reduce("SUM", losses, axis=None)

    iterator = iter(bench.strategy.experimental_distribute_dataset(_batches(bench)))
    for _ in range(_STEPS):
        step(iterator)
    return close(bench.once(_on_a_cpu)[0], network.values(), bench.tolerance(products=True))


def _in_loops(bench: Bench) -> tuple[_Network, Any]:
    """20 steps, five in a call of a `tf.function`; the network, and what the run has left."""
    network = _on_the_tpu(bench)

    def step(x: Any, y: Any) -> Any:
        return {"loss": network.step(x, y)}

    result = bench.connection.run(
        step,
        _batches(bench),
        steps=_STEPS,
        steps_per_loop=_PER_LOOP,
        plot="loss",
        reduce={"loss": "sum"},
    )
    return network, result


@TRAINING.claim("steps in loops", "five steps in one call give the same weights")
def _(bench: Bench) -> Observation:
    network, _ = bench.once(_in_loops)
    return close(bench.once(_on_a_cpu)[0], network.values(), bench.tolerance(products=True))


@TRAINING.claim("curves", "the history has the loss of each of the 20 steps")
def _(bench: Bench) -> Observation:
    _, result = bench.once(_in_loops)
    return close(
        bench.once(_on_a_cpu)[1], result.history.values("loss"), bench.tolerance(products=True)
    )


@TRAINING.claim("equal copies", "all cores have the same weights afterwards")
def _(bench: Bench) -> Observation:
    network, _ = bench.once(_in_loops)
    local = bench.strategy.experimental_local_results
    copies = [
        np.concatenate([local(weight)[replica].numpy().reshape(-1) for weight in network.weights])
        for replica in range(bench.replicas)
    ]
    return close([copies[0]] * bench.replicas, copies)


def _fitted(bench: Bench, scope: Any, **options: Any) -> tuple[np.ndarray, list[float]]:
    """The weights and losses of a Keras model after 20 steps of `fit`."""
    import tensorflow as tf

    keras = tf.keras
    with scope:
        layers = [keras.layers.Dense(_HIDDEN, "tanh", False), keras.layers.Dense(1, None, False)]
        model = keras.Sequential([keras.layers.Input((_FEATURES,)), *layers])
        model.set_weights(_weights())
        model.compile(keras.optimizers.Adam(0.01), "mse", **options)
    history = model.fit(_batches(bench), epochs=1, verbose=0, shuffle=False)
    weights = np.concatenate([weight.reshape(-1) for weight in model.get_weights()])
    return weights, [float(loss) for loss in history.history["loss"]]


@TRAINING.claim("Keras", "fit, with Adam, ends with the weights and the loss of a CPU")
def _(bench: Bench) -> Observation:
    import tensorflow as tf

    # TensorFlow's build for TPUs has no XLA for the CPU.
    expected, loss = _fitted(bench, tf.device("/CPU:0"), jit_compile=False)
    found, its_loss = _fitted(bench, bench.strategy.scope(), steps_per_execution=_PER_LOOP)
    tolerance = bench.tolerance(products=True)
    return close([*expected, *loss], [*found, *its_loss], tolerance)


@TRAINING.claim("cells", "a cell's names come back reduced and gathered, as %%tpu_run brings them")
def _(bench: Bench) -> Observation:
    names: dict[str, Any] = {"x": bench.each(bench.ranks[:, None])}
    source = "mean = x + 1.0\nrow = x * 2.0\n"
    bench.connection.run_cell(source, names, reduce={"mean": "mean"}, gather={"row": 0})
    found = [float(np.asarray(names["mean"]).reshape(())), *np.asarray(names["row"]).reshape(-1)]
    return close([bench.ranks.mean() + 1.0, *bench.ranks * 2.0], found, bench.tolerance())


@TRAINING.claim("an odd last batch", "examples that do not fill a batch are trained with")
def _(bench: Bench) -> Observation:
    import tensorflow as tf

    count = 2 * bench.replicas + 1
    data = tf.data.Dataset.range(count).batch(2 * bench.replicas)
    seen = 0
    for batch in bench.strategy.experimental_distribute_dataset(data):
        parts = bench.strategy.experimental_local_results(batch)
        seen += sum(int(part.shape[0]) for part in parts)
    return equal(count, seen)
