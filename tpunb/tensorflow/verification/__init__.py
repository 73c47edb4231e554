"""The claims about TensorFlow on a TPU, each with a small program."""
