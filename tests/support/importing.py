"""Find out which test files import TensorFlow, by parsing them."""

from __future__ import annotations

import ast
import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
SOURCES = (TESTS.parent, TESTS, TESTS / "browser")
"""The roots of our own modules: the repository, and pytest's `pythonpath`."""

TENSORFLOW = {"tensorflow", "keras", "tf_keras"}

_KEPT = Path(__file__).parent / "__pycache__" / "imports.json"
_READER = "this module"
"""A key that is not a file: its stamp tells whether this version of the code wrote `_KEPT`."""


@functools.cache
def imports_tensorflow(path: Path) -> bool:
    """Return whether importing a file imports TensorFlow, directly or through our own modules."""
    seen: set[Path] = set()
    waiting = [path]
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        names = _imports(file)
        if any(name.partition(".")[0] in TENSORFLOW for name in names):
            return True
        waiting += [module for name in names for module in _files(name)]
    return False


class _Imports(ast.NodeVisitor):
    """Collect the full names that a file imports at once, but not in functions or for types alone."""

    def __init__(self, package: list[str]) -> None:
        self.package = package
        self.names: set[str] = set()

    def visit_Import(self, node: ast.Import) -> None:
        self.names.update(alias.name for alias in node.names)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = self.package[: len(self.package) - node.level + 1] if node.level else []
        source = ".".join([*base, *([node.module] if node.module else [])])
        self.names.update(f"{source}.{alias.name}" for alias in node.names)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "importorskip":
            self.names.add(ast.literal_eval(node.args[0]))
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Skip it: a function's imports wait until it is called."""


@functools.cache
def _imports(file: Path) -> frozenset[str]:
    saved, stamp = _kept_imports(), _stamp(file)
    known = saved.get(str(file))
    if known is None or known["stamp"] != stamp:
        known = saved[str(file)] = {"stamp": stamp, "names": sorted(_parsed_imports(file))}
        saved[_READER] = {"stamp": _stamp(Path(__file__)), "new": True}
    return frozenset(known["names"])


def _parsed_imports(file: Path) -> set[str]:
    root = next(source for source in reversed(SOURCES) if file.is_relative_to(source))
    visitor = _Imports(list(file.relative_to(root).parent.parts))
    visitor.visit(ast.parse(file.read_text(encoding="utf-8")))
    return visitor.names


@functools.cache
def _kept_imports() -> dict[str, Any]:
    """Return each file's imports as an earlier process saved them; none if this module changed."""
    try:
        saved: dict[str, Any] = json.loads(_KEPT.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return saved if saved.get(_READER, {}).get("stamp") == _stamp(Path(__file__)) else {}


def keep_imports() -> None:
    """Save the imports of each file for later processes: parsing the files takes half a second."""
    saved = _kept_imports()
    if saved.get(_READER, {}).pop("new", False):
        _KEPT.parent.mkdir(exist_ok=True)
        partial = _KEPT.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(saved), encoding="utf-8")
        partial.replace(_KEPT)


def _stamp(file: Path) -> list[int]:
    status = file.stat()
    return [status.st_mtime_ns, status.st_size]


@functools.cache
def _files(name: str) -> tuple[Path, ...]:
    """Return our files that run when a name is imported: its module, its packages and its home."""
    parts = name.split(".")
    return tuple(
        file
        for source in SOURCES
        if _is_ours(source, parts[0])
        for length in range(1, len(parts) + 1)
        for file in _module_files(
            source.joinpath(*parts[:length]), parts[:length], *parts[length:][:1]
        )
    )


@functools.cache
def _is_ours(source: Path, package: str) -> bool:
    return (source / package).is_dir() or (source / f"{package}.py").is_file()


def _module_files(place: Path, parts: list[str], attribute: str = "") -> Iterator[Path]:
    """Yield a module's file, and the files of the module that defines a lazily loaded attribute."""
    module, package = place.with_suffix(".py"), place / "__init__.py"
    if module.is_file():
        yield module
    if package.is_file():
        yield package
        if attribute in homes_in(package):
            yield from _files(homes_in(package)[attribute])


@functools.cache
def homes_in(package: Path) -> dict[str, str]:
    """Return a package's `_HOMES`: the modules from which its `__getattr__` loads names."""
    for node in ast.parse(package.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOMES":
            homes: dict[str, str] = ast.literal_eval(node.value)
            return homes
    return {}
