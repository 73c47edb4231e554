"""The Python code on the start page for JAX runs."""

from __future__ import annotations

import pytest
from support.pages import run_code


@pytest.mark.usefixtures("libtpu")
def test_the_code_runs(capsys: pytest.CaptureFixture[str]) -> None:
    run_code("Start with JAX")
    printed = capsys.readouterr().out
    assert "compiles, " in printed
    assert "The results on all 2 meshes are equal" in printed
