"""Linear algebra."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jax_fidelity.operation import SQUARE, on_one_device

XLAS = "an algorithm of XLA instead of LAPACK's, so the last digits differ"
REFUSED = "refused as well"

POSITIVE = (SQUARE @ SQUARE.T + 128 * np.eye(128)).astype("float32")
SYMMETRIC = SQUARE + SQUARE.T

OPERATIONS = {
    "cholesky": on_one_device(lambda x: jnp.linalg.cholesky(x), POSITIVE, on_a_tpu=XLAS),
    "QR": on_one_device(lambda x: jnp.linalg.qr(x), on_a_tpu=XLAS),
    "LU": on_one_device(lambda x: jax.lax.linalg.lu(x), on_a_tpu=XLAS),
    "solve, inv, det": on_one_device(
        lambda x: (jnp.linalg.solve(x, x[0]), jnp.linalg.inv(x), jnp.linalg.slogdet(x)),
        on_a_tpu=XLAS,
    ),
    "triangular solve": on_one_device(
        lambda x: jax.scipy.linalg.solve_triangular(x, x[0], lower=True), POSITIVE, on_a_tpu=XLAS
    ),
    "eigh": on_one_device(
        lambda x: jnp.linalg.eigh(x),
        SYMMETRIC,
        on_a_tpu="QDWH or Jacobi: other signs of eigenvectors, and fewer exact digits",
    ),
    "SVD": on_one_device(
        lambda x: jnp.linalg.svd(x),
        on_a_tpu="QDWH: other signs of singular vectors, and fewer exact digits",
    ),
    "eig": on_one_device(lambda x: jnp.linalg.eig(x), on_a_tpu=REFUSED),
    "schur": on_one_device(lambda x: jax.scipy.linalg.schur(x), on_a_tpu=REFUSED),
}
