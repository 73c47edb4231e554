"""TensorFlow's own tests on the virtual TPU."""
