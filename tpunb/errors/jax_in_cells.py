"""The words about cells of a TensorFlow connection that compute with JAX."""

JAX_IN_CELL = "A cell of a TensorFlow connection cannot compute with JAX."
"""The beginning of the message about a JAX array in a cell."""
WAY_FOR_JAX = (
    "Connect with `%tpu_connect --simulate v5e-8 --framework jax` for a virtual TPU of JAX. "
    "`tpunb.compile` and `%%tpu_compile` judge JAX functions without it."
)
"""The fix: the ways to run or judge code for JAX."""
