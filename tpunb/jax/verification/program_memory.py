"""Claims about the memory of programs: the compiler's verdict, and the program that runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tpunb.jax.verification.jax_suite import JaxSuite
from tpunb.verification.suite import Outcome, equal
from tpunb.verification.verdicts import verdict_on

_ROWS, _COLUMNS = 512, 384


def _layers(x: Any) -> Any:
    """Apply 12 layers, and keep their values for the gradient."""

    def loss_of(x: Any) -> Any:
        for _ in range(12):
            x = jnp.tanh(x @ (x.T @ x) / _ROWS)
        return x.sum()

    return jax.grad(loss_of)(x)


_PROGRAMS: Mapping[str, tuple[Callable[[Any], Any], Mapping[str, Any], bool]] = {
    "a product": (lambda x: x @ x.T, {}, False),
    "a gradient of layers": (_layers, {}, False),
    "arrays with padding": (lambda x: jnp.tanh(x.reshape(-1, 3)).T, {}, False),
    "a donated array": (lambda x: x * 0.9 + jnp.sin(x), {"donate_argnums": 0}, False),
    "a sharded sum": (lambda x: x.sum(0), {}, True),
}
"""Functions, the options of `jax.jit`, and whether the argument is sharded."""


class ProgramMemory(JaxSuite):
    """Claims about arguments, results and peak, as `tpunb.compile` and the program state them."""

    group = "JAX memory of programs"
    says = "A core's arguments, results and peak are those of `tpunb.compile`, in bytes."
    programs = _PROGRAMS

    def attempt(self, name: str) -> Outcome:
        """Compare the memory of one program."""
        function, options, is_sharded = self.programs[name]
        values = np.ones((_ROWS, _COLUMNS), np.float32)
        argument = self.cut(values) if is_sharded else jnp.asarray(values)
        call = jax.jit(function, **options)
        program = verdict_on(call, argument, tpu=self.type.name)
        memory = program.memory
        assert memory is not None
        expected = [memory.arguments, memory.outputs, memory.peak]
        return equal(expected, self._found(call, argument))

    def _found(self, call: Any, argument: Any) -> list[int]:
        """Return the bytes of the program that runs."""
        if not self.is_virtual:
            stats = call.lower(argument).compile().memory_analysis()
            results = stats.output_size_in_bytes - stats.alias_size_in_bytes
            return [stats.argument_size_in_bytes, results, stats.peak_memory_in_bytes]
        self.need_verdicts()
        call(argument)
        memory = self.connection.programs[-1].memory
        return [memory.arguments, memory.outputs, memory.peak]
