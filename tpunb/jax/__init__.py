"""JAX's wing: its devices as a TPU's, its cells, its programs. It never imports TensorFlow."""
