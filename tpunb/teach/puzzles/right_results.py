"""The right results of puzzles, computed with NumPy from whole arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

Numbers = np.ndarray[Any, Any]


def mean(x: Numbers) -> Numbers:
    """Return the mean of the rows."""
    return np.asarray(x.mean(0))


def variance(x: Numbers) -> Numbers:
    """Return the variance of each column."""
    return np.asarray(x.var(0))


def neighbours(x: Numbers) -> Numbers:
    """Return the mean of each row with its two neighbours; beyond the ends are zeros."""
    rim = np.zeros_like(x[:1])
    return np.asarray((np.concatenate([rim, x[:-1]]) + x + np.concatenate([x[1:], rim])) / 3)


def product(x: Numbers, w: Numbers) -> Numbers:
    """Return the product of two matrices."""
    return np.asarray(x @ w)


def cross_entropy(x: Numbers, w: Numbers, words: Numbers) -> Numbers:
    """Return the cross-entropy of each word, whose logits are `x @ w`."""
    logits = x @ w
    most = logits.max(1)
    total = np.log(np.exp(logits - most[:, None]).sum(1)) + most
    return np.asarray(total - logits[np.arange(len(words)), words])


def mean_gradient(x: Numbers, errors: Numbers) -> Numbers:
    """Return the mean over rows of the gradient of a layer with the input `x`."""
    return np.asarray(x.T @ errors / len(x))


def rotated(points: Numbers, rotation: Numbers) -> Numbers:
    """Return points, each a row, after a rotation."""
    return np.asarray(points @ rotation.T)


def mean_square(rows: Numbers, w: Numbers) -> Numbers:
    """Return the mean over rows of the squared products with a vector."""
    return np.asarray(((rows @ w) ** 2).mean())


def momentum(weights: Numbers, speed: Numbers, gradients: Numbers) -> list[Numbers]:
    """Return the weights and their momentum after a step."""
    speed = 0.9 * speed + gradients
    return [weights - 0.1 * speed, speed]


def scaled(x: Numbers, y: Numbers) -> Numbers:
    """Return the product of numbers, plus one."""
    return np.asarray(x * y + 1)


def gradient_of_layers(weights: Numbers, x: Numbers) -> Numbers:
    """Return the gradient of the mean square of `x` after layers `h + tanh(h @ w)`.

    Args:
        weights: The weights of all layers.
        x: The input of the first layer.
    """
    inputs, slopes = [], []
    for w in weights:
        inputs.append(x)
        bent = np.tanh(x @ w)
        slopes.append(1 - bent**2)
        x = x + bent
    gradient, found = 2 * x / x.size, np.zeros_like(weights)
    for layer in reversed(range(len(weights))):
        through = gradient * slopes[layer]
        found[layer] = inputs[layer].T @ through
        gradient = gradient + through @ weights[layer].T
    return found
