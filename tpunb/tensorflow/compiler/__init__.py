"""Functions of TensorFlow for the TPU's compiler: traced, prepared, checked."""
