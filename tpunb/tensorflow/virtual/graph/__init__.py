"""TensorFlow's functions as graphs to read and to rewrite, shared by `strict` and `replicate`."""
