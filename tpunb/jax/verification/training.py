"""Claims about 20 steps of training with JAX, made in different ways."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from tpunb.jax.verification.jax_suite import AXIS, JaxSuite
from tpunb.verification.suite import Outcome, close, equal

_STEPS = 20
_RATE = 0.05
_FEATURES, _HIDDEN = 8, 16
_CELL = """
def loss_of(weights):
    return ctx.all_reduce("mean", losses_of(weights, x, y).mean())

loss, gradients = jax.value_and_grad(loss_of)(weights)
weights = jax.tree.map(lambda w, g: w - rate * g, weights, gradients)
"""


def _losses_of(weights: Any, x: Any, y: Any) -> Any:
    first, last = weights
    return (jnp.tanh(x @ first) @ last - y) ** 2


def _step(weights: Any, x: Any, y: Any) -> Any:
    loss, gradients = jax.value_and_grad(lambda w: _losses_of(w, x, y).mean())(weights)
    return jax.tree.map(lambda w, g: w - _RATE * g, weights, gradients), loss


def _first_weights() -> list[np.ndarray]:
    random = np.random.default_rng(2)
    shapes = ((_FEATURES, _HIDDEN), (_HIDDEN, 1))
    return [0.5 * random.normal(size=shape).astype(np.float32) for shape in shapes]


class Training(JaxSuite):
    """Claims about weights and losses after 20 steps."""

    group = "JAX training"

    def a_sharded_batch(self) -> Outcome:
        """Check that steps with sharded batches end with the weights of a CPU."""
        weights = [self.cut(value, P()) for value in _first_weights()]
        step = jax.jit(_step, donate_argnums=0)
        for x, y in zip(*self._data, strict=True):
            weights, _ = step(weights, self.cut(x), self.cut(y))
        return self._as_on_a_cpu(_in_a_row(weights))

    def by_hand(self) -> Outcome:
        """Check that steps in `jax.shard_map`, with a `pmean`, end with the weights of a CPU."""

        def step(weights: Any, x: Any, y: Any) -> Any:
            def loss_of(weights: Any) -> Any:
                return jax.lax.pmean(_losses_of(weights, x, y).mean(), AXIS)

            gradients = jax.grad(loss_of)(weights)
            return jax.tree.map(lambda w, g: w - _RATE * g, weights, gradients)

        specs = (P(), P(AXIS), P(AXIS))
        whole = jax.jit(jax.shard_map(step, mesh=self.mesh(), in_specs=specs, out_specs=P()))
        weights = [self.cut(value, P()) for value in _first_weights()]
        for x, y in zip(*self._data, strict=True):
            weights = whole(weights, self.cut(x), self.cut(y))
        return self._as_on_a_cpu(_in_a_row(weights))

    def in_one_call(self) -> Outcome:
        """Check that 20 steps in one `jax.lax.scan` end with the weights of a CPU."""

        def steps(weights: Any, data: Any) -> Any:
            return jax.lax.scan(lambda weights, batch: _step(weights, *batch), weights, data)

        weights, _ = jax.jit(steps)(list(map(jnp.asarray, _first_weights())), self._data)
        return self._as_on_a_cpu(_in_a_row(weights))

    def cells(self) -> Outcome:
        """Check that steps of a cell of `%%tpu_run` end with the weights of a CPU."""
        names, _ = self._in_cells
        return self._as_on_a_cpu(_in_a_row(names["weights"]))

    def curves(self) -> Outcome:
        """Check that a cell's history has the loss of each of the 20 steps."""
        _, result = self._in_cells
        losses = self._on_a_cpu[1]
        return close(losses, result.history.values("loss"), self.tolerance(products=True))

    def equal_copies(self) -> Outcome:
        """Check that all devices have the same weights after a cell's steps."""
        names, _ = self._in_cells
        first = names["weights"][0]
        copies = [np.asarray(shard.data).ravel() for shard in first.addressable_shards]
        return close([copies[0]] * len(copies), copies)

    def donation(self) -> Outcome:
        """Check that a donated array is deleted after the step."""
        weights = [self.cut(value, P()) for value in _first_weights()]
        x, y = (self.cut(part[0]) for part in self._data)
        jax.jit(_step, donate_argnums=0)(weights, x, y)
        return equal([True] * len(weights), [weight.is_deleted() for weight in weights])

    @functools.cached_property
    def _data(self) -> tuple[np.ndarray, np.ndarray]:
        """The batches of 20 steps, of at least 32 examples, in equal parts."""
        size = self.replicas * max(1, 32 // self.replicas)
        x = np.random.default_rng(1).normal(size=(_STEPS, size, _FEATURES)).astype(np.float32)
        return x, np.sin(x.sum(2, keepdims=True))

    @functools.cached_property
    def _on_a_cpu(self) -> tuple[np.ndarray, list[float]]:
        """The weights after 20 steps and the losses of JAX on a CPU."""
        weights: Any = _first_weights()
        losses = []
        for x, y in zip(*self._data, strict=True):
            weights, loss = self.on_a_cpu(_step, weights, x, y)
            losses.append(float(loss))
        return _in_a_row(weights), losses

    @functools.cached_property
    def _in_cells(self) -> tuple[dict[str, Any], Any]:
        """The names after 20 steps of a cell, and the result of the run."""
        names: dict[str, Any] = {
            "jax": jax,
            "losses_of": _losses_of,
            "rate": _RATE,
            "weights": list(map(jnp.asarray, _first_weights())),
        }
        batches = list(zip(*self._data, strict=True))
        result = self.connection.run_cell(
            _CELL, names, data=batches, names=("x", "y"), plot="loss", reduce={"loss": "mean"}
        )
        return names, result

    def _as_on_a_cpu(self, found: Any) -> Outcome:
        return close(self._on_a_cpu[0], found, self.tolerance(products=True))


def _in_a_row(weights: Any) -> np.ndarray:
    """Return the numbers of all arrays in one."""
    return np.concatenate([np.asarray(weight).ravel() for weight in weights])
