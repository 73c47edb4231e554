"""All operations, by group."""

from __future__ import annotations

from jax_fidelity import devices, functions, kernels, linear_algebra, numbers, random_numbers

GROUPS = {
    "Numbers and places": numbers.OPERATIONS,
    "Linear algebra": linear_algebra.OPERATIONS,
    "Random numbers": random_numbers.OPERATIONS,
    "Loops, gradients and the host": functions.OPERATIONS,
    "Eight devices": devices.OPERATIONS,
    "Kernels": kernels.OPERATIONS,
}
