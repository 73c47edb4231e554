"""The files of the notebooks are found in a checkout; tests/test_wheel.py looks into the wheel."""

from __future__ import annotations

from pathlib import Path

import pytest

import tpunb
from tpunb import examples
from tpunb.compiler.ask import recorded_verdicts


@pytest.mark.parametrize("name", examples.FILES)
def test_the_checkout_has_the_files(name: str) -> None:
    assert tpunb.examples.path(name).exists()


def test_a_wheel_has_its_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recorded").mkdir()
    monkeypatch.setattr(examples, "PACKAGED", tmp_path)
    assert examples.path("recorded") == tmp_path / "recorded"


def test_another_name_is_refused() -> None:
    with pytest.raises(tpunb.TpunbError, match="There is no example 'digits'") as raised:
        examples.path("digits")
    assert "digits_on_a_tpu.ipynb" in raised.value.fix


@pytest.mark.parametrize("name", ["recorded", "puzzles"])
def test_the_recorded_verdicts_of_tpunb_are_only_read(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(recorded_verdicts, "is_permanent", lambda _: True)
    monkeypatch.setattr(recorded_verdicts, "_place", refuse)
    recorded_verdicts.record(examples.path(name), None, {}, {})  # type: ignore[arg-type]
