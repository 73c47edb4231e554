"""The command line's output on any stream, and for text from any source."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from counterparts.children import python_path
from support.notebooks import notebook, outputs
from support.patience import PATIENCE
from support.tiers import thorough

from tpunb import cli
from tpunb._util.plain_text import drawable, plain
from tpunb.cli.command import OutputError, ReaderGone, Stream

ROOT = Path(__file__).parents[2]
MAIN = [sys.executable, "-m", "tpunb"]
COMMANDS: list[list[str]] = [
    ["--help"],
    ["--version"],
    ["topology", "v3-32"],
    ["doctor"],
    ["doctor", "--json"],
    ["explain", "--all"],
    ["explain", "TPU is already in use by process with pid 1"],
    ["kernel", "list"],
    ["kernel", "install", "v3-8", "--prefix"],
    ["run", "--help"],
]

OWN = (
    ["--help"],
    ["topology", "v3-32"],
    ["doctor", "--json"],
    ["explain", "--all"],
    ["kernel", "list"],
)
"""A command for each kind of output: argparse's, a drawing, JSON, a page of text, and a table."""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    folders = {
        name: str(tmp_path / name.lower())
        for name in ("JUPYTER_DATA_DIR", "JUPYTER_PATH", "IPYTHONDIR", "HOME")
    }
    return {**os.environ, **folders, "PYTHONPATH": python_path(ROOT)}


def completed(command: list[str], tmp_path: Path) -> list[str]:
    return [*MAIN, *command, *([str(tmp_path)] if command[-1] == "--prefix" else [])]


@pytest.mark.parametrize(
    ("command", "encoding"),
    [
        *((command, "ascii") for command in COMMANDS),
        *thorough([(["topology", "v3-32"], "latin-1")]),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_terminals_with_few_characters(
    command: list[str], encoding: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    run = subprocess.run(
        completed(command, tmp_path),
        capture_output=True,
        timeout=PATIENCE,
        env={**environment, "PYTHONIOENCODING": encoding},
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.decode(encoding) or command == ["kernel", "list"]
    assert b"Traceback" not in run.stderr
    assert b"\\u" not in run.stdout.replace(b"\\ud", b"")


def run_without_reader(command: list[str], reader: str, environment: dict[str, str]) -> Any:
    """Run a command that writes to a full disk, or to a pipe without a reader."""
    if reader == "full":
        write = os.open("/dev/full", os.O_WRONLY)
    else:
        read, write = os.pipe()
        os.close(read)
    try:
        return subprocess.run(
            command,
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE,
            env=environment,
        )
    finally:
        os.close(write)


@pytest.mark.parametrize(("reader", "code"), [("full", 2), ("gone", 141)])
@pytest.mark.parametrize("command", OWN, ids=" ".join)
def test_an_output_that_accepts_nothing(
    command: list[str], reader: str, code: int, tmp_path: Path, environment: dict[str, str]
) -> None:
    run = run_without_reader(completed(command, tmp_path), reader, environment)
    if command == ["kernel", "list"]:  # no kernels are listed, and the message is on standard error
        assert run.returncode == 0
        return
    assert run.returncode == code, run.stderr
    full = "tpunb: Cannot write the output: No space left on device." in run.stderr
    assert full is (reader == "full")
    for words in ("Traceback", "Exception ignored", "BrokenPipe"):
        assert words not in run.stderr


@pytest.mark.parametrize(("reader", "code"), [("gone", 0), *thorough([("full", 2)])])
def test_a_notebook_is_executed_without_a_reader(
    reader: str, code: int, tmp_path: Path, environment: dict[str, str]
) -> None:
    source = notebook(tmp_path / "nb.ipynb", "1", "2", "40 + 2")
    run = run_without_reader([*MAIN, "run", str(source)], reader, environment)
    assert run.returncode == code, run.stderr
    assert ("Cannot write the output" in run.stderr) == (code == 2)
    assert "Traceback" not in run.stderr
    assert outputs(tmp_path / "nb.executed.ipynb")[2][0]["data"]["text/plain"] == "42"


EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eabc"


def test_control_characters_are_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "evil\x1b[2J"
    folder.mkdir()
    source = notebook(folder / "nb.ipynb", f"# {EVIL}\nraise ValueError({EVIL!r})")
    monkeypatch.setenv("TPU_NAME", "grpc://x\x1b[2J")
    assert cli.main(["run", str(source)]) == 1
    assert cli.main(["topology", f"v3{EVIL}"]) == 2
    assert cli.main(["explain", f"TPU is already in use by process with pid 1 {EVIL}"]) == 0
    cli.main(["doctor"])
    out, error = capsys.readouterr()
    for text in (out, error):
        assert not set(text) & set("\x1b\x07\x9b\u202e\r")
    assert "\\x1b[2J" in out
    assert "\\x1b]0;owned\\x07" in error


def test_plain() -> None:
    assert plain("a\tb\nc · é √ \U0001f600") == "a\tb\nc · é √ \U0001f600"
    assert plain("\x00\r\x1b\x7f\x85\u2066") == "\\x00\\x0d\\x1b\\x7f\\x85\\u2066"


def test_drawable() -> None:
    box = "┌─ z · 2×2 ─┐"
    assert drawable(box, "utf-8") == box
    assert drawable(box, "latin-1") == "+- z · 2×2 -+"
    assert drawable(box, "ascii") == "+- z - 2x2 -+"
    assert drawable("λ", "ascii") == "\\u03bb"


class Broken(io.StringIO):
    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error

    def write(self, text: str) -> int:
        raise self.error


@pytest.mark.parametrize(
    ("error", "kind"), [(BrokenPipeError(32, "x"), ReaderGone), (OSError(28, "y"), OutputError)]
)
def test_a_broken_stream(error: OSError, kind: type[Any]) -> None:
    with pytest.raises(kind):
        print("x", file=Stream(Broken(error)))


def test_json_stays_json(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["doctor", "--json"])
    json.loads(capsys.readouterr().out)
