"""A cell's text: refused code, and the replica function of valid code, with its scopes."""

from __future__ import annotations

import ast
import inspect
import sys
from types import FunctionType
from typing import Any

import pytest
from counterparts.children import output_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tpunb.cells.reading.names import analyse
from tpunb.cells.reading.source import parse_cell
from tpunb.cells.reading.source_texts import shown_as
from tpunb.errors import CellError
from tpunb.tensorflow.cells.replica_function import compile_function, function_text


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
        ("def f():\n  global y\n  y = 1\nf()", 3, "does not assign `y` in every run"),
        ("if q:\n  y = 1\ndef f():\n  global y\n  return y", 5, "in every run"),
        ("y = 0\ndef f():\n  global y\n  del y", 4, "deletes `y`"),
        ("y = 0\ndef f(y):\n  def g():\n    global y\n    y = 1", 5, "another `y` of its own"),
        ("class C:\n  x = 1\n  y = x and 2", 4, "`x` of the class `C`"),
        ("class C:\n  x = 1\n  y = 0 < x < 2", 4, "`x` of the class `C`"),
        ("def f():\n  class C:\n    x = 1\n    y = x if x else 2", 5, "`x` of the class `C`"),
        ("exec('y = 1')", 2, "`exec` cannot assign"),
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


@pytest.mark.parametrize(
    "text",
    [
        "class C:\n  x = 1\n  def m(self, x): return x and 2\n  f = lambda self, x: x or 1",
        "class C:\n  y = k and 2",
        "def f():\n  exec('y = 1')",
        "exec('y = 1', {})",
    ],
)
def test_not_refused(text: str) -> None:
    parse_cell(text)


def test_return_in_a_function_is_allowed() -> None:
    assert parse_cell("def f():\n  return (yield)").names.definite == {"f"}


def test_syntax_error_points_into_the_cell() -> None:
    with pytest.raises(SyntaxError) as caught:
        parse_cell("x = 1\ny = = 2", "<my cell>")
    assert (caught.value.filename, caught.value.lineno) == ("<my cell>", 3)
    assert (caught.value.text or "").strip() == "y = = 2"


@pytest.mark.parametrize("text", ["\0", "x = '\udc80'", "(" * 300, "-" * 100_000 + "1", "break"])
def test_unparsable_text(text: str) -> None:
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


def test_conditional_and_decorated_definitions_stay_in_the_function() -> None:
    cell = parse_cell("if a:\n  def f(): pass\ndef g(): pass\ng = d(g)\nclass K: pass")
    assert set(cell.definitions) == {"K"}


class _Recorder:
    def __init__(self) -> None:
        self.notes: dict[str, object] = {}

    def note(self, name: str, value: object) -> None:
        self.notes[name] = value

    def finish(self, direct: dict[str, object], last: object) -> tuple[dict[str, object], object]:
        return {**self.notes, **direct}, last


def run(text: str) -> tuple[dict[str, object], object]:
    """Run the generated function as Python does, without TensorFlow."""
    namespace: dict[str, object] = {}
    cell = parse_cell(text)
    source = function_text(cell, (), sorted(cell.names.definite))
    code = compile_function(source, cell.filename)
    function = FunctionType(code, namespace, code.co_name)
    with shown_as(source, cell):
        assert inspect.getsource(function).startswith("def tpu_cell")
    result: tuple[dict[str, object], object] = function(__tpu__=_Recorder())
    assert namespace.keys() <= {"__builtins__"}  # nothing bypasses the cell's own names
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
        "def f():\n  n = 0\n  def g():\n    nonlocal n\n    n += 1\n  g()\n  return n\ny = f()",
        "def f():\n  n = 0\n  class C:\n    nonlocal n\n    n = 2\n  return n\ny = f()",
        "global y\ny = 3",
        "global y; y = 3",
        "y = 0\ndef f():\n  global y\n  y += 1\nf(); f()",
        "y = 0\ndef f():\n  global y; y += 1; return y\nz = f()",
        "y = z = 0\ndef f():\n  global y, \\\n    z\n  y, z = 1, 2\nf()",
        "y = z = 0\ndef f():\n  global y, z ; y = z + 1\nf()",
        "y = 1\ndef f():\n  global y\n  return y + 1\nz = f()",
        "y = 0\nclass C:\n  global y\n  y = 5",
        "y = 0\ndef f():\n  def g():\n    global y; y = 4\n  g()\nf()",
        "y = 0\ndef f():\n  global y\n  for y in range(3): pass\nf()",
        "y = 0\ndef f():\n  global y\n  import math as y\nf()",
        "y = 0\ndef f(x):\n  if x:\n    global y\n    y = 1\nf(1)",
        "match (1, 2):\n  case (a, b): y = a\n  case _: n = 1",
        "match {'k': 1, 'm': 2}:\n  case {'k': k, **rest} if (w := k): y = 1\n  case _: y = 2",
        "for i in range(3):\n  if (m := i) > 1: y = 1\n  else: z = 2",
        "while (n := 3) > 2:\n  y = n\n  break",
        "from contextlib import suppress\nwith suppress(ZeroDivisionError):\n  a = 1\n  b = 1 / 0",
        "import contextlib as c\nwith c.suppress(ValueError):\n  raise ValueError\n  b = 1\ny = 2",
    ],
)
def test_same_as_in_a_notebook(text: str) -> None:
    expected: dict[str, object] = {}
    tree = ast.parse(text)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), expected)
    value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), expected) if last else None
    del expected["__builtins__"]
    actual, result = run(text)
    passing = parse_cell(text).names.passing
    assert result == value
    assert actual.keys() | passing == expected.keys() | passing
    assert all(actual[name] == expected[name] or callable(actual[name]) for name in actual)


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
    actual, _ = run(text)
    assert actual == {f"x{n}": part for n, part in enumerate(parts)}


def test_functions_keep_their_global_statements() -> None:
    cell = parse_cell("y = 0\ndef f():\n  global y\n  y += 1\nf()")
    namespace: dict[str, Any] = {"y": 5}
    exec(cell.definitions["f"], namespace)
    namespace["f"]()
    assert namespace["y"] == 6


NEW = [
    "class C[T](dict[str, T]):\n  def m(self, x: T) -> T: return x",
    "def f[T: int](x: T) -> list[T]: return [x]",
    "type T = list[int]\ny = T",
    "type P[T] = list[T]\ny = P",
    "y = f\"{'a' + f'{1 + 1}'} {\"q\"}\"",
]


@pytest.mark.parametrize("text", NEW if sys.version_info >= (3, 12) else ["y = 1"])
def test_current_python_syntax(text: str) -> None:
    names = analyse(ast.parse(text).body)
    assert not names.certain - {"dict", "list", "str", "int"}
    assert "T" not in names.reads or "type T" in text


def test_nonlocal_names_of_the_cell_are_a_syntax_error() -> None:
    with pytest.raises(SyntaxError):
        parse_cell("y = 0\ndef f():\n  nonlocal y")


@pytest.mark.parametrize("text", ["ag__ = 1", "x = ag__ + 1", "def f():\n    return ag__"])
def test_the_name_reserved_by_autograph(text: str) -> None:
    with pytest.raises(CellError, match="`ag__` is the name under which TensorFlow's AutoGraph"):
        parse_cell(text)


def test_importing_the_package_does_not_import_tensorflow() -> None:
    code = "import sys, tpunb.cells, tpunb.cells.reading.source; assert 'tensorflow' not in sys.modules"
    assert output_of(code) == ""
