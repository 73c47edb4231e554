"""Signs of a TPU, looked for in the device files and in the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpunb import environment
from tpunb.environment import default_tpu, find_tpu, requires_tpu


@pytest.fixture(autouse=True)
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the device files are."""
    patterns = (f"{tmp_path}/accel*", f"{tmp_path}/vfio/[0-9]*")
    monkeypatch.setattr(environment, "_DEVICE_FILES", patterns)
    return tmp_path


def test_nothing() -> None:
    found = find_tpu({})
    assert found.tpu is None
    assert found.tried == (
        "no TPU device in /dev",
        "TPU_NAME is not set",
        "COLAB_TPU_ADDR is not set",
    )


@pytest.mark.parametrize(
    ("variables", "tpu", "tried"),
    [
        ({"TPU_NAME": "my-tpu"}, "my-tpu", 2),
        ({"TPU_NAME": " local "}, "local", 2),
        ({"TPU_NAME": "grpc://10.0.0.2:8470"}, "grpc://10.0.0.2:8470", 2),
        ({"COLAB_TPU_ADDR": "10.0.0.2:8470"}, "grpc://10.0.0.2:8470", 3),
        ({"COLAB_TPU_ADDR": "grpc://10.0.0.2:8470"}, "grpc://10.0.0.2:8470", 3),
        ({"TPU_NAME": "a", "COLAB_TPU_ADDR": "b:1"}, "a", 2),
        ({"TPU_NAME": "  "}, None, 3),
        ({"COLAB_TPU_ADDR": ""}, None, 3),
    ],
)
def test_variables(variables: dict[str, str], tpu: str | None, tried: int) -> None:
    found = find_tpu(variables)
    assert (found.tpu, len(found.tried)) == (tpu, tried)
    if tpu is not None:
        assert "is set to" in found.tried[-1]


@pytest.mark.parametrize("names", [["accel0"], ["accel0", "accel1"], ["vfio/0"], ["vfio/12"]])
def test_device_files(devices: Path, names: list[str]) -> None:
    for name in names:
        (devices / name).parent.mkdir(exist_ok=True)
        (devices / name).touch()
    found = find_tpu({"TPU_NAME": "my-tpu"})
    assert found.tpu == "local"
    assert all(str(devices / name) in found.tried[0] for name in names)


def test_other_files_are_no_tpu(devices: Path) -> None:
    (devices / "vfio").mkdir()
    (devices / "vfio" / "vfio").touch()
    assert find_tpu({}).tpu is None


def test_the_process_own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLAB_TPU_ADDR", raising=False)
    monkeypatch.setenv("TPU_NAME", "my-tpu")
    monkeypatch.setenv("TPUNB_TPU", " v3-8 ")
    monkeypatch.setenv("TPUNB_REQUIRE_TPU", "1")
    assert find_tpu().tpu == "my-tpu"
    assert default_tpu() == "v3-8"
    assert requires_tpu()


@pytest.mark.parametrize(("value", "tpu"), [("", None), ("  ", None), ("v5e-8", "v5e-8")])
def test_default(value: str, tpu: str | None) -> None:
    assert default_tpu({"TPUNB_TPU": value}) == tpu
    assert default_tpu({}) is None


@pytest.mark.parametrize(
    ("value", "required"),
    [("1", True), ("true", True), (" YES ", True), ("on", True), ("0", False), ("", False), ("no", False)],
)  # fmt: skip
def test_required(value: str, required: bool) -> None:
    assert requires_tpu({"TPUNB_REQUIRE_TPU": value}) is required
    assert not requires_tpu({})
