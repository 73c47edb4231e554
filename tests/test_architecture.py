"""The rules for imports: the order of the rooms, and which rooms may import TensorFlow or IPython."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from counterparts.children import output_of, run_code
from support.importing import homes_in, imports_tensorflow

PACKAGE = Path(__file__).parents[1] / "tpunb"

WINGS = {"jax", "tensorflow", "teach"}

ROOMS = (
    "version",
    "_util",
    "errors",
    "examples",
    "tpu",
    "training",
    "machine",
    "framework",
    "virtual",
    "checks",
    "display",
    "compiler",
    "connection",
    "cells",
    "verification",
    "puzzles",
    "draw",
    "notebook",
    "course",
    "keras",
    "port",
    "pytest_plugin",
    "cli",
    "__main__",
    "__init__",
)
"""Each room imports only rooms above it in this list."""

TENSORFLOW = {
    "cells.keras_calls",
    "compiler.ask.fingerprint",
    "compiler.saved_models",
    "keras.batch_values",
    "machine.import_tensorflow",
}
"""The modules of the core that import TensorFlow, in functions for Keras models and its programs."""

JAX = {"compiler.ask.libtpu_process"}
"""The module of the core that imports JAX, in a process of its own."""

IPYTHON = {"notebook"}
PRIVATE = {
    "tensorflow.virtual.private_names",
    "tensorflow.virtual.runtime.tensorflow_runtime",
    "tensorflow.virtual.strict.xla",
}
"""Other modules do without TensorFlow's private modules."""

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
    """Return the module or package directly under `tpunb`, or under the wing of a framework."""
    top, _, rest = module.partition(".")
    return top if top not in WINGS else "display" if rest == "values" else rest.partition(".")[0]


def imports(module: str, *, run: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the line and the full name of each import of a module, also in functions and for types.

    Args:
        module: The module.
        run: Whether to leave out the imports that are for types only.
    """
    path = MODULES[module]
    package = ["tpunb", *module.split(".")][:-1]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if run:
        tree.body = [node for node in tree.body if not _is_for_types(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{source}.{alias.name}"


def _is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def own_module(name: str) -> str | None:
    """Return the module that an imported name is, or is defined in, if it is ours."""
    top, *parts = name.split(".")
    if top != "tpunb":
        return None
    for length in range(len(parts), -1, -1):
        for candidate in (".".join(parts[:length]), ".".join([*parts[:length], "__init__"])):
            if candidate in MODULES:
                return candidate
    raise AssertionError(f"{name} is in no module")


def wing(module: str) -> str:
    """Return the wing of a module; empty for the core."""
    top = module.partition(".")[0]
    return top if top in WINGS else ""


ARROWS = [
    (module, line, other)
    for module in MODULES
    for line, name in imports(module, run=module == "framework")
    if (other := own_module(name)) is not None and other != module
    # The core names types of the wings, but runs no import of a wing.
    if wing(module) or not wing(other) or (line, name) in {*imports(module, run=True)}
]


def is_of(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def test_every_room_is_listed() -> None:
    assert {room(module) for module in MODULES} == set(ROOMS)
    assert len({module.partition(".")[0] for module in MODULES}) <= 26


def test_the_map_shows_the_rooms_in_their_order() -> None:
    """The table in CONTRIBUTING.md lists the rooms in order, and the wings that have each."""
    page = (PACKAGE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = page.partition("## Map\n")[2].partition("\n## ")[0]
    lines = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    rows = [(name.strip(" `"), where.strip()) for _, name, _, where, _ in lines]
    places = {"": "core", **{name: f"`{name}`" for name in ("tensorflow", "jax", "teach")}}
    found = {(wing(module), room(module)) for module in MODULES if "." in module}
    expected = [
        (name, ", ".join(text for place, text in places.items() if (place, name) in found))
        for name in ROOMS
    ]
    assert rows == [
        (name, where) for name, where in expected if where and name not in {"__init__", "port"}
    ]


def test_lazily_loaded_names_have_a_home() -> None:
    """The modules from which a package's `__getattr__` loads names exist."""
    homes = {
        home.removeprefix("tpunb.")
        for path in PACKAGES.values()
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


def test_the_compiler_does_not_import_the_display() -> None:
    assert not [
        module
        for module, _, other in ARROWS
        if room(module) == "compiler" and room(other) == "display"
    ]


def test_the_core_imports_no_wing_and_no_wing_the_other() -> None:
    """`tpunb/framework.py` alone imports the wings of the frameworks, by their names."""
    wrong = [
        f"tpunb/{module}, line {line}: {other}"
        for module, line, other in ARROWS
        if wing(other) not in {"", wing(module)}
        and wing(module) != "teach"
        and module not in {"course", "puzzles"}  # the public names of what teaches
    ]
    assert not wrong


def test_there_are_no_import_cycles() -> None:
    """Imports in functions and for types count too."""
    sources: dict[str, set[str]] = {}
    for module, _, other in ARROWS:
        sources.setdefault(module, set()).add(other)
    # Raises CycleError with the names of the cycle.
    assert list(graphlib.TopologicalSorter(sources).static_order())


def test_the_frameworks_and_ipython_are_imported_where_they_belong() -> None:
    wrong = []
    for module in MODULES:
        for line, name in imports(module):
            private = is_of(name, "tensorflow.python") or is_of(name, "tensorflow.core")
            allowed = {wing(module), *({"tensorflow", "jax"} if wing(module) == "teach" else ())}
            if (
                (
                    is_of(name, "tensorflow")
                    and "tensorflow" not in allowed
                    and module not in TENSORFLOW
                )
                or (is_of(name, "jax") and "jax" not in allowed and module not in JAX)
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


WORK_OF_TENSORFLOW = """
import sys, tensorflow as tf, tpunb
with tpunb.connect(simulate="v2-8") as connection:
    result = connection.run_cell("y = replica_id + 1", reduce={"y": "sum"})
    assert int(result.assigned["y"]) == 36
    tpunb.show(result.assigned["y"])
    assert not [name for name in sys.modules if name.startswith("tpunb.jax")]
"""


@pytest.mark.tensorflow
def test_a_process_with_tensorflow_imports_nothing_of_jaxs_wing() -> None:
    process = run_code(WORK_OF_TENSORFLOW)
    assert process.returncode == 0, process.stderr


def test_files_that_import_tensorflow_are_recognised() -> None:
    tests = Path(__file__).parent
    assert imports_tensorflow(tests / "virtual" / "test_random.py")
    assert imports_tensorflow(tests / "notebook" / "test_magics_check.py"), (
        "through a module of ours"
    )
    assert not imports_tensorflow(tests / "machine" / "test_machine.py")
    assert imports_tensorflow(tests / "verification" / "test_verify.py"), (
        "through modules of several rooms"
    )
    assert not imports_tensorflow(tests / "cells" / "test_names.py"), "the package itself does not"
