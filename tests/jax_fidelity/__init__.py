"""A comparison of a virtual TPU for JAX with CPU devices: docs/maintainers/jax-fidelity.md."""
