"""What of a machine matters for TPUs, and `tpunb doctor`."""

from __future__ import annotations

from typing import Any

import pytest

from tpunb import cli, machine
from tpunb.environment import Search
from tpunb.machine import Machine

NOWHERE = Search(None, ("no TPU device in /dev",))
HERE = Search("local", ("found /dev/accel0",))


def of(search: Search, **versions: str) -> Machine:
    named = {name.replace("_", "-"): version for name, version in versions.items()}
    return Machine("3.12.1", named, search, (), {})


@pytest.mark.parametrize(
    ("found", "step"),
    [
        (of(NOWHERE), 'TensorFlow is not installed: pip install "tpunb[cpu]"'),
        (of(HERE), 'TensorFlow is not installed: pip install "tpunb[tpu]"'),
        (of(HERE, tensorflow="2.21.0"), "This TensorFlow has no support for TPUs"),
        (of(HERE, tensorflow_tpu="2.21.0"), "%tpu_connect local"),
        (of(NOWHERE, tensorflow_cpu="2.21.0"), "%tpu_connect --simulate v5e-8"),
        (of(HERE, tensorflow="2.20.0", tensorflow_tpu="2.21.0"), "2.20.0, 2.21.0"),
    ],
)
def test_the_next_step(found: Machine, step: str) -> None:
    assert step in found.next_step
    assert bool(found.mend) is not found.next_step.startswith("In a notebook")


def test_nothing_secret_is_looked_at() -> None:
    seen = machine.look({"TPU_NAME": "mine", "API_TOKEN": "s3cret", "TPU_PASSWORD": "s3cret"})
    assert seen.variables == {"TPU_NAME": "mine"}
    assert "s3cret" not in repr(seen)
    assert seen.search.tpu in {"mine", "local"}


def test_doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TPU_NAME", "COLAB_TPU_ADDR", "TPUNB_TPU"):
        monkeypatch.delenv(name, raising=False)
    plain = of(NOWHERE, tensorflow_cpu="2.21.0")
    monkeypatch.setattr(cli.doctor, "look", lambda: plain)
    assert cli.main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "tensorflow-cpu" in said
    assert "connects to a virtual v5e-8" in said
    assert said.splitlines()[-1].endswith("%tpu_connect --simulate v5e-8")


def test_doctor_of_a_machine_to_mend(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bare: Any = of(NOWHERE)
    monkeypatch.setattr(cli.doctor, "look", lambda: bare)
    assert cli.main(["doctor"]) == 1
    assert "pip install" in capsys.readouterr().err


def test_this_machine() -> None:
    found = machine.look()
    assert found.has_tensorflow
    assert "keras" in found.versions
