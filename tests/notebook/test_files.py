"""Broken notebook files, and notebooks that are saved even after failures and signals."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from counterparts.children import python_path
from support.patience import PATIENCE
from support.tiers import thorough

from tpunb import cli
from tpunb.cli.command import SignalArrived, StopSignals
from tpunb.notebook.files import NotebookError, read_notebook, write_notebook

pytest_plugins = ["pytester"]

MAIN = [sys.executable, "-c", "import sys; from tpunb.cli import main; sys.exit(main())"]
CELL = {"cell_type": "code", "source": "1", "metadata": {}, "outputs": [], "execution_count": None}


def saved(path: Path, *sources: str) -> Path:
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def raw(path: Path, cells: Any, **changes: Any) -> Path:
    content = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4, **changes}
    path.write_text(json.dumps(content))
    return path


FAULTS: list[tuple[str, Any, dict[str, Any]]] = [
    ("the source of cell 2 of 2", [CELL, {**CELL, "source": 5}], {}),
    ("the source of cell 1 of 1", [{**CELL, "source": ["a", 5]}], {}),
    ("the source of cell 1 of 1", [{"cell_type": "code"}], {}),
    ("the JSON object of cell 1 of 1", ["1"], {}),
    ("the JSON object of cell 1 of 1", [None], {}),
    ("the metadata of cell 1 of 1", [{**CELL, "metadata": []}], {}),
    ("the metadata of cell 1 of 1", [{"cell_type": "code", "source": "", "outputs": []}], {}),
    ("the metadata of cell 1 of 1", [{**CELL, "metadata": {"tags": 3}}], {}),
    ("the cell_type of cell 1 of 1", [{**CELL, "cell_type": "heading"}], {}),
    ("the cell_type of cell 1 of 1", [{**CELL, "cell_type": []}], {}),
    ("the list of outputs of cell 1 of 1", [{**CELL, "outputs": {"a": 1}}], {}),
    ("the list of outputs of cell 1 of 1", [{**CELL, "outputs": [1]}], {}),
    ("no list of cells", {"a": CELL}, {}),
    ("no list of cells", None, {}),
    ("its metadata", [CELL], {"metadata": 3}),
    ("its metadata", [CELL], {"metadata": None}),
    ("its kernelspec", [CELL], {"metadata": {"kernelspec": "python3"}}),
    ("its kernelspec", [CELL], {"metadata": {"kernelspec": {"name": 3}}}),
    ("its language_info", [CELL], {"metadata": {"language_info": []}}),
    ("is not a Jupyter notebook", [CELL], {"nbformat": "four"}),
    ("is not a Jupyter notebook", [{**CELL, "attachments": []}], {}),
]


@pytest.mark.parametrize(("fault", "cells", "changes"), FAULTS)
def test_malformed_notebooks_are_refused(
    fault: str,
    cells: Any,
    changes: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["run", str(raw(tmp_path / "bad.ipynb", cells, **changes))]) == 2
    assert fault in capsys.readouterr().err
    assert not (tmp_path / "bad.executed.ipynb").exists()


@pytest.mark.parametrize("text", ["", "3", "[]", "null", "hello", "[" * 100_000, "{}"])
def test_other_files_are_not_notebooks(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.ipynb"
    path.write_text(text)
    with pytest.raises(NotebookError, match=r"is not a (valid )?Jupyter notebook"):
        read_notebook(path)


def test_oddities_that_jupyter_accepts_are_read(tmp_path: Path) -> None:
    odd = {"cell_type": "code", "source": ["x = 1\n", "x"], "metadata": {}, "more": 1}
    (cell,) = read_notebook(raw(tmp_path / "odd.ipynb", [odd])).cells
    assert (cell.source, cell.outputs) == ("x = 1\nx", [])


def test_a_lone_surrogate_is_saved(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_raw_cell("a\ud800√")])
    write_notebook(notebook, tmp_path / "odd.ipynb")
    assert "√" in (tmp_path / "odd.ipynb").read_text(encoding="utf-8")
    assert read_notebook(tmp_path / "odd.ipynb").cells[0].source == "a\ud800√"


def test_pytest_reports_the_fault(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", python_path(Path(__file__).parents[2]))
    raw(pytester.path / "bad.ipynb", [{**CELL, "source": 5}])
    run = pytester.runpytest_subprocess("--nbval-lax", "--tpu", "v3-8", timeout=PATIENCE)
    output = run.stdout.str()
    assert "the source of cell 1 of 1" in output
    assert "AttributeError" not in output
    assert "Traceback" not in output
    assert run.ret == pytest.ExitCode.INTERRUPTED


# On a full disk


def small_files() -> None:
    """Limit the size of files that this process and its children can write."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))


def test_a_full_disk_leaves_the_notebook(tmp_path: Path) -> None:
    source = saved(tmp_path / "nb.ipynb", "print('long ' * 10_000)")
    before = source.read_bytes()
    run = subprocess.run(
        [*MAIN, "run", str(source), "-o", str(source)],
        preexec_fn=small_files,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={
            **os.environ,
            "IPYTHONDIR": str(tmp_path / "ipython"),
            # Before 3.12.8, Python keeps truncated .pyc files of the modules that it compiles here
            # (python/cpython#126606).
            "PYTHONDONTWRITEBYTECODE": "1",
        },
    )
    assert run.returncode == 2, run.stderr
    assert f"Cannot write {source}: File too large" in run.stderr
    assert "Traceback" not in run.stderr
    assert source.read_bytes() == before
    assert not list(tmp_path.glob(".tpunb-*"))


@pytest.mark.parametrize("output", ["folder", "file/out.ipynb", "file/more/out.ipynb"])
def test_an_output_that_cannot_be_written_is_reported_first(
    output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    source = saved(tmp_path / "nb.ipynb", "1")
    assert cli.main(["run", str(source), "-o", str(tmp_path / output)]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("tpunb: Cannot ")


def test_a_notebook_is_written_to_standard_output(tmp_path: Path) -> None:
    source = saved(tmp_path / "nb.ipynb", "40 + 2")
    run = subprocess.run(
        [*MAIN, "run", str(source), "-o", "/dev/stdout"], capture_output=True, timeout=PATIENCE
    )
    assert run.returncode == 0, run.stderr
    assert nbformat.reads(run.stdout.decode(), 4).cells[0].outputs[0].data["text/plain"] == "42"
    assert b"saved as /dev/stdout" in run.stderr


# Signals


def test_a_signal_waits_until_the_notebook_is_saved() -> None:
    saved_whole = []

    def save() -> None:
        with StopSignals() as signals, signals.held():
            signal.raise_signal(signal.SIGTERM)
            saved_whole.append(True)

    with pytest.raises(SignalArrived) as raised:
        save()
    assert saved_whole
    assert raised.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_only_an_interrupt_is_raised_twice() -> None:
    with StopSignals():
        with pytest.raises(SignalArrived):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(SignalArrived):
            signal.raise_signal(signal.SIGINT)


CHILD = """
import os, pathlib, subprocess, sys, time
print("so far", flush=True)
child = subprocess.Popen([sys.executable, "-c",
    "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(6000)"],
    stdout=subprocess.PIPE)
child.stdout.readline()
pathlib.Path({made!r}).write_text(f"{{os.getpid()}} {{child.pid}}")
os.replace({made!r}, {started!r})
try:
    time.sleep(6000)
except KeyboardInterrupt:
    print("to here")
"""


def wait_for(done: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    while not done() and process.poll() is None:
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGTERM, 143, "Terminated"), *thorough([(signal.SIGHUP, 129, "Hung up")])],
)
def test_a_signal_saves_the_executed_cells(
    number: signal.Signals, code: int, word: str, tmp_path: Path
) -> None:
    started = tmp_path / "begun"
    text = CHILD.format(made=str(tmp_path / "made"), started=str(started))
    source = saved(tmp_path / "slow.ipynb", "40 + 2", text, "3")
    process = subprocess.Popen([*MAIN, "run", str(source)], stderr=subprocess.PIPE, text=True)
    wait_for(started.exists, process)
    process.send_signal(number)
    _, error = process.communicate(timeout=PATIENCE)
    assert error.endswith(f"{word} in cell 2 of 3\n")
    assert "Traceback" not in error
    assert process.returncode == code
    assert not [pid for pid in started.read_text().split() if is_alive(int(pid))]
    first, second, third = nbformat.read(tmp_path / "slow.executed.ipynb", 4).cells
    assert first.outputs[0].data["text/plain"] == "42"
    assert "".join(output.text for output in second.outputs) == "so far\nto here\n"
    assert not third.outputs


def test_a_second_interrupt_ends_a_cell_that_ignores_the_first(tmp_path: Path) -> None:
    started, ignored = tmp_path / "begun", tmp_path / "ignored"
    ignore = f"lambda *_: pathlib.Path({str(ignored)!r}).touch()"
    text = (
        "import pathlib, signal, time\n"
        f"signal.signal(signal.SIGINT, {ignore})\n"
        f"pathlib.Path({str(started)!r}).touch()\n"
        "while True: time.sleep(0.1)"
    )
    source = saved(tmp_path / "deaf.ipynb", text)
    process = subprocess.Popen([*MAIN, "run", str(source)], stderr=subprocess.PIPE, text=True)
    for file in (started, ignored):
        wait_for(file.exists, process)
        process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=PATIENCE)
    assert error == "Interrupted in cell 1 of 1\n"
    assert process.returncode == 130


def test_a_kernel_that_does_not_answer_ends_too(tmp_path: Path) -> None:
    """A signal interrupts the kernel's start before nbclient's timeout does."""
    started = tmp_path / "begun"
    folder = tmp_path / "kernels" / "mute"
    folder.mkdir(parents=True)
    code = (
        f"import os, pathlib, time; pathlib.Path({str(tmp_path / 'made')!r}).write_text("
        f"str(os.getpid())); os.replace({str(tmp_path / 'made')!r}, {str(started)!r}); "
        "time.sleep(6000)"
    )
    spec = {"argv": [sys.executable, "-c", code], "display_name": "Mute", "language": "python"}
    (folder / "kernel.json").write_text(json.dumps(spec))
    source = saved(tmp_path / "nb.ipynb", "1")
    process = subprocess.Popen(
        [*MAIN, "run", str(source), "--kernel", "mute"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JUPYTER_PATH": str(tmp_path)},
    )
    wait_for(started.exists, process)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=PATIENCE)
    assert error.endswith("Terminated in the kernel's start\n")
    assert process.returncode == 143
    assert not is_alive(int(started.read_text()))
