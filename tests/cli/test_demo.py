"""`tpunb demo`, with a small notebook instead of the quickstart, which `make test` runs by nbval."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import nbformat
import pytest
from support.notebooks import notebook, outputs

from tpunb import cli
from tpunb.cli import demo

pytestmark = pytest.mark.oldest


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    folder = tmp_path / "my work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def quickstart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A notebook that the demo takes for the quickstart; its packages are all there."""
    path = notebook(tmp_path / "small.ipynb", "import random, sys", "sys.executable")
    monkeypatch.setattr(demo, "_quickstart", lambda: path)
    return path


def test_the_checkout_has_the_quickstart() -> None:
    titles = nbformat.read(demo._quickstart(), as_version=4).cells[0].source
    assert titles.startswith("# TPUs in a notebook: quickstart")


def test_it_runs_in_any_folder(
    here: Path,
    quickstart: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also where a file hides a module, the file's name is taken, and `python3` is another one."""
    (here / "random.py").write_text("1 / 0")
    (here / "tpunb-quickstart.ipynb").write_text("mine")
    (here / "tpunb-quickstart-2.ipynb").symlink_to("nowhere")
    other = here.parent / "kernels" / "python3"
    other.mkdir(parents=True)
    spec = {"argv": [sys.executable, "-c", ""], "display_name": "Other", "language": "python"}
    (other / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(here.parent))
    before = set(here.iterdir())

    assert cli.main(["demo"]) == 0

    saved = here / "tpunb-quickstart-3.ipynb"
    assert outputs(saved)[1][0]["data"]["text/plain"] == repr(sys.executable)
    assert set(here.iterdir()) == {*before, saved}
    assert (here / "tpunb-quickstart.ipynb").read_text() == "mine"
    assert not any(outputs(quickstart))
    first, _, result, opening = capsys.readouterr().out.splitlines()
    assert first.startswith("[1/2] import random, sys ")
    assert result.endswith(f"saved as {saved}")
    assert opening.endswith(f'jupyter lab "{saved}"')


def test_no_file_is_replaced(
    here: Path, quickstart: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine.ipynb").write_text("mine")
    assert cli.main(["demo", "-o", "mine.ipynb"]) == 2
    assert (here / "mine.ipynb").read_text() == "mine"
    out, error = capsys.readouterr()
    assert out == ""
    assert error == "tpunb: mine.ipynb already exists.\nTry: Choose another file with -o.\n"


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (["nbclient", "ipykernel"], 'nbclient, ipykernel.\nTry: pip install "tpunb[demo]"\n'),
        (["sklearn"], 'scikit-learn.\nTry: pip install "tpunb[demo]"\n'),
        (["tensorflow"], 'tensorflow.\nTry: pip install "tpunb[cpu,demo]"\n'),
    ],
    ids=str,
)
def test_missing_packages(
    missing: list[str],
    said: str,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    assert cli.main(["demo"]) == 2
    assert capsys.readouterr().err == f"tpunb: The demo needs {said}"
    assert not list(here.iterdir())


def test_how_to_open_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jupyterlab", None)
    command = demo._command_to_open(Path("out.ipynb"))
    assert command == f'pip install jupyterlab, then jupyter lab "{here / "out.ipynb"}"'
