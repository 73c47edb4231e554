"""IPython and Jupyter: magics, the session, rich displays, kernels."""
