"""A strategy that the tests of a module share."""

from __future__ import annotations

from support.shared_strategies import shared

three = shared(3)
