"""TensorFlow's own tests of TPU strategies, run on the virtual TPU."""
