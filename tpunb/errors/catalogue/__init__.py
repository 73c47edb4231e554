"""The errors and performance traps that users of TPUs meet, each with its cause and its fix.

This package holds data only: `tpunb.errors.explain` finds the entry for an error.
"""

from __future__ import annotations

from tpunb.errors.catalogue.compiling import COMPILING
from tpunb.errors.catalogue.connecting import CONNECTING
from tpunb.errors.catalogue.entry import Clue, Explanation, link
from tpunb.errors.catalogue.jax_shardings import JAX_SHARDINGS
from tpunb.errors.catalogue.jax_start import JAX_START
from tpunb.errors.catalogue.jax_tracing import JAX_TRACING
from tpunb.errors.catalogue.keras_2 import KERAS_2
from tpunb.errors.catalogue.memory import MEMORY
from tpunb.errors.catalogue.pallas import PALLAS
from tpunb.errors.catalogue.performance import PERFORMANCE
from tpunb.errors.catalogue.running import RUNNING
from tpunb.errors.catalogue.strategy import STRATEGY
from tpunb.errors.catalogue.workers import WORKERS

__all__ = ["CHAPTERS", "ENTRIES", "Clue", "Explanation", "link"]

CHAPTERS: dict[str, tuple[Explanation, ...]] = {
    "Connecting": CONNECTING,
    "Workers, files and datasets": WORKERS,
    "Compiling and shapes": COMPILING,
    "Memory": MEMORY,
    "Kernels of Pallas": PALLAS,
    "Loading and running programs": RUNNING,
    "Starting JAX": JAX_START,
    "Devices and shardings of JAX": JAX_SHARDINGS,
    "Tracing with JAX": JAX_TRACING,
    "Using the strategy": STRATEGY,
    "Notebooks written for Keras 2": KERAS_2,
    "Performance traps": PERFORMANCE,
}
"""The entries by the user's activity, in the order of the page."""

ENTRIES: dict[str, Explanation] = {
    entry.code: entry for entries in CHAPTERS.values() for entry in entries
}
"""Every entry by its code."""
