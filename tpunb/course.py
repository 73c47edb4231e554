"""Checks of answers in a lesson: `question`, `seal` and `score`."""

from __future__ import annotations

from tpunb.teach.course import question, score, seal

__all__ = ["question", "score", "seal"]
