"""TensorFlow's runtime: devices, running functions, state."""
