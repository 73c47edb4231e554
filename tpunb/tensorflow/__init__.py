"""TensorFlow's wing: its strategy on a virtual TPU, its cells, its programs. No import of JAX."""
