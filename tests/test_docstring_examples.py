"""The examples in the docstrings of public names, and the Python code on the start page, run."""

from __future__ import annotations

import contextlib
import doctest
import inspect
import io
import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.compiler_needed import require_compiler
from support.pages import run_code

import tpunb

pytestmark = pytest.mark.tensorflow

LEFT_OUT = ("__version__", "history", "search")
"""Names that are no functions, and the function whose example needs JAX."""

FUNCTIONS = [
    *(name for name in tpunb.__all__ if name.islower() and name not in LEFT_OUT),
    *(f"draw.{name}" for name in tpunb.draw.__all__),
]
NEED_THE_COMPILER = {"compile", "largest_batch", "load_program"}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep files of the examples apart, and close their connections."""
    from tpunb.connection.tpu_connection import open_connections

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TPUNB_WIDGETS", "never")
    yield
    for connection in open_connections():
        connection.close()


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.usefixtures("tf")
def test_the_example_of_a_function(name: str) -> None:
    if name in NEED_THE_COMPILER:
        require_compiler()
    examples = doctest.DocTestParser().get_examples(
        inspect.getdoc(operator.attrgetter(name)(tpunb)) or ""
    )
    assert examples, f"help(tpunb.{name}) shows no example"
    names = {"tpunb": tpunb}
    for number, example in enumerate(examples):
        if doctest.SKIP not in example.options:
            printed = output(example.source, Path(f"{name}_{number}.py"), names)
            assert doctest.OutputChecker().check_output(example.want, printed, doctest.ELLIPSIS), (
                f"{example.source} printed {printed}"
            )


def output(source: str, path: Path, names: dict[str, Any]) -> str:
    """Return what a statement prints. AutoGraph reads its source from the file."""
    path.write_text(source, encoding="utf-8")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(source, path.resolve(), "single"), names)
    return printed.getvalue()


@pytest.mark.parametrize("heading", ["Start with TensorFlow", "Start with a program or an agent"])
@pytest.mark.usefixtures("tf")
def test_the_code_on_the_start_page(heading: str) -> None:
    require_compiler()
    run_code(heading)
