"""Claims about the times of steps of a strategy, measured and estimated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb.machine.detect import find_tpu
from tpunb.tensorflow.verification.strategy_suite import StrategySuite
from tpunb.verification.suite import NotRunError, Outcome
from tpunb.verification.verdicts import NO_SPEED, fastest, verdict_on, within_the_estimate

_CALLS = 10
_REPEATED = 20
"""Operations in a step, so that the host's part of its time is small."""


def products(x: Any) -> Any:
    """Multiply a matrix of 2**-12 by itself: each product is the same matrix."""
    for _ in range(_REPEATED):
        x = tf.matmul(x, x)
    return tf.reduce_sum(x)


def convolutions(x: Any) -> Any:
    """Compute convolutions as in ResNet-50, whose windows have the sum 1."""
    images = tf.reshape(x, [-1, 56, 56, 64])
    window = tf.fill([3, 3, 64, 64], tf.constant(1 / 576, x.dtype))
    for _ in range(_REPEATED):
        images = tf.nn.conv2d(images, window, 1, "SAME")
    return tf.reduce_sum(images)


_PROGRAMS: Mapping[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "products": (products, (4096, 4096)),
    "convolutions": (convolutions, (64, 56 * 56 * 64)),
}
"""Functions of bfloat16, with the shape of a replica's argument."""


class StepTimes(StrategySuite):
    """Claims about the time of a step in a loop of steps."""

    group = "step times"
    says = "A step in a loop of steps takes a time within the range of `speed=True`."
    programs = _PROGRAMS

    def attempt(self, name: str) -> Outcome:
        """Measure one program, and compare the time with the estimate."""
        self.need_hardware(NO_SPEED)
        tpu = find_tpu().slice.accelerator_type
        if not tpu:
            raise NotRunError("this machine does not name the type of its TPU")
        function, shape = self.programs[name]
        program = verdict_on(function, tf.TensorSpec(shape, tf.bfloat16), tpu=tpu, speed=True)
        return within_the_estimate(program, lambda: self._seconds(function, shape))

    def _seconds(self, function: Callable[[Any], Any], shape: tuple[int, ...]) -> float:
        """Return the seconds of a step in a loop of steps, in the fastest of some rounds."""
        part = tf.cast(np.full(shape, 2.0**-12, np.float32), tf.bfloat16)
        argument = self.each([part] * self.replicas)
        step = tf.function(lambda: self.strategy.run(function, args=(argument,)))
        return fastest(step, self.local, _CALLS)
