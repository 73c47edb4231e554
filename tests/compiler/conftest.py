"""Whether the TPU's compiler is here; it is a second of a process, which all tests share."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tpunb.compiler import kept_verdicts
from tpunb.compiler.libtpu import why_unavailable


@pytest.fixture(autouse=True)
def verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the verdicts that the test keeps: none are there when it begins."""
    kept = tmp_path / "verdicts"
    monkeypatch.setenv(kept_verdicts.FOLDER, str(kept))
    return kept


@pytest.fixture(scope="session")
def libtpu() -> None:
    """Skips a test, loudly, where the TPU's compiler is not installed; in CI it fails.

    libtpu has wheels for Python 3.11 and later on Linux x86-64, and JAX's do not go with the
    oldest TensorFlow: where `TPUNB_WITHOUT_COMPILER=1` says so it is not expected.
    """
    error = why_unavailable()
    if error is None:
        return
    if os.environ.get("TPUNB_WITHOUT_COMPILER") == "1":
        pytest.skip(error.message)
    if os.environ.get("CI"):
        pytest.fail(f"CI runs these tests, and: {error}")
    print(f"\nNOT TESTED, what the TPU's compiler says: {error.message}", file=sys.__stderr__)
    pytest.skip(error.message)
