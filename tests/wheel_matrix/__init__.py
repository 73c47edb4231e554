"""The wheel in clean environments: each Python with each extra, beside several releases of JAX."""
