"""Jupyter kernels in which TensorFlow's names answer for a virtual TPU."""

# Nothing is imported here: every start of such a kernel imports this.
