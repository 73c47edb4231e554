"""Fixtures of strategies that the tests of a module share."""

from __future__ import annotations

from typing import Any

import pytest


def shared(tpu: int | str, **options: Any) -> Any:
    """Return a fixture: one strategy for each module, made when a test first asks for it."""

    @pytest.fixture(scope="module")
    def strategy(tf: Any) -> Any:
        from support.strategies import strategy_of

        return strategy_of(tpu, **options)

    return strategy
