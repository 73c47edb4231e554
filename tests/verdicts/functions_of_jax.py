"""Functions from JAX's documentation and tests, by name; `verdicts.of_jax` compiles them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.scipy import optimize
from jax.sharding import PartitionSpec as P


@dataclasses.dataclass(frozen=True)
class Sharded:
    """The shape of an array that is sharded over the mesh."""

    shape: tuple[int, ...]
    spec: P
    dtype: Any = jnp.float32


@dataclasses.dataclass(frozen=True)
class Entry:
    """A function and its arguments.

    Attributes:
        make: The function, or a factory that takes the mesh if there is one.
        args: Its arguments.
        mesh: The sizes of the mesh's axes; empty for one device.
        axes: The names of the mesh's axes.
    """

    make: Callable[..., Any]
    args: tuple[Any, ...]
    mesh: tuple[int, ...] = ()
    axes: tuple[str, ...] = ()

    def on(self, mesh: Any) -> tuple[Any, tuple[Any, ...]]:
        """The function and its arguments, on a mesh or on one device."""
        return (self.make(mesh) if self.mesh else self.make), self.args


def _of(dtype: Any) -> Callable[..., jax.ShapeDtypeStruct]:
    return lambda *sizes: jax.ShapeDtypeStruct(sizes, dtype)


F, H, I, U, B = map(_of, (jnp.float32, jnp.bfloat16, jnp.int32, jnp.uint32, jnp.bool_))  # noqa: E741
C, I8, I4, F8 = map(_of, (jnp.complex64, jnp.int8, jnp.int4, jnp.float8_e4m3fn))
X, W, V = F(64, 128), F(128, 256), F(1024)
IMAGES, KERNEL = F(8, 16, 16, 8), F(3, 3, 8, 16)
KEY = U()


def _random(draw: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda seed: draw(jax.random.key(seed))


def _convolution(x: Any, w: Any, stride: int = 1, **options: Any) -> Any:
    names = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=names, **options
    )


def _pool(x: Any) -> Any:
    window = (1, 2, 2, 1)
    return lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")


def _mlp(params: Any, x: Any) -> Any:
    for weight, bias in params:
        x = jax.nn.relu(x @ weight + bias)
    return x


def _trained(loss: Callable[..., Any]) -> Callable[..., Any]:
    """A step of gradient descent."""

    def step(params: Any, *batch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, *batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    return step


def _mlp_loss(params: Any, x: Any, y: Any) -> Any:
    return ((_mlp(params, x) - y) ** 2).mean()


MLP = [(F(64, 128), F(128)), (F(128, 64), F(64))]
ATTENTION = (F(2, 128, 4, 64), F(2, 128, 4, 64), F(2, 128, 4, 64))


@jax.custom_vjp
def _clipped(x: Any) -> Any:
    return jnp.sin(x)


_clipped.defvjp(lambda x: (_clipped(x), jnp.cos(x)), lambda cos, g: (jnp.clip(cos * g, -1, 1),))


@jax.custom_jvp
def _log1pexp(x: Any) -> Any:
    return jnp.log(1.0 + jnp.exp(x))


@_log1pexp.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return _log1pexp(*primals), (1 - 1 / (1 + jnp.exp(primals[0]))) * tangents[0]


def _rnn(weights: Any, xs: Any) -> Any:
    def cell(state: Any, x: Any) -> Any:
        state = jnp.tanh(x @ weights[0] + state @ weights[1])
        return state, state

    return lax.scan(cell, jnp.zeros((xs.shape[1], 128)), xs)


def _newton(x: Any) -> Any:
    return lax.while_loop(
        lambda s: jnp.abs(s[0] ** 2 - x).max() > 1e-3,
        lambda s: ((s[0] + x / s[0]) / 2, s[1] + 1),
        (x, 0),
    )


def _add_kernel(x: Any, y: Any, out: Any) -> None:
    out[...] = x[...] + y[...]


def _pallas_add(x: Any, y: Any) -> Any:
    return pl.pallas_call(_add_kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)


def _matmul_kernel(x: Any, y: Any, out: Any) -> None:
    @pl.when(pl.program_id(2) == 0)
    def _() -> None:
        out[...] = jnp.zeros_like(out)

    out[...] += x[...] @ y[...]


def _pallas_matmul(x: Any, y: Any, size: int = 128) -> Any:
    (m, k), n = x.shape, y.shape[1]
    return pl.pallas_call(
        _matmul_kernel,
        grid=(m // size, n // size, k // size),
        in_specs=[
            pl.BlockSpec((size, size), lambda i, j, k: (i, k)),
            pl.BlockSpec((size, size), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((size, size), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
    )(x, y)


def _gather_kernel(x: Any, out: Any) -> None:
    out[...] = jnp.sort(x[...].reshape(-1)).reshape(out.shape)


def _pallas_refused(x: Any) -> Any:
    return pl.pallas_call(_gather_kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def _shard_mapped(fn: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[[Any], Any]:
    return lambda mesh: jax.shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs)


_ARRAYS: dict[str, tuple[Any, ...]] = {
    "abs": (jnp.abs, X),
    "add": (jnp.add, X, X),
    "all": (lambda x: jnp.all(x > 0, axis=0), X),
    "append": (jnp.append, X, V),
    "argmax": (lambda x: jnp.argmax(x, 1), X),
    "argpartition": (lambda x: jnp.argpartition(x, 5), X),
    "argsort": (jnp.argsort, X),
    "around": (lambda x: jnp.around(x, 2), X),
    "average": (lambda x, w: jnp.average(x, weights=w), X, X),
    "bincount": (lambda x: jnp.bincount(x, length=32), I(1024)),
    "block": (lambda x: jnp.block([[x, x], [x, x]]), X),
    "broadcast": (lambda x: jnp.broadcast_to(x, (8, 64, 128)), X),
    "cbrt": (jnp.cbrt, X),
    "choose": (lambda i, x: jnp.choose(i, [x, x + 1, x + 2], mode="wrap"), I(64, 128), X),
    "clip": (lambda x: jnp.clip(x, -1, 1), X),
    "concatenate": (lambda x, y: jnp.concatenate([x, y], 1), X, X),
    "convolve": (lambda x, y: jnp.convolve(x, y, "same"), V, F(16)),
    "corrcoef": (jnp.corrcoef, X),
    "cov": (jnp.cov, X),
    "cross": (jnp.cross, F(64, 3), F(64, 3)),
    "cumprod": (lambda x: jnp.cumprod(x, 1), X),
    "cumsum": (lambda x: jnp.cumsum(x, 0), X),
    "diag": (jnp.diag, V),
    "diff": (jnp.diff, X),
    "digitize": (lambda x: jnp.digitize(x, jnp.linspace(0, 1, 10)), V),
    "divmod": (lambda x: jnp.divmod(x, 7), I(64, 128)),
    "einsum": (lambda x, w: jnp.einsum("bi,io->bo", x, w), X, W),
    "einsum batched": (
        lambda x, y: jnp.einsum("bhqd,bhkd->bhqk", x, y),
        F(2, 4, 64, 32),
        F(2, 4, 64, 32),
    ),
    "exp": (jnp.exp, X),
    "flip": (jnp.flip, X),
    "floor divide": (lambda x, y: x // y, X, X),
    "gradient": (jnp.gradient, V),
    "hist": (lambda x: jnp.histogram(x, bins=10, range=(0, 1)), V),
    "inner": (jnp.inner, X, X),
    "interp": (jnp.interp, V, F(16), F(16)),
    "isin": (jnp.isin, I(1024), I(16)),
    "kron": (jnp.kron, F(16, 16), F(8, 8)),
    "lexsort": (lambda x, y: jnp.lexsort((x, y)), V, V),
    "log1p": (jnp.log1p, X),
    "logaddexp": (jnp.logaddexp, X, X),
    "matmul": (jnp.matmul, X, W),
    "matmul bfloat16": (jnp.matmul, H(64, 128), H(128, 256)),
    "matmul float8": (
        lambda x, y: jnp.matmul(x, y, preferred_element_type=jnp.float32),
        F8(128, 128),
        F8(128, 128),
    ),
    "matmul int4": (
        lambda x, y: jnp.matmul(x, y, preferred_element_type=jnp.int32),
        I4(128, 128),
        I4(128, 128),
    ),
    "matmul int8": (
        lambda x, y: jnp.matmul(x, y, preferred_element_type=jnp.int32),
        I8(128, 128),
        I8(128, 128),
    ),
    "matmul precise": (lambda x, w: jnp.matmul(x, w, precision="highest"), X, W),
    "matmul vectors": (lambda x, v: x @ v, X, F(128)),
    "max": (lambda x: jnp.max(x, 0), X),
    "mean and variance": (lambda x: (jnp.mean(x, 0), jnp.var(x, 0)), X),
    "median": (jnp.median, X),
    "meshgrid": (jnp.meshgrid, V, F(64)),
    "nan to num": (jnp.nan_to_num, X),
    "nonzero": (lambda x: jnp.nonzero(x, size=16), V),
    "outer": (jnp.outer, V, V),
    "pad": (lambda x: jnp.pad(x, 3, mode="reflect"), X),
    "percentile": (lambda x: jnp.percentile(x, 90), V),
    "piecewise": (lambda x: jnp.piecewise(x, [x < 0, x >= 0], [lambda v: -v, lambda v: v]), V),
    "polyfit": (lambda x, y: jnp.polyfit(x, y, 3), V, V),
    "polyval": (jnp.polyval, F(8), V),
    "power": (lambda x: x**3, X),
    "prod": (jnp.prod, X),
    "quantile": (lambda x: jnp.quantile(x, jnp.array([0.1, 0.5])), V),
    "repeat": (lambda x: jnp.repeat(x, 3, axis=0), X),
    "roll": (lambda x: jnp.roll(x, 5, 0), X),
    "searchsorted": (jnp.searchsorted, V, V),
    "select": (lambda x: jnp.select([x < 0, x > 1], [x, x**2], 0.0), X),
    "set at": (lambda x, i: x.at[i].set(0.0), X, I(8)),
    "add at": (lambda x, i, v: x.at[i].add(v), V, I(64), F(64)),
    "sort": (lambda x: jnp.sort(x, 0), X),
    "split": (lambda x: jnp.split(x, 4, 1), X),
    "sqrt": (jnp.sqrt, X),
    "stack": (lambda x: jnp.stack([x, x], -1), X),
    "std": (jnp.std, X),
    "sum": (jnp.sum, X),
    "swapaxes": (lambda x: jnp.swapaxes(x, 0, 2), F(8, 16, 32)),
    "take": (lambda x, i: jnp.take(x, i, axis=0), X, I(32)),
    "take along axis": (lambda x, i: jnp.take_along_axis(x, i, 1), X, I(64, 4)),
    "tensordot": (lambda x, y: jnp.tensordot(x, y, 2), F(8, 16, 32), F(16, 32, 64)),
    "tile": (lambda x: jnp.tile(x, (2, 3)), X),
    "trace": (jnp.trace, X),
    "transpose": (lambda x: x.T + 1, X),
    "triangle": (lambda x: jnp.tril(x) + jnp.triu(x), X),
    "trigonometry": (lambda x: (jnp.sin(x), jnp.cos(x), jnp.arctan2(x, x)), X),
    "unique": (lambda x: jnp.unique(x, size=16), I(1024)),
    "unpackbits": (jnp.unpackbits, jax.ShapeDtypeStruct((64,), jnp.uint8)),
    "unwrap": (jnp.unwrap, V),
    "vander": (lambda x: jnp.vander(x, 4), V),
    "where": (lambda c, x: jnp.where(c, x, 0), B(64, 128), X),
    "complex product": (lambda x: x @ x, C(64, 64)),
    "complex parts": (lambda x: (jnp.real(x), jnp.angle(x), jnp.conj(x)), C(64, 64)),
    "complex exp": (jnp.exp, C(64, 64)),
    "fft": (jnp.fft.fft, C(16, 256)),
    "fft 2": (jnp.fft.fft2, C(64, 64)),
    "rfft": (jnp.fft.rfft, F(16, 256)),
    "irfft": (jnp.fft.irfft, C(16, 129)),
    "python numbers": (lambda x, y: x * y, 2.0, 3),
    "numpy arrays": (lambda x, y: x + y, np.ones((3, 4), np.float32), np.arange(4)),
    "jax arrays": (lambda x: x * 2, jnp.ones((3, 4))),
    "scalars": (lambda x, y: x + y, F(), F()),
    "nothing": (lambda x: x, X),
    "constants": (lambda x: x + jnp.ones((64, 128)), X),
    "empty": (lambda x: x.sum(), F(0, 128)),
}
_LAX: dict[str, tuple[Any, ...]] = {
    "associative scan": (lambda x: lax.associative_scan(jnp.add, x), F(256, 128)),
    "approximate max k": (lambda x: lax.approx_max_k(x, 8), F(64, 4096)),
    "bitcast": (lambda x: lax.bitcast_convert_type(x, jnp.int32), X),
    "case": (lambda i, x: lax.switch(i, [jnp.sin, jnp.cos, jnp.tan], x), I(), X),
    "cond": (lambda c, x: lax.cond(c, jnp.sin, jnp.cos, x), B(), X),
    "conv": (_convolution, IMAGES, KERNEL),
    "conv strided": (lambda x, w: _convolution(x, w, 2), IMAGES, KERNEL),
    "conv dilated": (lambda x, w: _convolution(x, w, rhs_dilation=(2, 2)), IMAGES, KERNEL),
    "conv depthwise": (
        lambda x, w: _convolution(x, w, feature_group_count=8),
        IMAGES,
        F(3, 3, 1, 8),
    ),
    "conv transposed": (lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"), IMAGES, KERNEL),
    "conv 1d": (lambda x, w: lax.conv(x, w, (1,), "SAME"), F(8, 16, 128), F(32, 16, 3)),
    "conv gradient": (jax.grad(lambda w, x: _convolution(x, w).sum()), KERNEL, IMAGES),
    "cumlogsumexp": (lax.cumlogsumexp, V),
    "dynamic slice": (lambda x, i: lax.dynamic_slice(x, (i, 0), (8, 128)), X, I()),
    "dynamic update": (lambda x, y, i: lax.dynamic_update_slice(x, y, (i, 0)), X, F(8, 128), I()),
    "fori": (lambda x: lax.fori_loop(0, 10, lambda i, s: s * 1.1 + i, x), X),
    "fori of n": (lambda n, x: lax.fori_loop(0, n, lambda i, s: s @ s, x), I(), F(64, 64)),
    "iota": (lambda x: x + lax.iota(jnp.float32, 1024), V),
    "linear solve": (
        lambda a, b: lax.custom_linear_solve(
            lambda x: a @ x, b, lambda _, y: jnp.linalg.solve(a, y), symmetric=True
        ),
        F(64, 64),
        F(64),
    ),
    "map": (lambda x: lax.map(lambda row: jnp.sin(row).sum(), x), X),
    "map in batches": (lambda x: lax.map(lambda r: (r @ r.T).sum(), x, batch_size=8), X),
    "max pool": (_pool, IMAGES),
    "max pool gradient": (jax.grad(lambda x: _pool(x).sum()), IMAGES),
    "population count": (lax.population_count, I(64, 128)),
    "reduce": (lambda x: lax.reduce(x, 0.0, lax.add, (0,)), X),
    "reduce precision": (lambda x: lax.reduce_precision(x, 5, 10), X),
    "rev": (lambda x: lax.rev(x, (0,)), X),
    "scan": (_rnn, [F(64, 128), F(128, 128)], F(16, 32, 64)),
    "scan gradient": (
        jax.grad(lambda w, x: _rnn(w, x)[0].sum()),
        [F(64, 128), F(128, 128)],
        F(16, 32, 64),
    ),
    "scan unrolled": (
        lambda x: lax.scan(lambda c, y: (c + y, c * y), x[0], x, unroll=4),
        F(16, 128),
    ),
    "sort by key": (lambda k, v: lax.sort_key_val(k, v), V, V),
    "top k": (lambda x: lax.top_k(x, 8), F(64, 1024)),
    "while": (_newton, V),
    "nested loops": (
        lambda x: lax.fori_loop(
            0, 4, lambda i, s: lax.fori_loop(0, 4, lambda j, t: t @ t + j, s), x
        ),
        F(64, 64),
    ),
    "ragged dot": (lax.ragged_dot, F(64, 128), F(4, 128, 256), I(4)),
    "optimization barrier": (lambda x: lax.optimization_barrier(x) * 2, X),
    "stop gradient": (jax.grad(lambda x: (lax.stop_gradient(x) * x).sum()), X),
}
_NN: dict[str, tuple[Any, ...]] = {
    "relu": (jax.nn.relu, X),
    "gelu": (jax.nn.gelu, X),
    "silu": (jax.nn.silu, X),
    "softmax": (jax.nn.softmax, X),
    "log softmax": (jax.nn.log_softmax, X),
    "logsumexp": (jax.nn.logsumexp, X),
    "one hot": (lambda i: jax.nn.one_hot(i, 128), I(64)),
    "standardize": (jax.nn.standardize, X),
    "attention": (jax.nn.dot_product_attention, *ATTENTION),
    "attention causal": (
        functools.partial(jax.nn.dot_product_attention, is_causal=True),
        *ATTENTION,
    ),
    "attention gradient": (
        jax.grad(lambda *qkv: jax.nn.dot_product_attention(*qkv).sum(), (0, 1, 2)),
        *ATTENTION,
    ),
    "mlp": (_mlp, MLP, F(32, 64)),
    "mlp training": (_trained(_mlp_loss), MLP, F(32, 64), F(32, 64)),
    "mlp training bfloat16": (
        _trained(_mlp_loss),
        [(H(64, 128), H(128)), (H(128, 64), H(64))],
        H(32, 64),
        H(32, 64),
    ),
    "mlp donated": (jax.jit(_trained(_mlp_loss), donate_argnums=0), MLP, F(32, 64), F(32, 64)),
    "embedding gradient": (
        jax.grad(lambda table, ids: (table[ids] ** 2).sum()),
        F(1000, 128),
        I(64),
    ),
    "layer norm": (
        lambda x, g: g * (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + 1e-5),
        X,
        F(128),
    ),
    "dropout": (
        lambda seed, x: jnp.where(jax.random.bernoulli(jax.random.key(seed), 0.9, x.shape), x, 0),
        KEY,
        X,
    ),
    "initializer": (_random(lambda k: jax.nn.initializers.he_normal()(k, (64, 128))), KEY),
}
_LINALG: dict[str, tuple[Any, ...]] = {
    "cholesky": (jnp.linalg.cholesky, F(64, 64)),
    "det": (jnp.linalg.det, F(32, 32)),
    "eigh": (jnp.linalg.eigh, F(32, 32)),
    "eig": (jnp.linalg.eig, F(32, 32)),
    "expm": (jax.scipy.linalg.expm, F(32, 32)),
    "inv": (jnp.linalg.inv, F(32, 32)),
    "lstsq": (jnp.linalg.lstsq, F(32, 8), F(32)),
    "lu": (jax.scipy.linalg.lu, F(32, 32)),
    "matrix power": (lambda x: jnp.linalg.matrix_power(x, 5), F(32, 32)),
    "norm": (jnp.linalg.norm, X),
    "pinv": (jnp.linalg.pinv, F(16, 8)),
    "qr": (jnp.linalg.qr, F(32, 16)),
    "schur": (jax.scipy.linalg.schur, F(16, 16)),
    "slogdet": (jnp.linalg.slogdet, F(32, 32)),
    "solve": (jnp.linalg.solve, F(32, 32), F(32)),
    "solve triangular": (
        lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True),
        F(64, 64),
        F(64, 8),
    ),
    "svd": (jnp.linalg.svd, F(32, 16)),
    "cholesky gradient": (jax.grad(lambda x: jnp.linalg.cholesky(x).sum()), F(32, 32)),
    "conjugate gradients": (
        lambda a, b: jax.scipy.sparse.linalg.cg(lambda x: a @ x, b)[0],
        F(32, 32),
        F(32),
    ),
}
_SCIPY: dict[str, tuple[Any, ...]] = {
    "betainc": (jax.scipy.special.betainc, V, V, V),
    "digamma": (jax.scipy.special.digamma, V),
    "erf": (jax.scipy.special.erf, X),
    "erfinv": (jax.scipy.special.erfinv, X),
    "gammaln": (jax.scipy.special.gammaln, X),
    "bessel": (jax.scipy.special.i0e, V),
    "logit": (jax.scipy.special.logit, X),
    "zeta": (jax.scipy.special.zeta, V, V),
    "normal density": (jax.scipy.stats.norm.logpdf, X),
    "gamma density": (jax.scipy.stats.gamma.logpdf, V, V),
    "convolve 2d": (lambda x, y: jax.scipy.signal.convolve2d(x, y, "same"), F(64, 64), F(5, 5)),
    "stft": (lambda x: jax.scipy.signal.stft(x, nperseg=128), F(2048)),
    "map coordinates": (
        lambda x, c: jax.scipy.ndimage.map_coordinates(x, list(c), order=1),
        F(64, 64),
        F(2, 128),
    ),
    "dct": (jax.scipy.fft.dct, F(16, 128)),
    "minimize": (
        lambda x: optimize.minimize(lambda v: ((v - 1) ** 2).sum(), x, method="BFGS").x,
        F(8),
    ),
    "image resize": (lambda x: jax.image.resize(x, (8, 32, 32, 8), "bilinear"), IMAGES),
    "segment sum": (lambda x, i: jax.ops.segment_sum(x, i, num_segments=16), F(256, 128), I(256)),
}
_RANDOM: dict[str, tuple[Any, ...]] = {
    "normal": (_random(lambda k: jax.random.normal(k, (64, 128))), KEY),
    "uniform": (_random(lambda k: jax.random.uniform(k, (64, 128))), KEY),
    "randint": (_random(lambda k: jax.random.randint(k, (1024,), 0, 10)), KEY),
    "permutation": (_random(lambda k: jax.random.permutation(k, 256)), KEY),
    "categorical": (lambda s, x: jax.random.categorical(jax.random.key(s), x), KEY, X),
    "gamma": (_random(lambda k: jax.random.gamma(k, 2.0, (64,))), KEY),
    "poisson": (_random(lambda k: jax.random.poisson(k, 3.0, (64,))), KEY),
    "truncated": (_random(lambda k: jax.random.truncated_normal(k, -1, 1, (64,))), KEY),
    "choice": (_random(lambda k: jax.random.choice(k, 100, (8,), replace=False)), KEY),
    "split": (_random(lambda k: jax.random.key_data(jax.random.split(k, 8))), KEY),
    "orthogonal": (_random(lambda k: jax.random.orthogonal(k, 16)), KEY),
    "hardware": (lambda s: jax.random.normal(jax.random.key(s, impl="unsafe_rbg"), (64, 128)), KEY),
}
_TRANSFORMS: dict[str, tuple[Any, ...]] = {
    "grad": (jax.grad(lambda x: jnp.tanh(x).sum()), X),
    "value and grad": (jax.value_and_grad(lambda w, x: (x @ w).sum()), W, X),
    "grad of grad": (jax.grad(jax.grad(lambda x: x**3)), F()),
    "hessian": (jax.hessian(lambda x: (x**4).sum()), F(32)),
    "jacfwd": (jax.jacfwd(jnp.sin), F(32)),
    "jacrev": (jax.jacrev(jnp.sin), F(32)),
    "jvp": (lambda x, t: jax.jvp(jnp.sin, (x,), (t,)), X, X),
    "vjp": (lambda x, g: jax.vjp(jnp.sin, x)[1](g), X, X),
    "linearize": (lambda x, t: jax.linearize(jnp.tanh, x)[1](t), X, X),
    "vmap": (jax.vmap(lambda x, w: x @ w, (0, None)), X, W),
    "vmap of grad": (
        jax.vmap(jax.grad(lambda w, x: jnp.tanh(x @ w).sum()), (None, 0)),
        F(16),
        F(32, 16),
    ),
    "vmap of loop": (jax.vmap(_newton), V),
    "vmap of cond": (jax.vmap(lambda c, x: lax.cond(c, jnp.sin, jnp.cos, x)), B(64), X),
    "custom vjp": (jax.grad(lambda x: _clipped(x).sum()), X),
    "custom jvp": (jax.vmap(jax.grad(_log1pexp)), V),
    "checkpoint": (jax.grad(lambda x: jax.checkpoint(lambda v: jnp.sin(jnp.sin(v)))(x).sum()), X),
    "checkpoint policy": (
        jax.grad(
            lambda w, x: jax.checkpoint(
                lambda a: jnp.tanh(a @ w) @ w,
                policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
            )(x).sum()
        ),
        F(128, 128),
        X,
    ),
    "checkpoint of scan": (
        jax.grad(
            lambda w, x: lax.scan(
                jax.checkpoint(lambda c, y: (jnp.tanh(c @ w) + y, None)), x[0], x
            )[0].sum()
        ),
        F(128, 128),
        F(8, 32, 128),
    ),
    "jit in jit": (jax.jit(lambda x: jax.jit(jnp.sin)(x) * 2), X),
    "static argument": (jax.jit(lambda x, n: sum(x**i for i in range(n)), static_argnums=1), X, 3),
    "static name": (functools.partial(jax.jit(lambda x, n: x * n, static_argnames="n"), n=3), X),
    "keyword": (functools.partial(lambda x, *, scale: x * scale, scale=2.0), X),
    "unused argument": (lambda x, y: x + 1, X, W),
    "kept argument": (jax.jit(lambda x, y: x + 1, keep_unused=True), X, W),
    "pytrees": (lambda tree: jax.tree.map(jnp.sin, tree), {"a": X, "b": [W, (V, None)]}),
    "named scope": (jax.named_call(lambda x: jnp.sin(x) @ x.T, name="mine"), X),
    "donated": (jax.jit(lambda x: x + 1, donate_argnums=0), F(1024, 1024)),
    "pure callback": (
        lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
        X,
    ),
    "data dependent": (lambda x: x[x > 0], X),
    "python branch": (lambda x: x if x.sum() > 0 else -x, X),
    "wrong shapes": (lambda x, w: x @ w.T, X, W),
    "too large": (lambda x: (jnp.sin(x) @ x).sum(), F(65536, 65536)),
    "too large output": (lambda x: jnp.broadcast_to(x, (2**20, 8192)), F(8192)),
    "too large constant": (lambda x: x + jnp.zeros((2**16, 2**16)), F(2**16)),
}
_PALLAS: dict[str, tuple[Any, ...]] = {
    "add": (_pallas_add, F(256, 256), F(256, 256)),
    "matmul": (_pallas_matmul, F(512, 512), F(512, 512)),
    "matmul bfloat16": (_pallas_matmul, H(512, 512), H(512, 512)),
    "gradient around": (jax.grad(lambda x: (_pallas_add(x, x) ** 2).sum(), allow_int=True), X),
    "refused": (_pallas_refused, F(8, 128)),
    "not aligned": (_pallas_add, F(7, 100), F(7, 100)),
}
BATCH, WEIGHT = Sharded((256, 512), P("data")), Sharded((512, 512), P(None, "model"))
ROWS = Sharded((64, 128), P("data"))
_MESHES: dict[str, tuple[Any, ...]] = {
    "data parallel": (
        lambda _: _trained(lambda w, x: jnp.tanh(x @ w).mean()),
        Sharded((512, 512), P()),
        BATCH,
    ),
    "model parallel": (lambda _: lambda x, w: jax.nn.relu(x @ w), BATCH, WEIGHT),
    "both": (lambda _: _trained(lambda w, x: jnp.tanh(x @ w).mean()), WEIGHT, BATCH),
    "fully sharded": (
        lambda _: _trained(lambda w, x: jnp.tanh(x @ w).mean()),
        Sharded((512, 512), P("data", "model")),
        BATCH,
    ),
    "resharded": (
        lambda mesh: (
            lambda x: (
                lax.with_sharding_constraint(x, jax.sharding.NamedSharding(mesh, P(None, "model")))
                * 2
            )
        ),
        BATCH,
    ),
    "transposed": (lambda _: lambda x: x.T @ x, BATCH),
    "sort": (lambda _: jnp.sort, Sharded((1024, 64), P("data"))),
    "reduction": (lambda _: lambda x: x.sum(0), BATCH),
    "uneven": (lambda _: lambda x: x * 2, Sharded((250, 512), P("data"))),
    "psum": (_shard_mapped(lambda x: lax.psum(x, "data"), P("data"), P()), ROWS),
    "pmean": (_shard_mapped(lambda x: lax.pmean(x, "data"), P("data"), P()), ROWS),
    "all gather": (
        _shard_mapped(lambda x: lax.all_gather(x, "data", tiled=True), P("data"), P("data")),
        ROWS,
    ),
    "reduce scatter": (
        _shard_mapped(lambda x: lax.psum_scatter(x, "data", tiled=True), P("data"), P("data")),
        ROWS,
    ),
    "ring": (
        _shard_mapped(
            lambda x: lax.ppermute(x, "data", [(i, (i + 1) % 4) for i in range(4)]),
            P("data"),
            P("data"),
        ),
        ROWS,
    ),
    "all to all": (
        _shard_mapped(lambda x: lax.all_to_all(x, "data", 1, 0, tiled=True), P("data"), P("data")),
        ROWS,
    ),
    "axis index": (_shard_mapped(lambda x: x + lax.axis_index("data"), P("data"), P("data")), ROWS),
    "both axes": (
        _shard_mapped(
            lambda x, w: lax.psum(x @ w, "model"), (P("data", "model"), P("model")), P("data")
        ),
        Sharded((64, 128), P("data", "model")),
        Sharded((128, 32), P("model")),
    ),
    "gradient": (
        lambda mesh: jax.grad(
            lambda w, x: jax.shard_map(
                lambda w, x: lax.pmean(jnp.tanh(x @ w).mean(), "data"),
                mesh=mesh,
                in_specs=(P(), P("data")),
                out_specs=P(),
            )(w, x)
        ),
        Sharded((128, 128), P()),
        ROWS,
    ),
    "too large": (lambda _: lambda x: jnp.sin(x) @ x, Sharded((2**17, 2**17), P("data", "model"))),
}
FUNCTIONS = {
    f"{group}.{name}": Entry(
        given[0],
        given[1:],
        (4, 2) if group == "mesh" else (),
        ("data", "model") if group == "mesh" else (),
    )
    for group, functions in {
        "numpy": _ARRAYS,
        "lax": _LAX,
        "nn": _NN,
        "linalg": _LINALG,
        "scipy": _SCIPY,
        "random": _RANDOM,
        "transforms": _TRANSFORMS,
        "pallas": _PALLAS,
        "mesh": _MESHES,
    }.items()
    for name, given in functions.items()
}
