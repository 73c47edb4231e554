"""Strategies that many tests of the virtual TPU share within a module."""

from __future__ import annotations

from typing import Any

import pytest


def _shared(tpu: int | str, **options: Any) -> Any:
    @pytest.fixture(scope="module")
    def strategy(tf: Any) -> Any:
        from support.strategies import strategy_of

        return strategy_of(tpu, **options)

    return strategy


two, three, four = _shared(2), _shared(3), _shared(4)
"""Strategies of so many replicas."""

lenient = _shared(4, strict=False)
"""One that lets pass what a TPU refuses: the engine's own tests go further than a TPU does."""

hosts = _shared("v5e-16")
"""One of two hosts with eight cores each, in this process."""
