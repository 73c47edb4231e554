"""Claims about programs that JAX, the compiler or a TPU refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tpunb.jax.verification.arithmetic import x64
from tpunb.jax.verification.jax_suite import JaxSuite
from tpunb.tpu.families import HARDWARE
from tpunb.verification.suite import Outcome, Program, compared, refused

_GIGABYTE = 2**30


def known_error(code: str, *, judged: bool = False) -> Callable[[Callable[[Any], Any]], Program]:
    """Return a decorator that turns a method, which JAX refuses on a TPU, into a program.

    Args:
        code: The known error that the method ends with.
        judged: Whether the TPU's compiler refuses it, which a virtual TPU has to ask.
    """

    def decorate(method: Callable[[Any], Any]) -> Program:
        def program(suite: Any) -> Outcome:
            if judged:
                suite.need_verdicts()
            return refused(lambda: jax.block_until_ready(method(suite)), code)

        program.__doc__ = method.__doc__
        return program

    return decorate


class Refusals(JaxSuite):
    """Claims about programs that JAX, the compiler or the TPU refuses."""

    group = "JAX refusals"

    @known_error("30", judged=True)
    def too_many_temporaries(self) -> Any:
        """Check that a program whose intermediate values exceed the memory is refused."""

        def sorted_in_vain(x: Any) -> Any:
            return jnp.sort(jnp.broadcast_to(x[:, None], (8, self._too_many // 8)), axis=0).sum()

        return jax.jit(sorted_in_vain)(jnp.ones(8))

    @known_error("30", judged=True)
    def too_large_a_result(self) -> Any:
        """Check that a program whose result exceeds the memory is refused."""
        return jax.jit(self._large)(jnp.ones(8))

    @known_error("30", judged=True)
    def too_large_an_array(self) -> Any:
        """Check that an array that exceeds the memory of its device is refused."""
        return jnp.zeros((self._too_many,), jnp.float32)

    def words_of_the_memory_error(self) -> Outcome:
        """Check that the error of a program that does not fit is RESOURCE_EXHAUSTED, with sizes."""
        self.need_verdicts()
        limit = f"{HARDWARE[self.type.family].usable_bytes / _GIGABYTE:.2f}G"
        expected = f"RESOURCE_EXHAUSTED, and the limit as {limit}"
        try:
            jax.block_until_ready(jax.jit(self._large)(jnp.ones(8)))
        except jax.errors.JaxRuntimeError as error:
            text = str(error)
            holds = text.startswith("RESOURCE_EXHAUSTED") and limit in text
            return compared(holds, expected, expected if holds else "other words", text)
        return compared(False, expected, "it runs")

    @known_error("112")
    def eigenvectors(self) -> Any:
        """Check that `jnp.linalg.eig` is refused."""
        return jnp.linalg.eig(jnp.eye(3))

    @known_error("112")
    def Schur_decomposition(self) -> Any:
        """Check that `jax.scipy.linalg.schur` is refused."""
        return jax.scipy.linalg.schur(jnp.eye(3))

    @known_error("111", judged=True)
    def complex128_transform(self) -> Any:
        """Check that a Fourier transform of 64-bit numbers is refused."""
        with x64():
            return jax.jit(jnp.fft.fft)(jnp.ones(8, jnp.float64))

    @known_error("88")
    def rows_that_do_not_divide(self) -> Any:
        """Check that rows that the devices do not divide are refused."""
        self.need_replicas()
        return self.cut(np.ones(self.replicas + 1))

    @known_error("90")
    def a_donated_array_again(self) -> Any:
        """Check that an array that was donated cannot be used again."""
        array = jnp.ones(8)
        jax.jit(lambda x: x + 1, donate_argnums=0)(array)
        return array + 1

    @known_error("89")
    def arrays_on_two_devices(self) -> Any:
        """Check that an operation on arrays of two devices is refused."""
        self.need_replicas()
        first, second = (jax.device_put(np.ones(4), device) for device in self.devices[:2])
        return first + second

    def an_unknown_option(self) -> Outcome:
        """Check that the compiler refuses an option that it does not know."""
        self.need_verdicts()
        options = {"xla_tpu_no_such_option": "1"}
        return refused(lambda: jax.jit(lambda x: x * 5, compiler_options=options)(jnp.ones(4)))

    def int64_product(self) -> Outcome:
        """Check that the compiler refuses a matrix product of int64."""
        self.need_verdicts()
        with x64():
            values = jnp.ones((8, 8), jnp.int64)
            return refused(lambda: jax.block_until_ready(jax.jit(lambda x: x @ x)(values)))

    def _large(self, x: Any) -> Any:
        return jnp.broadcast_to(x, (self._too_many // 8, 8)) + 1

    @property
    def _too_many(self) -> int:
        """A number of float32 that takes a quarter more than a device's memory."""
        return HARDWARE[self.type.family].usable_bytes * 5 // 16
