"""The words about JAX where TensorFlow is needed."""

JAX_IN_CELL = "A cell of a TensorFlow connection cannot compute with JAX."
"""The beginning of the message about a JAX array in a cell."""
WAY_FOR_JAX = (
    "Connect with `%tpu_connect --simulate v5e-8 --framework jax` for a virtual TPU of JAX. "
    "`tpunb.compile` and `%%tpu_compile` judge JAX functions without it."
)
"""The fix: the ways to run or judge code for JAX."""

FOR_JAX = {
    "tpunb.check": 'tpunb.compile(step, *args, tpu="v5e-8") asks the TPU\'s own compiler.',
    "tpunb.compare": "compare the results on several meshes: "
    "tpunb.compare(step, params, batch, meshes=[(1,), (8,)]).",
    "tpunb.profile": 'use jax.profiler.trace("profile"). tpunb.compile(step, *args, tpu="v5e-8", '
    "speed=True) estimates the time on a TPU.",
}
"""For each function that only TensorFlow has: what to use for JAX."""
