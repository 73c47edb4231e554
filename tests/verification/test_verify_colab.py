"""`notebooks/verify_colab.py`, which volunteers run on Colab, with stand-ins for what it runs."""

from __future__ import annotations

import runpy
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tpunb import cli

SCRIPT = Path(__file__).parents[2] / "notebooks" / "verify_colab.py"


class Commands(list[list[str]]):
    """The commands of the script, of which `tpunb verify` ends with a code."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code

    def run(self, command: list[str], **_: Any) -> SimpleNamespace:
        self.append(command[2:])
        is_verify = command[2:4] == ["tpunb", "verify"]
        if is_verify and self.code < 2:
            Path(command[command.index("--issue") + 1]).write_text("All claims held.")
        return SimpleNamespace(returncode=self.code if is_verify else 0, stdout="", stderr="no TPU")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("code", [0, 1])
def test_it_prints_the_issue(
    code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = Commands(code)
    monkeypatch.setattr(subprocess, "run", commands.run)
    runpy.run_path(str(SCRIPT))
    assert capsys.readouterr().out == "All claims held.\n"
    install, compiler, verify = commands
    assert install[:2] == ["pip", "install"]
    assert compiler == ["tpunb", "compiler", "install"]
    options = cli.parser_of_commands().parse_args(verify[1:])
    assert (options.tpu, options.framework, options.quiet) == ("local", "jax", True)


def test_it_says_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", Commands(2).run)
    with pytest.raises(SystemExit, match=r"tpunb verify .* failed:\nno TPU"):
        runpy.run_path(str(SCRIPT))
