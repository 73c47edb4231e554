"""Tests of the virtual TPU for JAX. They run where JAX is installed: `make test-jax`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import pytest

HAS_JAX = importlib.util.find_spec("jax") is not None

collect_ignore_glob = [] if HAS_JAX else ["test_*.py"]


@pytest.fixture(autouse=True)
def _without_a_connection() -> Iterator[None]:
    """Close what a test leaves open."""
    from tpunb.connection.tpu_connection import open_connections

    yield
    for connection in open_connections():
        connection.close()


@pytest.fixture
def connect() -> Callable[..., Any]:
    """Return a function that connects to a virtual TPU for JAX; by default, nothing is judged."""
    import tpunb

    def connected(tpu: str = "v5e-8", **options: Any) -> Any:
        return tpunb.connect(simulate=tpu, framework="jax", **{"judge": "off", **options})

    return connected
