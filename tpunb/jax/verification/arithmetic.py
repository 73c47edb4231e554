"""Claims about numbers: functions of JAX on a TPU and on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tpunb.jax.verification.jax_suite import JaxSuite
from tpunb.verification.suite import Outcome, close

_SIZE = 128
_FULL_FLOAT32 = "a virtual TPU multiplies in float32: its numbers are the CPU's"
_DIGITS_OF_FLOAT32 = 1e-5
_DIGITS_OF_THREE_PASSES = 1e-4


def _symmetric(x: Any) -> Any:
    return x @ x.T / _SIZE + jnp.eye(_SIZE)


def _convolution(x: Any) -> Any:
    window = jnp.linspace(-1.0, 1.0, 9, dtype=jnp.float32).reshape(1, 1, 3, 3)
    return jax.lax.conv(x[None, None], window, (1, 1), "SAME")


def _attention(x: Any) -> Any:
    heads = x.reshape(1, _SIZE, 4, 32)
    return jax.nn.dot_product_attention(heads, heads, heads)


def _gradient(x: Any) -> Any:
    return jax.grad(lambda x: jnp.sum(jnp.tanh(x @ x.T / 8)))(x)


def _functions(x: Any) -> Any:
    return jnp.exp(x) + jnp.log1p(jnp.abs(x)) + jnp.tanh(x) + jax.lax.erf(x) + jnp.sqrt(jnp.abs(x))


def _moving(x: Any) -> Any:
    rows = jnp.flip(x[jnp.arange(_SIZE) * 7 % _SIZE], 1).T
    return rows.at[jnp.array([0, 5])].add(1.0)


def _loop(x: Any) -> Any:
    return jax.lax.fori_loop(0, 5, lambda i, x: jnp.where(x > 0, x * 0.5, x + i), x)


def _scan(x: Any) -> Any:
    return jax.lax.scan(lambda total, row: (0.5 * total + row, total), x[0], x)[1]


def _solved(x: Any) -> Any:
    return jnp.linalg.solve(_symmetric(x), x[:, :4])


_PRODUCTS, _CLOSE, _EQUAL = "products", "close", "equal"

_FUNCTIONS: Mapping[str, tuple[Callable[[Any], Any], str]] = {
    "matrix product": (lambda x: x @ x.T, _PRODUCTS),
    "bfloat16 product": (lambda x: (x.astype("bfloat16") @ x.T.astype("bfloat16")), _PRODUCTS),
    "convolution": (_convolution, _PRODUCTS),
    "attention": (_attention, _PRODUCTS),
    "gradient": (_gradient, _PRODUCTS),
    "functions": (_functions, _CLOSE),
    "softmax": (lambda x: jax.nn.softmax(x) + jax.nn.log_softmax(x), _CLOSE),
    "sums": (lambda x: jnp.cumsum(x, 0) / _SIZE + x.mean(0) + x.var(1), _CLOSE),
    "loop": (_loop, _CLOSE),
    "scan": (_scan, _CLOSE),
    "cholesky": (lambda x: jnp.linalg.cholesky(_symmetric(x)), _PRODUCTS),
    "solve": (_solved, _PRODUCTS),
    "singular values": (lambda x: jnp.linalg.svd(x, compute_uv=False), _PRODUCTS),
    "eigenvalues": (lambda x: jnp.linalg.eigvalsh(_symmetric(x)), _PRODUCTS),
    "FFT": (lambda x: jnp.abs(jnp.fft.fft(x)), _CLOSE),
    "sort": (lambda x: jnp.sort(x) + jnp.argsort(x), _EQUAL),
    "top_k": (lambda x: jax.lax.top_k(x, 4)[0], _EQUAL),
    "gather, transpose, scatter": (_moving, _CLOSE),
    "integers": (lambda x: (x * 1e4).astype(jnp.int32) * 99_991 // 7, _EQUAL),
    "int8 product": (
        lambda x: jnp.matmul((x * 9).astype("int8"), (x * 9).astype("int8"),
                             preferred_element_type=jnp.int32),
        _EQUAL,
    ),
    "rounding to bfloat16": (lambda x: x.astype("bfloat16").astype("float32"), _EQUAL),
    "random bits": (lambda x: jax.random.bits(jax.random.key(x.size), (64,)) >> 8, _EQUAL),
    "random normal": (lambda x: jax.random.normal(jax.random.key(x.size), (64,)), _CLOSE),
}  # fmt: skip
"""Functions of float32[128,128], and whether they have matrix products or integers."""

_SAYS = {
    _EQUAL: "A device computes exactly what JAX computes on a CPU.",
    _CLOSE: "A device computes what JAX computes on a CPU, apart from rounding.",
    _PRODUCTS: "A device computes what JAX computes on a CPU, apart from the rounding of products.",
}


def _input() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(_SIZE, _SIZE)).astype(np.float32)


class Numbers(JaxSuite):
    """Claims about the results of functions, compared with JAX on a CPU."""

    group = "JAX numbers"

    @classmethod
    def claims(cls) -> Mapping[str, str]:
        """Return the claim for each function."""
        return {name: _SAYS[how] for name, (_, how) in _FUNCTIONS.items()}

    def attempt(self, name: str) -> Outcome:
        """Compare the results of one function."""
        function, how = _FUNCTIONS[name]
        expected = self.on_a_cpu(function, _input())
        found = np.asarray(jax.jit(function)(jnp.asarray(_input())))
        return close(expected, found, self._allowed(name, how))

    def _allowed(self, name: str, how: str) -> float:
        if how == _EQUAL:
            return 0.0
        if name == "bfloat16 product":  # the result has 8 bits
            return 1e-2
        return self.tolerance(products=how == _PRODUCTS)


class Precision(JaxSuite):
    """Claims about the precision of float32 products."""

    group = "JAX precision"

    def default(self) -> Outcome:
        """Check that a float32 product rounds its factors to bfloat16 by default."""
        self.need_hardware(_FULL_FLOAT32)
        x = np.asarray(jnp.asarray(_input()).astype("bfloat16")).astype(np.float64)
        return close(x @ x.T, self._product(None), _DIGITS_OF_FLOAT32)

    def high(self) -> Outcome:
        """Check that `precision="high"` gives the digits of three bfloat16 passes."""
        return close(self._exact(), self._product("high"), _DIGITS_OF_THREE_PASSES)

    def highest(self) -> Outcome:
        """Check that `precision="highest"` gives the digits of float32."""
        return close(self._exact(), self._product("highest"), _DIGITS_OF_FLOAT32)

    def default_matmul_precision(self) -> Outcome:
        """Check that `jax.default_matmul_precision("highest")` gives the digits of float32."""
        with jax.default_matmul_precision("highest"):
            found = self._product(None)
        return close(self._exact(), found, _DIGITS_OF_FLOAT32)

    def float64_without_x64(self) -> Outcome:
        """Check that an array of float64 becomes one of float32."""
        array = jnp.asarray(np.full(4, 1 / 3, np.float64))
        return close(np.full(4, np.float32(1 / 3), np.float64), np.asarray(array, np.float64))

    def float64_with_x64(self) -> Outcome:
        """Check that with `jax.enable_x64`, a sum has more digits than float32."""
        with x64():
            values = jnp.asarray(np.full(1000, 0.1, np.float64))
            found = float(jax.jit(jnp.sum)(values))
        return close(100.0, found, 1e-12)

    def _exact(self) -> Any:
        x = _input().astype(np.float64)
        return x @ x.T

    def _product(self, precision: str | None) -> Any:
        product = jax.jit(lambda x: jnp.matmul(x, x.T, precision=precision))
        return np.asarray(product(jnp.asarray(_input())), np.float64)


def x64() -> Any:
    """Return a block in which JAX has 64-bit types."""
    if hasattr(jax, "enable_x64"):  # JAX 0.8 and later
        return jax.enable_x64(True)
    from jax.experimental import enable_x64

    return enable_x64()
