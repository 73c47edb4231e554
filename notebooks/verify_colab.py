"""Compare a TPU of Colab with tpunb's claims, from a shell. docs/verify.md has the commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ISSUE = Path("tpunb-verify.md")
VERIFY = ("verify", "local", "--framework", "jax", "--quiet", "--json", "tpunb-verify.json")
DIFFERS = 1
"""The exit code of `tpunb verify` if a claim differs, which is a result."""


def run(module: str, *arguments: str, good: tuple[int, ...] = (0,)) -> None:
    """Run a Python module, and end with what it printed if it fails."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in good:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


run("pip", "install", "-q", "tpunb @ git+https://github.com/tpunb/tpunb")
run("tpunb", "compiler", "install")
run("tpunb", *VERIFY, "--issue", str(ISSUE), good=(0, DIFFERS))
print(ISSUE.read_text(encoding="utf-8"))
