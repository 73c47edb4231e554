"""What users can name changes only on purpose, and the reference has all of it."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import public_api
import pytest

import tpunb

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

pytestmark = pytest.mark.tensorflow


def test_the_list_of_public_names_is_written_anew() -> None:
    """After a deliberate change, write it by the command, and tell users in CHANGELOG.md."""
    written = public_api.LIST.read_text(encoding="utf-8")
    assert public_api.public_api() == written, "cd tests && python -m public_api"


CORE = 198
"""The promised names of Python outside the wings. For each that comes, one leaves: CONTRIBUTING.md."""

_WINGS = re.compile(r"tpunb\.(tensorflow|jax|virtual|course|puzzles)\.")


def test_the_core_promises_no_more_names() -> None:
    section = public_api.public_api().partition("# Magics\n")[0].splitlines()[1:]
    names = [name for name in section if name and not _WINGS.match(name)]
    assert len(names) <= CORE


def directives(name: str) -> set[str]:
    """Return the names that the reference documents by a directive."""
    pages = [path.read_text(encoding="utf-8") for path in (DOCS / "api").glob("*.md")]
    pattern = rf"^\.\. {name}:: ([\w.]+)"
    return {found for page in pages for found in re.findall(pattern, page, re.MULTILINE)}


def test_the_reference_has_every_public_name() -> None:
    documented = set.union(
        *map(directives, ("autofunction", "autoclass", "autoexception", "data", "automodule"))
    )
    names = {*tpunb.__all__, *(f"tpunb.{module}" for module in tpunb._PUBLIC_MODULES)}
    assert names - {name.removeprefix("tpunb.") for name in documented} - documented == set()


def test_every_variable_is_documented() -> None:
    page = (DOCS / "magics.md").read_text(encoding="utf-8")
    assert {name for name in public_api.variables() if f"| `{name}` |" not in page} == set()


def test_experimental_names_are_public_names() -> None:
    page = (DOCS / "compatibility.md").read_text(encoding="utf-8")
    table = page.partition("## Experimental\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    names = {name.partition("(")[0] for row in rows for name in re.findall(r"`([^`]+)`", row)}
    listed = public_api.LIST.read_text(encoding="utf-8")
    assert {name for name in names if name not in listed} == set()


def test_every_public_name_has_help() -> None:
    without = [name for name in tpunb.__all__ if not inspect.getdoc(getattr(tpunb, name))]
    assert set(without) <= {"__version__", "history"}


def test_a_users_program_is_typed(tmp_path: Path) -> None:
    """`mypy --strict` accepts a small program, and finds its mistakes."""
    program = ROOT / "tests" / "support" / "typed_program.py"
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file="]
    command += [f"--cache-dir={tmp_path}", "--no-error-summary", str(program)]
    checked = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (checked.stdout, checked.returncode) == ("", 0)
