"""The suites of claims about JAX on a TPU, real or virtual."""
