"""Jupyter kernels in which TensorFlow's names answer for a virtual TPU."""

# Import nothing here, because every start of such a kernel imports this package.
