"""JAX's own tests on the virtual TPU for JAX."""
