"""The command line, on notebooks that do not need TensorFlow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from counterparts.children import python_path
from support.notebooks import notebook, outputs
from support.patience import PATIENCE, wait_until

import tpunb
from tpunb import cli
from tpunb.cli.progress import Progress, explained
from tpunb.errors import TpunbError

pytestmark = [pytest.mark.oldest, pytest.mark.slow]


def test_a_notebook_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = notebook(tmp_path / "two.ipynb", "# The first\nx = 20", "", "x + 1")
    target = tmp_path / "new" / "out.ipynb"
    assert cli.main(["run", str(source), "-o", str(target)]) == 0
    cells = outputs(target)
    assert cells[2][0]["data"]["text/plain"] == "21"
    assert all(not cell_outputs for cell_outputs in outputs(source))
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.startswith("[1/2] # The first ")
    assert second.startswith("[2/2] x + 1 ")
    assert second.endswith(" s")
    assert last.startswith("2 cells in ")
    assert last.endswith(f"saved as {target}")


def test_text_that_is_sent_piece_by_piece_is_one_output(tmp_path: Path) -> None:
    code = (
        "import sys\nfor n in range(3):\n    print(n, flush=True)\nprint('x', file=sys.stderr)\nn"
    )
    source = notebook(tmp_path / "text.ipynb", code)
    assert cli.main(["run", "-q", str(source)]) == 0
    (cell,) = outputs(tmp_path / "text.executed.ipynb")
    assert [each["output_type"] for each in cell] == ["stream", "stream", "execute_result"]
    assert cell[0]["text"] == "0\n1\n2\n"


def test_a_failing_cell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = notebook(tmp_path / "bad.ipynb", "1", "raise ValueError('so\\n' * 9)", "3")
    assert cli.main(["run", str(source), "--timeout", "240"]) == 1
    cells = outputs(tmp_path / "bad.executed.ipynb")
    assert cells[0][0]["data"]["text/plain"] == "1"
    assert cells[1][0]["ename"] == "ValueError"
    assert not cells[2]
    error = capsys.readouterr().err
    assert error == "Cell 2 of 3 failed: ValueError: so\nso\n...\nso\nso\n"


def test_an_error_of_a_cell_on_replicas_shows_the_cells_lines() -> None:
    shown = ["In the cell, line 3:", "", "        2 x = 1", "---->   3 y", "", "TypeError: no"]
    text = explained("TypeError", "in user code:\n\n    File ...\n\n    TypeError: no", shown)
    assert text.splitlines() == [line for line in shown if line]
    shown[-1] = "InvalidArgumentError: The replicas disagree about a condition around a "
    shown[-1] += "cross-replica operation."
    text = explained("InvalidArgumentError", shown[-1].partition(": ")[2], shown)
    assert text.count("Known error 73") == 1


def test_keeping_going(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = notebook(
        tmp_path / "bad.ipynb",
        "1",
        "raise RuntimeError('TPU is already in use by process with pid 1234')",
        "# raises-exception is a tag of cells that shall fail\n1 / 0",
        "import time; time.sleep(6000)",
        "5",
    )
    read = nbformat.read(source, as_version=4)
    read.cells[3].metadata.tags = ["raises-exception"]
    nbformat.write(read, source)
    assert cli.main(["run", str(source), "--keep-going", "--timeout", "2"]) == 1
    cells = outputs(tmp_path / "bad.executed.ipynb")
    assert cells[1][0]["ename"] == "RuntimeError"
    assert cells[4][0]["data"]["text/plain"] == "5"
    out, error = capsys.readouterr()
    lines = out.splitlines()
    assert [line.partition(" s")[2].strip() for line in lines[:2]] == ["", "RuntimeError"]
    assert lines[-1] == f"5 cells, 2 failed: 2, 4; saved as {tmp_path / 'bad.executed.ipynb'}"
    first, second = error.split("\n\n")
    assert first.startswith("Cell 2 of 5 failed: RuntimeError: TPU is already in use")
    assert len(first.splitlines()) > 1, "an unknown error has no explanation"
    assert second == "Cell 4 of 5 failed: it took longer than 2 s\n"


def test_quiet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = notebook(tmp_path / "two.ipynb", "1")
    assert cli.main(["run", "-q", str(source)]) == 0
    assert capsys.readouterr() == ("", "")
    assert outputs(tmp_path / "two.executed.ipynb")[0]


def test_a_virtual_tpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The option has priority over the environment.
    monkeypatch.setenv("TPUNB_TPU", "v5e-1")
    monkeypatch.setenv("PYTHONPATH", python_path(Path(__file__).parents[2]))
    source = notebook(tmp_path / "one.ipynb", "import os\nos.environ['TPUNB_TPU']")
    assert cli.main(["run", str(source), "--tpu", "v3-8"]) == 0, capsys.readouterr().err
    assert outputs(tmp_path / "one.executed.ipynb")[0][0]["data"]["text/plain"] == "'v3-8'"
    executed = nbformat.read(tmp_path / "one.executed.ipynb", as_version=4)
    assert "kernelspec" not in executed.metadata


def test_a_virtual_tpu_that_does_not_exist(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = notebook(tmp_path / "one.ipynb", "1")
    assert cli.main(["run", str(source), "--tpu", "v3-9"]) == 2
    assert "Did you mean v3-8" in capsys.readouterr().err
    assert not (tmp_path / "one.executed.ipynb").exists()


@pytest.mark.parametrize("option", [["--framework", "jax"], ["--judge", "off"]])
def test_options_of_a_virtual_tpu_need_its_type(
    option: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = notebook(tmp_path / "one.ipynb", "1")
    assert cli.main(["run", str(source), *option]) == 2
    assert "Add --tpu v5e-8" in capsys.readouterr().err


VARIABLE = "import os\nos.environ.get('TPUNB_FRAMEWORK')"


@pytest.mark.parametrize(
    ("source", "options", "variable", "framework"),
    [
        ("if 0: import jax", [], "", "jax"),
        ("if 0: import tensorflow", [], "", "tensorflow"),
        ("if 0: import jax", ["--framework", "tensorflow"], "jax", "tensorflow"),
        ("if 0: import jax", [], "tensorflow", "tensorflow"),
    ],
)
def test_the_framework_of_a_virtual_tpu(
    source: str,
    options: list[str],
    variable: str,
    framework: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The notebook's imports choose it, unless the user does."""
    monkeypatch.setenv("TPUNB_FRAMEWORK", variable)
    monkeypatch.setenv("PYTHONPATH", python_path(Path(__file__).parents[2]))
    path = notebook(tmp_path / "one.ipynb", source, VARIABLE)
    assert cli.main(["run", str(path), "--tpu", "v5e-8", *options]) == 0, capsys.readouterr().err
    last = outputs(tmp_path / "one.executed.ipynb")[-1]
    assert last[0]["data"]["text/plain"] == repr(framework)


def test_a_kernel_that_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "kernels" / "broken"
    folder.mkdir(parents=True)
    spec = {"argv": [sys.executable, "-c", ""], "display_name": "Broken", "language": "python"}
    (folder / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    source = notebook(tmp_path / "one.ipynb", "1")
    assert cli.main(["run", str(source), "--kernel", "broken"]) == 2
    assert "The kernel does not start" in capsys.readouterr().err


def test_a_kernel_that_dies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = notebook(tmp_path / "dies.ipynb", "1", "import os; os._exit(1)", "3")
    assert cli.main(["run", "--keep-going", str(source)]) == 1
    out, error = capsys.readouterr()
    assert error.startswith("Cell 2 of 3 failed: the kernel died")
    assert out.splitlines()[-1].startswith("2 of 3 cells, 1 failed: 2; saved as ")


def test_a_slow_cell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = notebook(tmp_path / "slow.ipynb", "import time; time.sleep(6000)")
    assert cli.main(["run", str(source), "--timeout", "1"]) == 1
    assert capsys.readouterr().err == "Cell 1 of 1 failed: it took longer than 1 s\n"


@pytest.mark.parametrize("options", [[], ["--keep-going"]])
def test_an_interrupt(options: list[str], tmp_path: Path) -> None:
    started = tmp_path / "begun"
    temporary = started.with_name("made")
    text = f"""
import os, pathlib, time
pathlib.Path({str(temporary)!r}).write_text(str(os.getpid()))
os.replace({str(temporary)!r}, {str(started)!r})
time.sleep(6000)"""
    source = notebook(tmp_path / "slow.ipynb", "1", text)
    code = "import sys; from tpunb.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "run", str(source), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: started.exists() or process.poll() is not None)
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    # The kernel, which is interrupted too, may write before this line.
    assert error.endswith("Interrupted in cell 2 of 2\n")
    assert "Traceback" not in error
    assert process.returncode == 130
    with pytest.raises(ProcessLookupError):  # the kernel has ended, too
        os.kill(int(started.read_text()), 0)
    assert outputs(tmp_path / "slow.executed.ipynb")[0][0]["data"]["text/plain"] == "1"


class Terminal:
    """A stream that claims to be a terminal."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        """Do nothing: the stream has no buffer."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_the_running_cell() -> None:
    terminal: Any = Terminal()
    cells = [nbformat.v4.new_code_cell(f"x = {i}  # {'long ' * 20}") for i in range(12)]
    progress = Progress(cells, terminal)
    progress.start(cells[1], 1)
    label = f"[ 2/12] x = 1  # {'long ' * 20}"[:65] + "..."
    assert terminal.text == f"{label}     ..."
    progress.finish(cells[1], 1, {})
    assert terminal.text.startswith(f"{label}     ...\r\x1b[K{label}    0.0 s")
    progress.start(cells[2], 2)
    assert progress.where() == "cell 3 of 12"
    assert terminal.text.endswith("...\n")
    assert progress.summary() == "3 of 12 cells"


def test_a_file_that_is_not_a_notebook(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


@pytest.fixture
def jupyter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("JUPYTER_PATH", "")
    return tmp_path


def test_kernels(jupyter: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def tpunb_kernel(*arguments: str, code: int = 0) -> tuple[str, str]:
        assert cli.main(["kernel", *arguments]) == code
        captured = capsys.readouterr()
        return captured.out, captured.err

    assert "tpunb kernel install" in tpunb_kernel("list")[1]
    assert tpunb_kernel("install", "v5e-8")[0].startswith("Installed the kernel tpunb-v5e-8 ")
    assert tpunb_kernel("install", "v5e-8", "--user")[0].startswith(
        "Replaced the kernel tpunb-v5e-8 "
    )
    assert tpunb_kernel("install", "v3-32", "--name", "pod")[1] == ""
    folder = jupyter / "data" / "kernels"
    assert tpunb_kernel("list")[0].splitlines() == [
        f"pod          v3-32  {folder / 'pod'}",
        f"tpunb-v5e-8  v5e-8  {folder / 'tpunb-v5e-8'}",
    ]
    elsewhere = jupyter / "environment"
    out, error = tpunb_kernel("install", "v3-8", "--prefix", str(elsewhere))
    assert str(elsewhere / "share" / "jupyter" / "kernels" / "tpunb-v3-8") in out
    assert f"JUPYTER_PATH={elsewhere / 'share' / 'jupyter'}" in error
    assert tpunb_kernel("remove", "pod", "tpunb-v5e-8")[0].count("Removed") == 2
    assert "no kernel 'pod'" in tpunb_kernel("remove", "pod", code=2)[1]
    assert "v5e-8" in tpunb_kernel("install", "v5-8", code=2)[1]
    assert (
        "'a b' is not a valid name" in tpunb_kernel("install", "v5e-8", "--name", "a b", code=2)[1]
    )


def test_an_interrupt_at_any_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(tpu: str) -> Callable[..., Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr("tpunb.tpu.types.accelerator", interrupt)
    assert cli.main(["topology"]) == 130
    assert capsys.readouterr().err == "Interrupted\n"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out == f"tpunb {tpunb.__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["walk"],
        ["run"],
        ["run", "x", "--timeout", "-1"],
        ["run", "x", "--tpu", "v3-8", "--kernel", "python3"],
        ["kernel"],
        ["kernel", "install"],
        ["kernel", "install", "v3-8", "--user", "--sys-prefix"],
        ["kernel", "remove"],
    ],
)
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(arguments)
    assert exit_.value.code == 2
    assert "usage: tpunb" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["demo"],
        ["run"],
        ["doctor"],
        ["topology"],
        ["explain"],
        ["kernel"],
        ["kernel", "install"],
        ["kernel", "list"],
        ["kernel", "remove"],
        ["compiler"],
        ["compiler", "install"],
        ["compiler", "status"],
        ["compiler", "remove"],
    ],
    ids=" ".join,
)
def test_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main([*command, "--help"])
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    assert f"usage: {' '.join(['tpunb', *command])}" in text
    # The help has an example of this command that can be copied.
    assert f"\n  {' '.join(['tpunb', *command])}" in text.partition("example")[2]


def test_the_console_script() -> None:
    program = Path(sys.executable).with_name("tpunb")
    if not program.exists():
        pytest.skip("the console script is not installed beside this Python")
    process = subprocess.run([program, "--help"], capture_output=True, check=True, text=True)
    assert "exit codes: 0 success" in process.stdout


@pytest.mark.parametrize("arguments", [["explain", "4"], ["demo"]])
def test_commands_for_a_terminal_have_no_magic(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`%pip` is a command of notebooks only."""

    def fail(*_: object) -> None:
        raise TpunbError("JAX is missing.", fix="Run %pip install jax.")

    monkeypatch.setattr(cli.demo, "_require_packages", fail)
    cli.main(arguments)
    shown = "".join(capsys.readouterr())
    assert "pip install" in shown
    assert "%pip" not in shown
