"""Installing and removing kernels leaves everybody else's files alone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tpunb import cli
from tpunb.errors import KernelError
from tpunb.notebook.kernels.specs import install_kernel, installed_kernels, remove_kernel


@pytest.fixture(autouse=True)
def jupyter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's share/jupyter folder, with files that must survive."""
    data = tmp_path / "data"
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(data))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "prefix" / "share" / "jupyter"))
    kernel(data / "kernels" / "theirs")
    (data / "notebook_secret").write_text("secret")
    return tmp_path


def kernel(folder: Path, **changes: Any) -> Path:
    spec = {"argv": ["true"], "display_name": "Theirs", "language": "c", "metadata": {}}
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps({**spec, **changes}))
    return folder


def tree(folder: Path) -> dict[str, bytes | None]:
    """Return the contents of a folder, with the bytes of each file."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


NO_NAMES = [
    "", ".", "..", "...", ".hidden", "dot.", "../up", "a/b", "/abs", "a\\b", "a b", "tpü", "a\n",
    "\u212aernel", "a\0b", "x" * 300,
]  # fmt: skip


@pytest.mark.parametrize("name", NO_NAMES)
@pytest.mark.parametrize("prefix", [False, True])
def test_names_cannot_escape_the_folder(name: str, prefix: bool, jupyter: Path) -> None:
    before = tree(jupyter)
    with pytest.raises(KernelError, match="not a valid name"):
        install_kernel("v3-8", name=name, prefix=jupyter / "data" if prefix else None)
    with pytest.raises(KernelError):
        remove_kernel(name)
    assert tree(jupyter) == before


@pytest.mark.parametrize("name", ["...", "..", "."])
def test_the_command_deletes_nothing(name: str, jupyter: Path) -> None:
    before = tree(jupyter)
    assert cli.main(["kernel", "install", "v3-8", f"--name={name}"]) == 2
    assert cli.main(["kernel", "install", "v3-8", f"--name={name}", f"--prefix={jupyter}"]) == 2
    assert cli.main(["kernel", "remove", name]) == 2
    assert tree(jupyter) == before


def test_jupyters_own_kernel_is_not_hidden(jupyter: Path) -> None:
    for name in ("python3", "PYTHON3"):
        with pytest.raises(KernelError, match="something else named 'python3'"):
            install_kernel("v3-8", name=name)
        with pytest.raises(KernelError, match="not installed by tpunb"):
            remove_kernel(name)


def test_a_kernel_in_another_folder_is_not_hidden(jupyter: Path) -> None:
    kernel(jupyter / "prefix" / "share" / "jupyter" / "kernels" / "ir")
    before = tree(jupyter)
    with pytest.raises(KernelError, match="something else named 'ir'"):
        install_kernel("v3-8", name="IR")
    assert tree(jupyter) == before


@pytest.mark.parametrize(
    "changes",
    [
        # Copies of our specs that start another program.
        {"metadata": {"tpunb": {"tpu": "v3-8"}}},
        {"argv": ["python", "--ext=tpunb.notebook.kernels.extension"]},
        {
            "argv": "--ext=tpunb.notebook.kernels.extension",
            "metadata": {"tpunb": {"tpu": "v3-8"}},
        },
        {"argv": None, "metadata": {"tpunb": {"tpu": "v3-8"}}},
    ],
)
def test_a_changed_copy_is_not_our_kernel(changes: dict[str, Any], jupyter: Path) -> None:
    folder = kernel(jupyter / "data" / "kernels" / "mine", **changes)
    before = tree(folder)
    assert installed_kernels() == []
    with pytest.raises(KernelError, match="something else"):
        install_kernel("v3-8", name="mine")
    with pytest.raises(KernelError, match="not installed by tpunb"):
        remove_kernel("mine")
    assert tree(folder) == before


def test_a_folder_without_a_kernel_is_kept(jupyter: Path) -> None:
    folder = jupyter / "data" / "kernels" / "Notes"
    folder.mkdir()
    folder = folder.rename(folder.with_name("notes"))
    (folder / "notes.txt").write_text("mine")
    (folder.parent / "file").write_text("mine")
    (folder.parent / "link").symlink_to("nowhere")
    before = tree(jupyter)
    for name in ("notes", "file", "link"):
        with pytest.raises(KernelError, match="something else"):
            install_kernel("v3-8", name=name)
    assert tree(jupyter) == before


def test_a_link_to_a_kernel(jupyter: Path) -> None:
    folder = install_kernel("v3-8", name="one").folder
    link = folder.with_name("two")
    link.symlink_to("one")
    before = tree(folder)
    with pytest.raises(KernelError, match="something else"):
        install_kernel("v3-32", name="two")
    assert remove_kernel("two").folder == link
    assert not os.path.lexists(link)
    assert tree(folder) == before
