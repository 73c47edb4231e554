"""What `pytest --nbval notebooks` leaves out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tpunb.compiler import libtpu

WITH_COMPILER = "07_will_it_fit.ipynb"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out what was made for a TPU, and what the TPU's compiler has to be there for.

    Notebooks that were found are tested with `--tpu` alone.
    """
    found = collection_path.parent.name == "found"
    if found and not config.getoption("--tpu", default=None):
        return True
    return True if collection_path.name == WITH_COMPILER and _missing() else None


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Says what was left out: nobody is to take it for tested."""
    if why := _missing():
        terminalreporter.write_line(f"LEFT OUT: {WITH_COMPILER}. {why}", yellow=True)


def _missing() -> str:
    """Why there is no compiler; empty where there is one."""
    why = libtpu.why_unavailable()
    return str(why).splitlines()[0] if why else ""
