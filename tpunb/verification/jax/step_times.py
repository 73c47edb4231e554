"""Claims about the times of steps: measured on a TPU, and estimated by `tpunb.compile`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tpunb.verification.jax.jax_suite import JaxSuite
from tpunb.verification.suite import Outcome
from tpunb.verification.verdicts import NO_SPEED, verdict_on, within_the_estimate

_CALLS, _ROUNDS = 20, 5


def product(x: Any) -> Any:
    """Multiply matrices."""
    return x @ x


def layer(x: Any) -> Any:
    """Compute a layer of a network."""
    return jax.nn.gelu(x @ x) + x


def elementwise(x: Any) -> Any:
    """Compute each number alone."""
    return x * 0.9 + 1.0


def exponential(x: Any) -> Any:
    """Compute functions that the vector unit takes longer for."""
    return jnp.exp(-x) * jnp.tanh(x)


def reduction(x: Any) -> Any:
    """Add up rows."""
    return x.sum(0)


def softmax(x: Any) -> Any:
    """Compute a softmax over long rows."""
    return jax.nn.softmax(x)


def convolution(x: Any) -> Any:
    """Compute a convolution as in ResNet-50."""
    images = x.reshape(-1, 56, 56, 64)
    window = jnp.full((3, 3, 64, 64), 0.01, x.dtype)
    dimensions = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        images, window, (1, 1), "SAME", dimension_numbers=dimensions
    )


def gather(x: Any) -> Any:
    """Look up rows."""
    rows = (jnp.arange(2**18) * 7919) % x.shape[0]
    return x[rows].sum(0)


def all_reduce(x: Any) -> Any:
    """Add up the parts of all devices."""
    return x.sum(0)


_PROGRAMS: Mapping[str, tuple[Callable[[Any], Any], tuple[int, ...], str]] = {
    "bfloat16 product": (product, (8192, 8192), "bfloat16"),
    "float32 product": (product, (4096, 4096), "float32"),
    "layer": (layer, (4096, 4096), "bfloat16"),
    "elementwise": (elementwise, (8192, 8192), "bfloat16"),
    "functions": (exponential, (8192, 4096), "float32"),
    "sum": (reduction, (8192, 16_384), "float32"),
    "softmax": (softmax, (4096, 8192), "float32"),
    "convolution": (convolution, (256, 56 * 56 * 64), "bfloat16"),
    "gather": (gather, (2**18, 128), "float32"),
}
"""Functions of one device, with the shape and type of their argument."""

_ALL_REDUCE = "all-reduce"
_BYTES_REDUCED = 64 * 2**20


class StepTimes(JaxSuite):
    """Claims about the time of a call in a loop of calls."""

    group = "JAX step times"

    @classmethod
    def claims(cls) -> Mapping[str, str]:
        """Return the same claim for each program."""
        says = "A call in a loop of calls takes a time within the range of `speed=True`."
        return dict.fromkeys([*_PROGRAMS, _ALL_REDUCE], says)

    def attempt(self, name: str) -> Outcome:
        """Measure one program, and compare the time with the estimate."""
        self.need_hardware(NO_SPEED)
        function, argument = self._call(name)
        call = jax.jit(function)
        program = verdict_on(call, argument, tpu=self.type.name, speed=True)
        return within_the_estimate(program, lambda: seconds_of_a_call(call, argument))

    def _call(self, name: str) -> tuple[Callable[[Any], Any], Any]:
        """Return a function and its argument on the devices."""
        if name == _ALL_REDUCE:
            self.need_replicas()
            columns = _BYTES_REDUCED // 4
            return all_reduce, self.cut(np.ones((self.replicas, columns), np.float32))
        function, shape, dtype = _PROGRAMS[name]
        # 1/8192, so that no product overflows.
        return function, jnp.full(shape, 2.0**-13, dtype)


def seconds_of_a_call(call: Callable[[Any], Any], argument: Any) -> float:
    """Return the seconds of a call in a loop of calls, in the fastest of some rounds."""
    jax.block_until_ready(call(argument))

    def one_round() -> float:
        begin = time.perf_counter()
        for _ in range(_CALLS):
            result = call(argument)
        jax.block_until_ready(result)
        return (time.perf_counter() - begin) / _CALLS

    return min(one_round() for _ in range(_ROUNDS))
