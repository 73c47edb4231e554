"""The command line, on notebooks that do not need TensorFlow."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tpunb import cli


def notebook(path: Path, *sources: str) -> Path:
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    cells.insert(0, nbformat.v4.new_markdown_cell("# A title"))
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def outputs(path: Path) -> list[list[Any]]:
    read = nbformat.read(path, as_version=4)
    return [cell.outputs for cell in read.cells if cell.cell_type == "code"]


def test_a_notebook_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = notebook(tmp_path / "two.ipynb", "# The first\nx = 20", "", "x + 1")
    target = tmp_path / "new" / "out.ipynb"
    assert cli.main(["run", str(source), "-o", str(target)]) == 0
    shown = outputs(target)
    assert shown[2][0]["data"]["text/plain"] == "21"
    assert all(not cell_outputs for cell_outputs in outputs(source))
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.startswith("[1/2] # The first ")
    assert second.startswith("[2/2] x + 1 ")
    assert second.endswith(" s")
    assert last.startswith("2 cells in ")
    assert last.endswith(f"saved as {target}")


def test_a_failing_cell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = notebook(tmp_path / "bad.ipynb", "1", "raise ValueError('so\\n' * 9)", "3")
    assert cli.main(["run", str(source), "--timeout", "60"]) == 1
    shown = outputs(tmp_path / "bad.executed.ipynb")
    assert shown[0][0]["data"]["text/plain"] == "1"
    assert shown[1][0]["ename"] == "ValueError"
    assert not shown[2]
    error = capsys.readouterr().err
    assert error.startswith("Cell 2 of 3 failed: ValueError: so\n")
    assert error.endswith("so\n...\n")


def test_a_slow_cell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = notebook(tmp_path / "slow.ipynb", "import time; time.sleep(60)")
    assert cli.main(["run", str(source), "--timeout", "1"]) == 1
    assert capsys.readouterr().err == "Cell 1 of 1 failed: it took longer than 1 s\n"


def test_an_interrupt(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    text = f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\ntime.sleep(60)"
    source = notebook(tmp_path / "slow.ipynb", "1", text)
    code = "import sys; from tpunb.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "run", str(source)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not begun.exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    # The kernel may have its say before: it is interrupted, too.
    assert "Traceback" not in error.rpartition("Cell 2 of 2 failed: ")[2]
    assert "Cell 2 of 2 failed: " in error
    assert process.returncode == 1
    assert outputs(tmp_path / "slow.executed.ipynb")[0][0]["data"]["text/plain"] == "1"


class Terminal:
    """A stream that says it is a terminal."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        """Nothing is held back."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_what_runs() -> None:
    terminal: Any = Terminal()
    cells = [nbformat.v4.new_code_cell(f"x = {i}  # {'long ' * 20}") for i in range(12)]
    progress = cli._Progress(cells, terminal)
    progress.start(cells[1], 1)
    label = f"[ 2/12] x = 1  # {'long ' * 20}"[:65] + "..."
    assert terminal.text == f"{label}     ..."
    progress.finish(cells[1], 1, {})
    assert terminal.text.startswith(f"{label}     ...\r\x1b[K{label}    0.0 s")
    progress.start(cells[2], 2)
    assert progress.failure("interrupted") == "Cell 3 of 12 failed: interrupted"
    assert terminal.text.endswith("...\n")


def test_what_is_no_notebook(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.ipynb"
    text.write_text("hello")
    assert cli.main(["run", str(text)]) == 2
    assert "is not a Jupyter notebook" in capsys.readouterr().err
    assert cli.main(["run", str(tmp_path / "none.ipynb")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_an_unknown_kernel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = notebook(tmp_path / "one.ipynb", "1")
    assert cli.main(["run", str(source), "--kernel", "nothing"]) == 2
    assert "no Jupyter kernel named 'nothing'" in capsys.readouterr().err


def test_missing_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "nbclient", None)
    assert cli.main(["run", str(notebook(tmp_path / "one.ipynb", "1"))]) == 2
    error = capsys.readouterr().err
    assert "needs nbclient." in error
    assert 'pip install "tpunb[run]"' in error


def test_topology(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["topology", "v3-8"]) == 0
    assert capsys.readouterr().out.startswith("v3-8 · ")
    assert cli.main(["topology", "v3-9"]) == 2
    assert "v3-8" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["walk"], ["run"], ["run", "x", "--timeout", "-1"]])
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(arguments)
    assert exit_.value.code == 2
    assert "usage: tpunb" in capsys.readouterr().err


@pytest.mark.parametrize("command", [[], ["run"], ["topology"]])
def test_help(command: list[str]) -> None:
    program = Path(sys.executable).with_name("tpunb")
    if not program.exists():
        pytest.skip("the console script is not installed beside this Python")
    shown = subprocess.run(
        [program, *command, "--help"], capture_output=True, check=True, text=True
    )
    assert "exit codes: 0 done" in " ".join(shown.stdout.split())
