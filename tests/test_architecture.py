"""The rules that imports keep: rooms in one order, and who may import what."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from counterparts.children import output_of
from support.importing import homes_in, imports_tensorflow

PACKAGE = Path(__file__).parents[1] / "tpunb"

ROOMS = (
    "version",
    "_util",
    "errors",
    "tpu",
    "training",
    "machine",
    "virtual",
    "display",
    "compiler",
    "connection",
    "cells",
    "verification",
    "notebook",
    "keras",
    "kernel_launcher",
    "pytest_plugin",
    "cli",
    "__main__",
    "__init__",
)
"""From the ground up: each imports only from those before it."""

TENSORFLOW = {"virtual", "compiler", "cells", "connection", "verification", "keras"}
IPYTHON = {"notebook"}
PRIVATE = {"virtual._tensorflow", "virtual.strict.xla", "virtual.tensorflow_runtime"}
"""The others run in processes of their own, for which all of the first takes too long."""

MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
PACKAGES = {
    module.rpartition(".")[0] if "." in module else "": path
    for module, path in MODULES.items()
    if path.name == "__init__.py"
}


def room(module: str) -> str:
    """The module or package directly under `tpunb`."""
    return module.partition(".")[0]


def imports(module: str) -> Iterator[tuple[int, str]]:
    """The line and the full name of what a module imports, in functions and for types too."""
    path = MODULES[module]
    package = ["tpunb", *module.split(".")][:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{source}.{alias.name}"


def own_module(name: str) -> str | None:
    """The module of ours that an imported name lies in: the module itself, or where it is from."""
    top, *parts = name.split(".")
    if top != "tpunb":
        return None
    for length in range(len(parts), -1, -1):
        for found in (".".join(parts[:length]), ".".join([*parts[:length], "__init__"])):
            if found in MODULES:
                return found
    raise AssertionError(f"{name} is nowhere")


ARROWS = [
    (module, line, other)
    for module in MODULES
    for line, name in imports(module)
    if (other := own_module(name)) is not None and other != module
]


def is_of(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def test_every_room_has_its_place() -> None:
    assert {room(module) for module in MODULES} == set(ROOMS)
    assert len({path.name for path in PACKAGE.iterdir() if path.suffix in {"", ".py"}}) <= 21


def test_the_map_shows_the_rooms_in_their_order() -> None:
    """The table in CONTRIBUTING.md: packages, and which of them may import what."""
    page = (PACKAGE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = page.partition("## Map\n")[2].partition("\n## ")[0]
    lines = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    rows = [(name.strip(" `"), mark.strip()) for _, name, _, mark, _ in lines]
    packages = [name for name in ROOMS if (PACKAGE / name).is_dir()]
    marks = {**dict.fromkeys(TENSORFLOW, "TF"), **dict.fromkeys(IPYTHON, "IPython")}
    assert rows == [(name, marks.get(name, "")) for name in packages]


def test_names_that_come_late_have_a_home() -> None:
    """What a package's `__getattr__` imports is there, whatever has been renamed."""
    homes = {
        f"{package}{'.' if package else ''}{home}"
        for package, path in PACKAGES.items()
        for home in homes_in(path).values()
    }
    assert homes
    assert homes <= {module.removesuffix(".__init__") for module in MODULES}


def test_rooms_import_downwards() -> None:
    upwards = [
        f"tpunb/{module}, line {line}: {other}"
        for module, line, other in ARROWS
        if room(module) != room(other) and ROOMS.index(room(other)) > ROOMS.index(room(module))
    ]
    assert not upwards


def test_what_is_compiled_does_not_know_how_it_is_shown() -> None:
    assert not [
        module
        for module, _, other in ARROWS
        if room(module) == "compiler" and room(other) == "display"
    ]


def test_modules_import_in_no_circle() -> None:
    """Imports in functions and for types count too."""
    sources: dict[str, set[str]] = {}
    for module, _, other in ARROWS:
        sources.setdefault(module, set()).add(other)
    # Raises CycleError, which names the circle.
    assert list(graphlib.TopologicalSorter(sources).static_order())


def test_who_imports_tensorflow_and_ipython() -> None:
    wrong = []
    for module in MODULES:
        for line, name in imports(module):
            private = is_of(name, "tensorflow.python") or is_of(name, "tensorflow.core")
            if (
                (is_of(name, "tensorflow") and room(module) not in TENSORFLOW)
                or (private and module not in PRIVATE)
                or (is_of(name, "IPython") and room(module) not in IPYTHON)
            ):
                wrong.append(f"tpunb/{module}, line {line}: {name}")
    assert not wrong


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
    assert output_of(code, IPYTHONDIR=str(tmp_path)) == ""


def test_it_is_known_which_tests_import_tensorflow() -> None:
    tests = Path(__file__).parent
    assert imports_tensorflow(tests / "virtual" / "test_random.py")
    assert imports_tensorflow(tests / "notebook" / "test_magics_check.py"), "by a module of ours"
    assert not imports_tensorflow(tests / "machine" / "test_machine.py")
    assert imports_tensorflow(tests / "notebook" / "test_magics_run.py"), "by a name of a package"
    assert not imports_tensorflow(tests / "cells" / "test_names.py"), "its package does not"
