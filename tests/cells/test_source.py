"""A cell's text: what is refused, and the function made of what is not."""

from __future__ import annotations

import ast
import inspect
from types import FunctionType

import pytest
from counterparts.children import output_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tpunb.cells.replica_function import compile_function, function_text, registered
from tpunb.cells.source import parse_cell
from tpunb.errors import CellError


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("x = 1\nreturn x", 3, "`return`"),
        ("if a:\n  yield 1", 3, "`yield`"),
        ("[(yield 1)]", 2, "`yield`"),
        ("await f()", 2, "asynchronous"),
        ("async def f(): pass", 2, "asynchronous"),
        ("async with a: pass", 2, "asynchronous"),
        ("def f():\n  global x\n  x = 1", 3, "`global x`"),
        ("from os import *", 2, "`import *`"),
        ("from __future__ import annotations", 2, "__future__"),
        ("x = 1\n%time x", 3, "%time x"),
        ("!ls -l", 2, "!ls -l"),
        ("files = !ls", 2, "files = !ls"),
        ("x?", 2, "x?"),
        ("?x", 2, "?x"),
    ],
)
def test_refused(text: str, line: int, words: str) -> None:
    with pytest.raises(CellError) as caught:
        parse_cell(text)
    assert f"Line {line}" in str(caught.value)
    assert words in str(caught.value)
    assert caught.value.fix


def test_return_in_a_function_is_fine() -> None:
    assert parse_cell("def f():\n  return (yield)").names.definite == {"f"}


def test_syntax_error_points_into_the_cell() -> None:
    with pytest.raises(SyntaxError) as caught:
        parse_cell("x = 1\ny = = 2", "<my cell>")
    assert (caught.value.filename, caught.value.lineno) == ("<my cell>", 3)
    assert (caught.value.text or "").strip() == "y = = 2"


@pytest.mark.parametrize("text", ["\0", "x = '\udc80'", "(" * 300, "-" * 100_000 + "1", "break"])
def test_what_no_parser_takes(text: str) -> None:
    with pytest.raises((CellError, SyntaxError)):
        parse_cell(text)


@pytest.mark.parametrize(
    ("text", "quiet"),
    [
        ("x", False),
        ("x;", True),
        ("x ; # é", True),
        ("(x,\n y);", True),
        ("'é';", True),
        ("x # ;", False),
    ],
)
def test_semicolon(text: str, quiet: bool) -> None:
    assert parse_cell(text).quiet is quiet


def test_names_read_later_and_provided() -> None:
    cell = parse_cell("def f(v): return v + k + ctx\ng = lambda: f(replica_id)\nnum_replicas")
    assert cell.later == {"k", "ctx", "replica_id"}
    assert cell.provided == ("ctx", "num_replicas", "replica_id")
    assert set(cell.definitions) == {"f", "g"}


def test_definitions_that_depend_on_the_run_are_not_taken_out() -> None:
    cell = parse_cell("if a:\n  def f(): pass\ndef g(): pass\ng = d(g)\nclass K: pass")
    assert set(cell.definitions) == {"K"}


class _Recorder:
    def __init__(self) -> None:
        self.notes: dict[str, object] = {}

    def note(self, name: str, value: object) -> None:
        self.notes[name] = value

    def finish(self, direct: dict[str, object], last: object) -> tuple[dict[str, object], object]:
        return {**self.notes, **direct}, last


def run(text: str, namespace: dict[str, object]) -> tuple[dict[str, object], object]:
    """Runs the generated function as Python does, without TensorFlow."""
    cell = parse_cell(text)
    source = function_text(cell, (), sorted(cell.names.definite))
    code = compile_function(source, cell.filename)
    function = FunctionType(code, namespace, code.co_name)
    with registered(source, cell):
        assert inspect.getsource(function).startswith("def tpu_cell")
    result: tuple[dict[str, object], object] = function(__tpu__=_Recorder())
    return result


@pytest.mark.parametrize(
    "text",
    [
        "x = 1\nx",
        "x = '''a\n  b\nc'''; y = x\n(x,\ny)",
        "x = f'''{1 +\n 2}\n é'''\nx;",
        "x = ('a'\n'b')\ny = x + \\\n'c'",
        "for i in range(3):\n\tif i > 1: y = i; z = y  # note\n\telse: w = 'é'; é = 1\ni",
        "for i in range(2):\n  for j, k in [(1, 2)]:\n    s = i + j;\n",
        "if True:\n  import os.path, json as j\n  a = b = 2\n  (c := 3)",
        "try:\n  1 / 0\nexcept ZeroDivisionError as e:\n  y = str(e)\nfinally:\n  z = 1",
        "while True:\n  y = 1\n  break\n\n# end",
        "'''only\na string'''",
        "match [1, 2]:\n  case [a, b]: y = a\n  case _: n = 1",
        "*(1, 2), 3",
        "x = 1\r\ny = 2\r\n",
        "x = '\x0c\u2028'\ny = 1",
        "",
        "# nothing",
    ],
)
def test_same_as_in_a_notebook(text: str) -> None:
    expected: dict[str, object] = {}
    tree = ast.parse(text)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), expected)
    value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), expected) if last else None
    del expected["__builtins__"]
    found, result = run(text, {})
    passing = parse_cell(text).names.passing
    assert result == value
    assert found.keys() | passing == expected.keys() | passing
    assert all(found[name] == expected[name] for name in found)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=40))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        cell = parse_cell(text)
    except (SyntaxError, CellError):
        return
    compile_function(function_text(cell, (), sorted(cell.names.definite)), "<any>")


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(alphabet="ab\\\n\t é'\"{}", max_size=12), max_size=4))
def test_strings_keep_their_contents(parts: list[str]) -> None:
    quoted = [part.replace("\\", "\\\\").replace('"', '\\"') for part in parts]
    text = "\n".join(f'x{n} = """{part}"""' for n, part in enumerate(quoted))
    found, _ = run(text, {})
    assert found == {f"x{n}": part for n, part in enumerate(parts)}


def test_importing_the_package_leaves_tensorflow_alone() -> None:
    code = "import sys, tpunb.cells, tpunb.cells.source; assert 'tensorflow' not in sys.modules"
    assert output_of(code) == ""
