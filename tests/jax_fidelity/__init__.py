"""A comparison of a virtual TPU for JAX with plain CPU devices, for docs/jax-fidelity.md."""
