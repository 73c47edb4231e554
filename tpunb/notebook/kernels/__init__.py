"""Jupyter kernels in which TensorFlow's names answer for a virtual TPU."""

# Nothing heavy: every start of such a kernel imports this.
from __future__ import annotations

from tpunb.notebook.kernels.specs import (
    InstalledKernel,
    install_kernel,
    installed_kernels,
    remove_kernel,
    temporary_kernel,
)

__all__ = [
    "InstalledKernel",
    "install_kernel",
    "installed_kernels",
    "remove_kernel",
    "temporary_kernel",
]
