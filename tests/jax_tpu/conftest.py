"""Tests of the virtual TPU for JAX. They run where JAX is installed: `make test-jax`."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.compiler_needed import require_compiler

# libtpu, which is installed beside JAX in some environments, asks a metadata server otherwise.
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")

HAS_JAX = importlib.util.find_spec("jax") is not None

collect_ignore_glob = [] if HAS_JAX else ["test_*.py"]


@pytest.fixture(autouse=True)
def _without_tensorflows_wing() -> Iterator[None]:
    """Fail a test after which a part of `tpunb.tensorflow` is imported: JAX needs none."""
    yield
    assert not [name for name in sys.modules if name.startswith("tpunb.tensorflow")]


@pytest.fixture(autouse=True)
def _without_a_connection() -> Iterator[None]:
    """Close what a test leaves open."""
    from tpunb.connection.tpu_connection import open_connections

    yield
    for connection in open_connections():
        connection.close()


@pytest.fixture(autouse=True)
def _verdicts(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use an empty folder for the test's kept verdicts."""
    monkeypatch.setenv("TPUNB_VERDICTS", str(tmp_path / "verdicts"))


@pytest.fixture(scope="session")
def libtpu() -> None:
    """Skip a test, with a message, if the TPU's compiler is not installed; in CI the test fails."""
    require_compiler()


@pytest.fixture
def connect() -> Callable[..., Any]:
    """Return a function that connects to a virtual TPU for JAX; by default, nothing is judged."""
    import tpunb

    def connected(tpu: str = "v5e-8", **options: Any) -> Any:
        return tpunb.connect(simulate=tpu, framework="jax", **{"judge": "off", **options})

    return connected
