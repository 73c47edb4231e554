"""Claims about the times of steps: measured on a TPU, and estimated by `tpunb.compile`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tpunb.jax.verification.jax_suite import JaxSuite
from tpunb.verification.suite import Outcome
from tpunb.verification.verdicts import NO_SPEED, fastest, verdict_on, within_the_estimate

_CALLS = 20


def _convolution(x: Any) -> Any:
    """Compute a convolution as in ResNet-50."""
    images = x.reshape(-1, 56, 56, 64)
    window = jnp.full((3, 3, 64, 64), 0.01, x.dtype)
    dimensions = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        images, window, (1, 1), "SAME", dimension_numbers=dimensions
    )


def _gather(x: Any) -> Any:
    rows = (jnp.arange(2**18) * 7919) % x.shape[0]
    return x[rows].sum(0)


_BYTES_REDUCED = 64 * 2**20

_PROGRAMS: Mapping[str, tuple[Callable[[Any], Any], tuple[int, ...], str]] = {
    "bfloat16 product": (lambda x: x @ x, (8192, 8192), "bfloat16"),
    "float32 product": (lambda x: x @ x, (4096, 4096), "float32"),
    "layer": (lambda x: jax.nn.gelu(x @ x) + x, (4096, 4096), "bfloat16"),
    "elementwise": (lambda x: x * 0.9 + 1.0, (8192, 8192), "bfloat16"),
    "functions": (lambda x: jnp.exp(-x) * jnp.tanh(x), (8192, 4096), "float32"),
    "sum": (lambda x: x.sum(0), (8192, 16_384), "float32"),
    "softmax": (jax.nn.softmax, (4096, 8192), "float32"),
    "convolution": (_convolution, (256, 56 * 56 * 64), "bfloat16"),
    "gather": (_gather, (2**18, 128), "float32"),
    "all-reduce": (lambda x: x.sum(0), (_BYTES_REDUCED // 4,), "float32"),
}
"""Functions with the shape and type of their argument; a row a device for an all-reduce."""


class StepTimes(JaxSuite):
    """Claims about the time of a call in a loop of calls."""

    group = "JAX step times"
    says = "A call in a loop of calls takes a time within the range of `speed=True`."
    programs = _PROGRAMS

    def attempt(self, name: str) -> Outcome:
        """Measure one program, and compare the time with the estimate."""
        self.need_hardware(NO_SPEED)
        function, shape, dtype = self.programs[name]
        if name == "all-reduce":
            self.need_replicas()
            argument = self.cut(np.ones((self.replicas, *shape), dtype))
        else:
            argument = jnp.full(shape, 2.0**-13, dtype)  # 1/8192: no product overflows
        call = jax.jit(function)
        program = verdict_on(call, argument, tpu=self.type.name, speed=True)
        return within_the_estimate(
            program, lambda: fastest(lambda: call(argument), jax.block_until_ready, _CALLS)
        )
