"""The errors and performance traps that users of TPUs meet, with cause and mend.

Data only: `tpunb.diagnosis` finds the entry for an error.
"""

from __future__ import annotations

from tpunb.catalogue.compiling import COMPILING
from tpunb.catalogue.connecting import CONNECTING
from tpunb.catalogue.entry import Clue, Entry, link
from tpunb.catalogue.performance import PERFORMANCE
from tpunb.catalogue.strategy import STRATEGY
from tpunb.catalogue.workers import WORKERS

__all__ = ["CHAPTERS", "ENTRIES", "Clue", "Entry", "link"]

CHAPTERS: dict[str, tuple[Entry, ...]] = {
    "Connecting": CONNECTING,
    "Workers, files and datasets": WORKERS,
    "Compiling, shapes and memory": COMPILING,
    "Using the strategy": STRATEGY,
    "Performance traps": PERFORMANCE,
}
"""The entries by what the user was doing."""

ENTRIES: dict[str, Entry] = {
    entry.code: entry for entries in CHAPTERS.values() for entry in entries
}
"""Every entry by its code."""
