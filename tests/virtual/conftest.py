"""Strategies that many tests of the virtual TPU share within a module."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="module")
def two(tf: Any) -> Any:
    """A strategy of two replicas."""
    return _strategy_of(2)


@pytest.fixture(scope="module")
def three(tf: Any) -> Any:
    """A strategy of three replicas."""
    return _strategy_of(3)


@pytest.fixture(scope="module")
def four(tf: Any) -> Any:
    """A strategy of four replicas."""
    return _strategy_of(4)


@pytest.fixture(scope="module")
def lenient(tf: Any) -> Any:
    """A strategy of four replicas that lets pass what a TPU refuses.

    The engine's own tests go further than a TPU does.
    """
    return _strategy_of(4, strict=False)


@pytest.fixture(scope="module")
def hosts(tf: Any) -> Any:
    """A strategy of two hosts with eight cores each, in this process."""
    return _strategy_of("v5e-16")


def _strategy_of(tpu: Any, **options: Any) -> Any:
    from support.strategies import strategy_of

    return strategy_of(tpu, **options)
