"""`tpunb.check` uses the TPU's own compiler if it can, and says so."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from support.checked_functions import X, a_boolean_mask, product_of_long_integers

from tpunb._util.child_process import ChildLostError
from tpunb.compiler.program import CompilerUnavailableError
from tpunb.tensorflow.compiler import check as checking
from tpunb.tensorflow.compiler.check import check


def codes(problems: Any) -> list[str]:
    return [problem.code for problem in problems]


@pytest.mark.usefixtures("libtpu")
def test_the_compiler_decides() -> None:
    report = check(a_boolean_mask, X)
    assert report.ok
    assert "dynamic-shape" in codes(report.warnings)
    assert report.compiler.startswith("The TPU's own compiler: v5e-8: compiles")
    assert report.compiler in str(report)
    report = check(product_of_long_integers, X)
    assert codes(report.errors) == ["x64-op"]
    assert report.errors[0].line == product_of_long_integers.__code__.co_firstlineno + 3
    # Each tensor fits alone, but not both together.
    report = check(lambda x: (x * 2.0, x + 1.0), tf.TensorSpec([6 * 2**18, 1024]))
    assert codes(report.errors) == ["memory"]


@pytest.mark.parametrize("way", ["missing", "crashed"])
def test_a_missing_verdict_does_not_count_as_success(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def require() -> None:
        if way == "missing":
            raise CompilerUnavailableError("It is not installed.", fix="Install it.")

    def ask(*args: Any, **options: Any) -> Any:
        raise ChildLostError("the compiler crashed (SIGABRT).", crashed=True)

    monkeypatch.setattr(checking.libtpu, "require", require)
    monkeypatch.setattr(checking.libtpu, "ask", ask)
    report = check(a_boolean_mask, X)
    assert codes(report.errors) == (["dynamic-shape"] if way == "crashed" else [])
    assert codes(report.warnings) == ([] if way == "crashed" else ["dynamic-shape"])
    outcome = "was not asked" if way == "missing" else "gave no answer"
    assert f"The TPU's own compiler {outcome}: " in report.compiler
    assert ("not installed" if way == "missing" else "SIGABRT") in report.compiler
