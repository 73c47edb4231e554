"""The TPU's compiler, which some tests need."""

from __future__ import annotations

import os
import sys

import pytest

from tpunb.compiler.ask.libtpu import why_unavailable


def require_compiler() -> None:
    """Skip a test, with a message, if the TPU's compiler is not installed; in CI the test fails."""
    error = why_unavailable()
    if error is None:
        return
    if os.environ.get("TPUNB_WITHOUT_COMPILER") == "1":
        pytest.skip(error.message)
    if os.environ.get("CI"):
        pytest.fail(f"CI runs these tests, and: {error}")
    print(f"\nNOT TESTED, what the TPU's compiler says: {error.message}", file=sys.__stderr__)
    pytest.skip(error.message)
