"""What a run of many steps reports while it runs."""

from __future__ import annotations

from typing import Protocol

__all__ = ["NoWatcher", "Watcher"]


class Watcher(Protocol):
    """Receives the progress of a run."""

    def tracing(self, what: str) -> None:
        """TensorFlow starts to trace."""

    def made(self, steps: int, examples: int | None) -> None:
        """Reports the steps made so far, and the examples of each."""


class NoWatcher:
    """Ignores it."""

    def tracing(self, what: str) -> None:
        """Ignored."""

    def made(self, steps: int, examples: int | None) -> None:
        """Ignored."""
