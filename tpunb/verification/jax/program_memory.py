"""Claims about the memory of programs: the compiler's verdict, and the program that runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from tpunb.verification.jax.jax_suite import JaxSuite
from tpunb.verification.suite import Outcome, equal
from tpunb.verification.verdicts import verdict_on

_ROWS, _COLUMNS = 512, 384


def product(x: Any) -> Any:
    """Multiply a matrix by its transpose."""
    return x @ x.T


def layers(x: Any) -> Any:
    """Apply 12 layers, and keep their values for the gradient."""

    def loss_of(x: Any) -> Any:
        for _ in range(12):
            x = jnp.tanh(x @ (x.T @ x) / _ROWS)
        return x.sum()

    return jax.grad(loss_of)(x)


def narrow(x: Any) -> Any:
    """Make arrays whose last axis does not fill a tile."""
    return jnp.tanh(x.reshape(-1, 3)).T


def update(x: Any) -> Any:
    """Change a donated array."""
    return x * 0.9 + jnp.sin(x)


def total(x: Any) -> Any:
    """Add up the rows of a sharded array."""
    return x.sum(0)


_PROGRAMS: Mapping[str, tuple[Callable[[Any], Any], Mapping[str, Any], bool]] = {
    "a product": (product, {}, False),
    "a gradient of layers": (layers, {}, False),
    "arrays with padding": (narrow, {}, False),
    "a donated array": (update, {"donate_argnums": 0}, False),
    "a sharded sum": (total, {}, True),
}
"""Functions, the options of `jax.jit`, and whether the argument is sharded."""


class ProgramMemory(JaxSuite):
    """Claims about arguments, results and peak, as `tpunb.compile` and the program state them."""

    group = "JAX memory of programs"

    @classmethod
    def claims(cls) -> Mapping[str, str]:
        """Return the same claim for each program."""
        says = "A core's arguments, results and peak are those of `tpunb.compile`, in bytes."
        return dict.fromkeys(_PROGRAMS, says)

    def attempt(self, name: str) -> Outcome:
        """Compare the memory of one program."""
        function, options, is_sharded = _PROGRAMS[name]
        values = np.ones((_ROWS, _COLUMNS), np.float32)
        argument = self.cut(values, P() if not is_sharded else None)
        if not is_sharded:
            argument = jnp.asarray(values)
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
        name = call.__name__
        memory = [each.memory for each in self.connection.programs if each.name == name][-1]
        return [memory.arguments, memory.outputs, memory.peak]
