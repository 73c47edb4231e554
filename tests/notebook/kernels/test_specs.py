"""Kernels with a virtual TPU: installing, listing and removing them."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.kernelspec import KernelSpecManager
from PIL import Image

from tpunb.errors import AcceleratorTypeError, ConnectError, KernelError
from tpunb.notebook.kernels.specs import (
    KernelOptions,
    install_kernel,
    installed_kernels,
    remove_kernel,
    temporary_kernel,
)


@pytest.fixture(autouse=True)
def jupyter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test its own Jupyter folders."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "prefix" / "share" / "jupyter"))
    return tmp_path


def read_spec(folder: Path) -> Any:
    return json.loads((folder / "kernel.json").read_text())


def chosen(spec: Any) -> Any:
    return json.loads(spec["env"]["TPUNB_KERNEL"])


def test_install(jupyter: Path) -> None:
    kernel = install_kernel("v5e-8")
    assert kernel.name == "tpunb-v5e-8"
    assert kernel.tpu == "v5e-8"
    assert kernel.folder == jupyter / "data" / "kernels" / "tpunb-v5e-8"
    assert not kernel.replaced
    spec = read_spec(kernel.folder)
    assert spec["display_name"] == "Python 3 (virtual TPU v5e-8)"
    assert spec["language"] == "python"
    assert spec["metadata"]["debugger"] is True
    assert spec["argv"][0] == sys.executable
    assert "{connection_file}" in spec["argv"]
    assert spec["argv"][-1] == "--ext=tpunb.notebook.kernels.extension"
    spec_found = KernelSpecManager().get_kernel_spec("tpunb-v5e-8")
    assert spec_found.display_name == spec["display_name"]


def test_keras_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tpunb.notebook.kernels.specs.require_keras_2", lambda: "tf.keras is Keras 2."
    )
    kernel = install_kernel("v5e-8", options=KernelOptions(keras=2))
    assert kernel.name == "tpunb-v5e-8-keras-2"
    spec = read_spec(kernel.folder)
    assert spec["display_name"] == "Python 3 (virtual TPU v5e-8, Keras 2)"
    assert spec["env"]["TF_USE_LEGACY_KERAS"] == "1"
    assert "TF_USE_LEGACY_KERAS" not in read_spec(install_kernel("v5e-8").folder)["env"]


def test_options_of_jax() -> None:
    kernel = install_kernel("v5e-8", options=KernelOptions(framework="jax", judge="off"))
    assert kernel.name == "tpunb-v5e-8-jax"
    spec = read_spec(kernel.folder)
    assert spec["display_name"] == "Python 3 (virtual TPU v5e-8, JAX)"
    assert chosen(spec) == {"tpu": "v5e-8", "framework": "jax", "judge": "off"}
    plain = chosen(read_spec(install_kernel("v5e-8").folder))
    assert plain == {"tpu": "v5e-8", "framework": None, "judge": "wait"}


def test_a_temporary_kernel_for_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUNB_FRAMEWORK", "tensorflow")
    with temporary_kernel("v5e-8", KernelOptions(framework="jax")) as name:
        spec = KernelSpecManager().get_kernel_spec(name)
        assert spec.env["TPUNB_FRAMEWORK"] == "jax"


def test_keras_2_is_not_for_jax() -> None:
    with pytest.raises(KernelError, match="JAX needs Keras 3"):
        KernelOptions(keras=2, framework="jax")


def test_a_spec_does_not_override_the_users_variable() -> None:
    # Jupyter gives a spec's variables priority over the environment.
    assert "TPUNB_TPU" not in read_spec(install_kernel("v5e-8").folder)["env"]


def test_other_users_may_read_a_spec() -> None:
    folder = install_kernel("v5e-8").folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_logos() -> None:
    folder = install_kernel(8).folder
    for side in (32, 64):
        with Image.open(folder / f"logo-{side}x{side}.png") as image:
            assert image.size == (side, side)
            assert len(image.convert("RGB").getcolors(10_000) or ()) > 3
    assert (folder / "logo-svg.svg").read_text().startswith("<svg ")


@pytest.mark.parametrize(
    ("tpu", "name", "shown"),
    [
        ("v5litepod-8", "tpunb-v5e-8", "virtual TPU v5e-8"),
        ("V3-32", "tpunb-v3-32", "virtual TPU v3-32"),
        (12, "tpunb-12-cores", "virtual TPU of 12 cores"),
        ("1", "tpunb-1-core", "virtual TPU of 1 core"),
    ],
)
def test_names(tpu: str | int, name: str, shown: str) -> None:
    kernel = install_kernel(tpu)
    assert kernel.name == name
    spec = read_spec(kernel.folder)
    assert shown in spec["display_name"]
    assert " " not in chosen(spec)["tpu"]


def test_a_prefix(jupyter: Path) -> None:
    kernel = install_kernel("v3-8", name="Mine", prefix=jupyter / "prefix")
    assert kernel.folder == jupyter / "prefix" / "share" / "jupyter" / "kernels" / "mine"
    assert [kernel.name for kernel in installed_kernels()] == ["mine"]


def test_replacing() -> None:
    assert not install_kernel("v3-8", name="tpu").replaced
    assert install_kernel("v3-32", name="tpu").replaced
    assert [(kernel.name, kernel.tpu) for kernel in installed_kernels()] == [("tpu", "v3-32")]


@pytest.fixture
def other_kernel(jupyter: Path) -> Path:
    """A kernel that another program has installed."""
    folder = jupyter / "data" / "kernels" / "theirs"
    folder.mkdir(parents=True)
    spec = {"argv": ["true"], "display_name": "Theirs", "language": "c", "metadata": {}}
    (folder / "kernel.json").write_text(json.dumps(spec))
    return folder


def test_other_kernels_are_left_alone(other_kernel: Path) -> None:
    with pytest.raises(KernelError, match="something else named 'theirs'"):
        install_kernel("v3-8", name="theirs")
    with pytest.raises(KernelError, match="was not installed by tpunb"):
        remove_kernel("theirs")
    assert read_spec(other_kernel)["display_name"] == "Theirs"
    assert installed_kernels() == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"metadata": {"tpunb": {"tpu": 3}}}', "\xff"])
def test_broken_specs_are_not_ours(other_kernel: Path, text: str) -> None:
    (other_kernel / "kernel.json").write_bytes(text.encode("latin-1"))
    assert installed_kernels() == []


def test_removing() -> None:
    folder = install_kernel("v3-8").folder
    assert remove_kernel("TPUNB-v3-8").folder == folder
    assert not folder.exists()
    with pytest.raises(KernelError, match="no kernel 'tpunb-v3-8'"):
        remove_kernel("tpunb-v3-8")


def test_removing_by_the_type() -> None:
    folder = install_kernel("v3-8").folder
    assert remove_kernel("v3-8").folder == folder
    assert not folder.exists()


def test_removing_suggests_a_similar_name() -> None:
    install_kernel("v3-8")
    with pytest.raises(KernelError, match="Did you mean tpunb-v3-8"):
        remove_kernel("tpunb-v3")


@pytest.mark.parametrize("name", ["", "a b", "../up", "tpü"])
def test_bad_names(name: str, jupyter: Path) -> None:
    with pytest.raises(KernelError, match="not a valid name"):
        install_kernel("v3-8", name=name)
    assert not (jupyter / "data").exists()


def test_bad_types() -> None:
    with pytest.raises(AcceleratorTypeError, match="v3-8"):
        install_kernel("v3-9")
    with pytest.raises(AcceleratorTypeError), temporary_kernel("v3-9"):
        pass


def test_a_folder_that_cannot_be_created(jupyter: Path) -> None:
    (jupyter / "prefix").write_text("a file")
    with pytest.raises(KernelError, match="Cannot write"):
        install_kernel("v3-8", prefix=jupyter / "prefix")


def test_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", None)
    with pytest.raises(KernelError, match=r"needs ipykernel[\s\S]*tpunb\[run\]"):
        install_kernel("v3-8")


def test_a_temporary_kernel() -> None:
    before = os.environ["JUPYTER_PATH"]
    with temporary_kernel("v3-8") as name:
        first = Path(os.environ["JUPYTER_PATH"].split(os.pathsep)[0])
        spec = KernelSpecManager().get_kernel_spec(name)
        assert Path(spec.resource_dir).is_relative_to(first)
        assert spec.env["TPUNB_TPU"] == "v3-8"
    assert os.environ["JUPYTER_PATH"] == before
    assert not first.exists()
    assert name not in KernelSpecManager().find_kernel_specs()


def test_a_required_tpu_allows_no_virtual_tpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TPUNB_REQUIRE_TPU", "1")
    with pytest.raises(ConnectError, match="TPUNB_REQUIRE_TPU"), temporary_kernel("v3-8"):
        pass


def test_a_temporary_kernel_without_a_jupyter_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUPYTER_PATH")
    with temporary_kernel(4):
        assert "JUPYTER_PATH" in os.environ
    assert "JUPYTER_PATH" not in os.environ
