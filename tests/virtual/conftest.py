"""Strategies that many tests of the virtual TPU share within a module."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="module")
def four(tf: Any) -> Any:
    """A strategy of four replicas."""
    from support.strategies import strategy_of

    return strategy_of(4)
