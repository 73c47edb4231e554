"""The TPU's compiler, if it is installed, in a process that all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.compiler_needed import require_compiler

from tpunb.compiler.ask import kept_verdicts


@pytest.fixture(autouse=True)
def verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty folder for the test's kept verdicts, and return it."""
    folder = tmp_path / "verdicts"
    monkeypatch.setenv(kept_verdicts.FOLDER, str(folder))
    return folder


@pytest.fixture(scope="session")
def libtpu() -> None:
    """Skip a test, with a message, if the TPU's compiler is not installed; in CI the test fails.

    libtpu has wheels for Python 3.11 and later on Linux x86-64, and JAX does not fit the oldest
    TensorFlow. `TPUNB_WITHOUT_COMPILER=1` says that no compiler is expected.
    """
    require_compiler()
