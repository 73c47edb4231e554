"""The tables of the benchmarks, and the page that shows them; nothing is measured here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import page, sizes
from benchmarks.models import MODELS
from benchmarks.report import MeasurementError, Result, table
from benchmarks.turns import Steps


def steps(seconds: float) -> Steps:
    each = {"seconds": seconds, "cpu": 1.0, "memory": 2.0**20}
    return Steps([each], [each, each | {"seconds": 2 * seconds}], [each])


def training(monkeypatch: pytest.MonkeyPatch, **mirrored: Steps) -> list[sizes.StepResult]:
    by_strategy = {"virtual": steps(3.0), "one": steps(1.5), **mirrored}
    monkeypatch.setattr(sizes, "steps_of", lambda *_, **__: by_strategy)
    return list(sizes.training(["mlp"], [8], repeats=1, timeout=1))


def test_the_page_has_a_place_for_each_kind() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert [kind for kind in command.KINDS if f"<!-- {kind} -->" not in text] == []


def test_new_figures_replace_the_old_ones(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text("Before\n<!-- loops -->\nold\n<!-- /loops -->\nAfter\n", encoding="utf-8")
    result = Result("a run", (2.0, 3.0), "by hand", (1.0, 1.0), wanted=1.02)
    for _ in range(2):
        page.put("loops", [result], file)
    lines = file.read_text(encoding="utf-8").splitlines()
    assert (lines[0], lines[-1], lines.count("<!-- loops -->")) == ("Before", "After", 1)
    assert "| a run | 2.5 s | 1 s | by hand | 2.50× (2.00–3.00) | ≤ 1.02 |" in lines
    assert "old" not in lines
    with pytest.raises(ValueError, match="no place for keras"):
        page.put("keras", [result], file)


def test_training_has_a_table_for_each_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    text = sizes.as_markdown(training(monkeypatch))
    assert "| MLP | 8 | 3 s, 2.00× | 4.5 s, 2.00× (2.00–2.00) | 1 s, 1.00× (1.00–1.00) |" in text
    assert "| MLP | 8 | not run | not run | not run | not run |" in text


def test_a_first_step_that_times_out_has_no_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    results = training(monkeypatch, mirrored=Steps(first=[{}]))
    assert "| MLP | 8 | not in time | not in time |" in sizes.as_markdown(results)
    assert table(results).count("not in time") == 4


def test_other_benchmarks_run_after_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(_: object) -> Iterator[Result]:
        yield Result("half", (1.0,), "peer", (1.0,))
        raise MeasurementError("it has failed")

    def working(_: object) -> Iterator[Result]:
        yield Result("whole", (1.0,), "peer", (2.0,))

    monkeypatch.setattr(command, "KINDS", {"one": failing, "two": working})
    monkeypatch.setattr(sys, "argv", ["benchmarks"])
    assert command.main() == 1
    output = capsys.readouterr()
    assert "it has failed" in output.err
    assert output.out.splitlines()[-1].split()[:2] == ["whole", "1"]


@pytest.mark.tensorflow
@pytest.mark.parametrize("model", MODELS)
def test_a_model_accepts_its_inputs(model: str) -> None:
    from benchmarks.models import inputs
    from benchmarks.models import model as build_model

    assert build_model(model)(inputs(model, 2)).shape == [2, 10]
