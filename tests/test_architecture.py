"""The rules of the house that the imports keep: one direction, and who may import what."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "tpunb"

STREAM = (
    {"bounded", "catalogue", "chips", "errors", "masking", "series", "version"},
    {"metadata", "place"},
    {"slices"},
    {"accelerators", "assignment", "diagnosis", "environment", "failures", "interrupts", "quiet"},
    {"describe", "machine"},
    {"draw", "virtual"},
    {"checking", "cloud", "histories", "processes", "reaching", "worker"},
    {"joining", "request"},
    # Cells know a strategy, not how it was connected to: a connection can run them.
    {"cells", "checkup", "hardware", "pods", "widgets"},
    {"connection"},
    {"connecting", "displays", "explaining", "keras", "progress", "reports", "saved_outputs"},
    {"run_options", "session"},
    {"kernels"},
    {"cli", "completion", "kernel_launcher", "magics", "pytest_plugin"},
    {"__main__", "extension"},
    {"__init__"},
)
"""Rooms from the spring down: each may import from those above it."""

TENSORFLOW = {
    "assignment",
    "checking",
    "quiet",
    "virtual",
    "cells",
    "hardware",
    "joining",
    "pods",
    "worker",
    "connection",
    "keras",
}
IPYTHON = {"completion", "magics", "run_options"}
PRIVATE = "virtual._tensorflow"

MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def room(module: str) -> str:
    """The module or subpackage directly under the package."""
    return module.partition(".")[0]


def level(name: str) -> int:
    for number, rooms in enumerate(STREAM):
        if name in rooms:
            return number
    raise AssertionError(f"tpunb.{name} has no place in the stream: give it one in {__file__}")


def executed(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those for type checkers only."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from executed(node)


def imports(module: str) -> Iterator[tuple[int, str]]:
    """The line and the full name of what a module imports, also inside functions."""
    path = MODULES[module]
    package = ["tpunb", *module.split(".")][:-1]
    for node in executed(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{source}.{alias.name}"


def own(name: str) -> str | None:
    """The room that an imported name of ours lies in."""
    top, *rest = name.split(".")
    if top != "tpunb":
        return None
    places = {room(module) for module in MODULES}
    return rest[0] if rest and rest[0] in places else "__init__"


def is_of(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_one_way(module: str) -> None:
    here = room(module)
    against = [
        f"line {line} imports {name}"
        for line, name in imports(module)
        if (there := own(name)) is not None and there != here and level(there) >= level(here)
    ]
    assert not against, f"tpunb/{module}: {against}"


@pytest.mark.parametrize("module", MODULES)
def test_who_imports_tensorflow(module: str) -> None:
    for line, name in imports(module):
        where = f"tpunb/{module}, line {line}: {name}"
        if is_of(name, "tensorflow"):
            assert room(module) in TENSORFLOW, where
        if is_of(name, "tensorflow.python") or is_of(name, "tensorflow.core"):
            assert module == PRIVATE, where


@pytest.mark.parametrize("module", MODULES)
def test_who_imports_ipython(module: str) -> None:
    for line, name in imports(module):
        if is_of(name, "IPython"):
            assert room(module) in IPYTHON, f"tpunb/{module}, line {line}: {name}"


def test_test_modules_have_names_of_their_own() -> None:
    """As pytest imports them by their names alone, whichever folder they lie in."""
    paths = [path for path in TESTS.rglob("*.py") if path.name != "conftest.py"]
    counted = Counter(path.stem for path in paths)
    assert [path for path in paths if counted[path.stem] > 1] == []


LOADING = """
import sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "tpunb")
assert "tpu_run" in shell.magics_manager.magics["cell"]
"""


@pytest.mark.parametrize("code", ["import tpunb", "import tpunb.cli", LOADING])
def test_tensorflow_is_not_imported_early(code: str, tmp_path: Path) -> None:
    code += "\nimport sys; assert 'tensorflow' not in sys.modules"
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=environment)
