"""TensorFlow's functions as graphs to read and to rewrite: what `strict` and `replicate` share."""
