"""What `pytest --nbval notebooks` leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Notebooks that were found are made for a TPU: they are tested with `--tpu` alone."""
    found = collection_path.parent.name == "found"
    return True if found and not config.getoption("--tpu", default=None) else None
