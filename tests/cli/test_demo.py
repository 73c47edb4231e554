"""`tpunb demo`, with a small notebook instead of the quickstart, which nbval tests."""

from __future__ import annotations

import importlib.machinery
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from support.notebooks import notebook, outputs

from tpunb import cli
from tpunb.cli import demo
from tpunb.compiler.ask import libtpu

pytestmark = pytest.mark.oldest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    folder = tmp_path / "my work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def quickstart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A notebook that replaces the quickstart; all its packages are installed."""
    path = notebook(tmp_path / "small.ipynb", "import random, sys", "sys.executable")
    monkeypatch.setattr(demo.examples, "path", lambda _: path)
    return path


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that makes these frameworks the installed ones."""

    def installed(*frameworks: str) -> None:
        for name in ("jax", "tensorflow", "keras"):
            module = types.ModuleType(name)
            module.__spec__ = importlib.machinery.ModuleSpec(name, None)
            is_there = name in frameworks or (name == "keras" and "tensorflow" in frameworks)
            monkeypatch.setitem(sys.modules, name, module if is_there else None)

    return installed


JAX, TENSORFLOW = "jax_quickstart.ipynb", "quickstart.ipynb"


@pytest.mark.parametrize(
    ("frameworks", "options", "notebook_name", "next_step"),
    [
        (["jax"], [], JAX, "%tpu_connect --simulate v5e-8 --framework jax"),
        (["tensorflow"], [], TENSORFLOW, "%tpu_connect --simulate v5e-8"),
        (["jax", "tensorflow"], [], TENSORFLOW, "%tpu_connect --simulate v5e-8"),
        (["jax", "tensorflow"], ["--framework", "jax"], JAX, "--dry train.py"),
    ],
    ids=str,
)
def test_the_framework_that_is_installed_decides(
    frameworks: list[str],
    options: list[str],
    notebook_name: str,
    next_step: str,
    install: Callable[..., None],
    folder: Path,
    quickstart: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install(*frameworks)
    asked: list[str] = []
    monkeypatch.setattr(demo.examples, "path", lambda name: asked.append(name) or quickstart)
    assert cli.main(["demo", *options]) == 0
    assert asked == [notebook_name]
    assert next_step in capsys.readouterr().out.partition("jupyter lab")[2]


def test_without_a_framework_the_demo_names_both(
    install: Callable[..., None], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install()
    assert cli.main(["demo"]) == 2
    error = capsys.readouterr().err
    assert 'pip install "tpunb[jax]"' in error
    assert 'pip install "tpunb[cpu,demo]"' in error


def test_what_a_cell_displays_is_printed_below_it(
    folder: Path, quickstart: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = {"text/plain": "step fits a v5e-8\n\nmore", "text/html": "<p>step fits</p>"}
    show = f"from IPython.display import display\ndisplay({verdict}, raw=True)\n'plain text'"
    notebook(quickstart, show, "print('printed')")
    assert cli.main(["demo"]) == 0
    first, shown, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("[1/2] from IPython")
    assert shown.strip() == "step fits a v5e-8"
    assert second.startswith("[2/2] print")


def test_the_demo_runs_in_any_folder(
    folder: Path,
    quickstart: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A file may hide a module, the notebook's name may be taken, and `python3` may differ."""
    (folder / "random.py").write_text("1 / 0")
    (folder / "tpunb-quickstart.ipynb").write_text("mine")
    (folder / "tpunb-quickstart-2.ipynb").symlink_to("nowhere")
    other = folder.parent / "kernels" / "python3"
    other.mkdir(parents=True)
    spec = {"argv": [sys.executable, "-c", ""], "display_name": "Other", "language": "python"}
    (other / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(folder.parent))
    before = set(folder.iterdir())

    assert cli.main(["demo"]) == 0

    saved = folder / "tpunb-quickstart-3.ipynb"
    assert outputs(saved)[1][0]["data"]["text/plain"] == repr(sys.executable)
    assert set(folder.iterdir()) == {*before, saved}
    assert (folder / "tpunb-quickstart.ipynb").read_text() == "mine"
    assert not any(outputs(quickstart))
    first, _, result, opening, _ = capsys.readouterr().out.splitlines()
    assert first.startswith("[1/2] import random, sys ")
    assert result.endswith(f"saved as {saved}")
    assert opening.endswith(f'jupyter lab "{saved}"')


def test_no_file_is_replaced(
    folder: Path, quickstart: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "mine.ipynb").write_text("mine")
    assert cli.main(["demo", "-o", "mine.ipynb"]) == 2
    assert (folder / "mine.ipynb").read_text() == "mine"
    out, error = capsys.readouterr()
    assert out == ""
    assert error == "tpunb: mine.ipynb already exists.\nTry: Choose another file with -o.\n"


def test_without_the_compiler_its_cell_is_left_out(
    folder: Path,
    quickstart: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    notebook(quickstart, "2 + 3", "%%tpu_compile --for v5e-8\nx + 1")
    read = nbformat.read(quickstart, as_version=4)
    read.cells[-1].metadata["tags"] = ["needs-compiler"]
    nbformat.write(read, quickstart)
    monkeypatch.setenv(libtpu.PYTHON, "/nowhere/python")
    assert cli.main(["demo"]) == 0
    ran, left_out = outputs(folder / "tpunb-quickstart.ipynb")
    assert ran[0]["data"]["text/plain"] == "5"
    assert [each["output_type"] for each in left_out] == ["stream"]
    assert "/nowhere/python" in left_out[0]["text"]
    assert "/nowhere/python" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        (["nbclient", "ipykernel"], 'nbclient, ipykernel.\nTry: pip install "tpunb[demo]"\n'),
        (["sklearn"], 'scikit-learn.\nTry: pip install "tpunb[demo]"\n'),
        (["keras"], 'keras.\nTry: pip install "tpunb[cpu,demo]"\n'),
    ],
    ids=str,
)
def test_missing_packages(
    missing: list[str],
    message: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    assert cli.main(["demo"]) == 2
    assert capsys.readouterr().err == f"tpunb: The demo needs {message}"
    assert not list(folder.iterdir())


def test_how_to_open_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jupyterlab", None)
    command = demo._command_to_open(Path("out.ipynb"))
    assert command == f'pip install jupyterlab, then jupyter lab "{folder / "out.ipynb"}"'
