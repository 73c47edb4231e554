"""The refusal of an answer, in words for the learner."""

from __future__ import annotations

from tpunb.errors import TpunbError


class AnswerError(TpunbError, ValueError):
    """An answer that a puzzle does not take. The message says what it takes."""
