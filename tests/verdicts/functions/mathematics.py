"""Elementwise functions, reductions, linear algebra, complex numbers, signals."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from verdicts.specs import U8, C, F, I, entries, gradient_of

X, SQUARE = F(8, 16), F(8, 8)
la, signal, m = tf.linalg, tf.signal, tf.math


def positive(x: Any) -> Any:
    return x @ tf.transpose(x) + tf.eye(8)


FUNCTIONS = entries(
    elementwise=(
        lambda x: [
            f(x)
            for f in (
                m.exp,
                m.log,
                m.sin,
                m.cos,
                m.tan,
                m.sinh,
                m.cosh,
                m.tanh,
                m.sqrt,
                m.rsqrt,
                m.sigmoid,
                m.sign,
                m.floor,
                m.ceil,
                m.round,
                m.rint,
                m.reciprocal,
                m.log1p,
                m.expm1,
            )
        ],
        X,
    ),
    inverse_functions=(
        lambda x: [f(x) for f in (m.asin, m.acos, m.atan, m.asinh, m.acosh, m.atanh)],
        X,
    ),
    special=(
        lambda x: [
            f(x) for f in (m.erf, m.erfc, m.lgamma, m.digamma, m.erfinv, m.ndtri, m.erfcinv)
        ],
        X,
    ),
    bessel=(lambda x: (m.bessel_i0e(x), m.bessel_i1e(x)), X),
    bessel_j=(m.special.bessel_j0, X),
    gamma=(lambda x: m.igamma(x, x), X),
    gamma_gradient=(gradient_of(lambda x: m.igamma(2.0, x)), X),
    beta=(lambda x: m.betainc(x, x, x), X),
    zeta=(lambda x: m.zeta(x, x), X),
    polygamma=(lambda x: m.polygamma(x, x), X),
    dawson=(m.special.dawsn, X),
    powers=(lambda x: (x**2.5, m.pow(2.0, x), m.xlogy(x, x), m.xdivy(x, x)), X),
    integer_arithmetic=(lambda x: (x // 3, x % 5, -x, x * x, m.abs(x), x**3), I(8)),
    bits=(lambda x: (tf.bitwise.bitwise_xor(x, 7), tf.bitwise.left_shift(x, 2), ~x), I(8)),
    population_count=(lambda x: tf.raw_ops.PopulationCount(x=x), I(8)),
    small_integers=(lambda x: (x + x, tf.cast(x, tf.float32), x > 3), U8(8)),
    short_integers=(lambda x: x * x, tf.TensorSpec([8], tf.int16)),
    next_after=(lambda x: m.nextafter(x, x + 1.0), X),
    reductions=(
        lambda x: [
            f(x, 1)
            for f in (
                tf.reduce_sum,
                tf.reduce_mean,
                tf.reduce_max,
                tf.reduce_min,
                tf.reduce_prod,
                m.reduce_std,
                m.reduce_variance,
                tf.reduce_logsumexp,
                m.reduce_euclidean_norm,
            )
        ],
        X,
    ),
    logical=(lambda x: (tf.reduce_any(x > 0), tf.reduce_all(x > 0, 0), m.is_nan(x)), X),
    clip_by_norm=(lambda x: (tf.clip_by_norm(x, 1.0), tf.clip_by_global_norm([x], 1.0)[0]), X),
    einsum=(lambda x: tf.einsum("ij,kj->ik", x, x), X),
    einsum_of_three=(lambda x: tf.einsum("ij,kj,kl->il", x, x, x), SQUARE),
    einsum_diagonal=(lambda x: tf.einsum("ii->i", x), SQUARE),
    tensordot=(lambda x: tf.tensordot(x, x, [[1], [1]]), X),
    interpolation=(lambda x: m.cumulative_logsumexp(x, axis=1), X),
    cholesky=(lambda x: la.cholesky(positive(x)), SQUARE),
    cholesky_gradient=(gradient_of(lambda x: la.cholesky(positive(x))), SQUARE),
    cholesky_solve=(lambda x: la.cholesky_solve(la.cholesky(positive(x)), x), SQUARE),
    inverse=(la.inv, F(3, 8, 8)),
    determinant=(lambda x: (la.det(x), la.logdet(positive(x))), SQUARE),
    sign_and_logarithm=(la.slogdet, SQUARE),
    solve=(gradient_of(la.solve), SQUARE, SQUARE),
    triangular_solve=(lambda x: la.triangular_solve(x, x), SQUARE),
    qr=(la.qr, X),
    qr_gradient=(gradient_of(lambda x: la.qr(x)[1]), SQUARE),
    svd=(la.svd, SQUARE),
    svd_values=(lambda x: la.svd(x, compute_uv=False), SQUARE),
    eigh=(lambda x: la.eigh(positive(x)), SQUARE),
    eigenvalues=(la.eigvals, SQUARE),
    lu=(la.lu, SQUARE),
    least_squares=(lambda x, y: la.lstsq(x, y), F(16, 4), F(16, 2)),
    least_squares_by_qr=(lambda x, y: la.lstsq(x, y, fast=False), F(16, 4), F(16, 2)),
    matrix_exponential=(la.expm, SQUARE),
    matrix_square_root=(la.sqrtm, SQUARE),
    matrix_logarithm=(la.logm, C(8, 8)),
    pseudo_inverse=(la.pinv, X),
    tridiagonal=(
        lambda x: la.tridiagonal_solve(x, x[0], diagonals_format="compact", partial_pivoting=False),
        F(3, 8),
    ),
    tridiagonal_pivoted=(
        lambda x: la.tridiagonal_solve(x, x[0], diagonals_format="compact"),
        F(3, 8),
    ),
    tridiagonal_product=(lambda x: la.tridiagonal_matmul((x, x, x), x[:, None]), F(8)),
    banded_triangle=(lambda x: la.banded_triangular_solve(x[:2], x), F(8, 8)),
    norms=(lambda x: (tf.norm(x), tf.norm(x, 1), tf.norm(x, float("inf"), axis=1)), X),
    spectral_norm=(lambda x: tf.norm(x, 2, axis=(0, 1)), X),
    cross=(la.cross, F(4, 3), F(4, 3)),
    rank=(la.matrix_rank, X),
    kronecker=(
        lambda x: la.LinearOperatorKronecker(
            [la.LinearOperatorFullMatrix(x), la.LinearOperatorFullMatrix(x)]
        ).to_dense(),
        F(3, 3),
    ),
    complex_arithmetic=(lambda z: (z * z, tf.abs(z), m.angle(z), m.conj(z), m.exp(z)), C(8)),
    complex_product=(lambda z: z @ z, C(8, 8)),
    complex_gradient=(gradient_of(lambda z: z @ z), C(8, 8)),
    complex_convolution=(lambda z, w: tf.nn.conv2d(z, w, 1, "SAME"), C(1, 8, 8, 2), C(3, 3, 2, 2)),
    complex_inverse=(la.inv, C(8, 8)),
    complex_cholesky=(lambda z: la.cholesky(z @ la.adjoint(z)), C(8, 8)),
    complex_sort=(lambda z: tf.sort(tf.abs(z)), C(8)),
    complex_parts=(lambda x: (m.real(tf.complex(x, x)), m.imag(tf.complex(x, x))), X),
    polar=(lambda x: tf.exp(tf.complex(0.0, x)), X),
    fft=(lambda z: signal.ifft(signal.fft(z)), C(4, 16)),
    fft_gradient=(gradient_of(lambda z: signal.fft(z)), C(4, 16)),
    fft_2d=(signal.fft2d, C(2, 8, 8)),
    fft_3d=(signal.fft3d, C(4, 4, 4)),
    fft_odd=(signal.fft, C(4, 13)),
    real_fft=(lambda x: signal.irfft(signal.rfft(x)), X),
    real_fft_2d=(lambda x: signal.rfft2d(x), F(2, 8, 8)),
    stft=(lambda x: tf.abs(signal.stft(x, 16, 8)), F(2, 64)),
    inverse_stft=(lambda z: signal.inverse_stft(z, 16, 8), C(2, 7, 9)),
    mel=(
        lambda x: tf.abs(signal.stft(x, 16, 8)) @ signal.linear_to_mel_weight_matrix(8, 9),
        F(2, 64),
    ),
    mfcc=(signal.mfccs_from_log_mel_spectrograms, F(2, 7, 16)),
    dct=(lambda x: (signal.dct(x), signal.idct(x)), X),
    frames=(lambda x: signal.overlap_and_add(signal.frame(x, 8, 4), 4), F(2, 64)),
)
