"""The TPU's compiler, for puzzles."""

from __future__ import annotations

import pytest
from support.compiler_needed import require_compiler


@pytest.fixture
def libtpu() -> None:
    """Skip a test, with a message, if the TPU's compiler is not installed; in CI the test fails."""
    require_compiler()
