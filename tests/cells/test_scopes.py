"""What `global`, `nonlocal` and other scopes mean in a cell: as in an ordinary cell."""

from __future__ import annotations

import ast
import sys
from types import FunctionType
from typing import Any

import pytest

from tpunb.cells.names import analyse
from tpunb.cells.replica_function import compile_function, function_text
from tpunb.cells.source import parse_cell
from tpunb.errors import CellError


class _Recorder:
    def __init__(self) -> None:
        self.notes: dict[str, Any] = {}

    def note(self, name: str, value: Any) -> None:
        self.notes[name] = value

    def finish(self, direct: dict[str, Any], last: Any) -> dict[str, Any]:
        del last
        return {**self.notes, **direct}


def run(text: str) -> dict[str, Any]:
    """What the replica function leaves behind, without TensorFlow."""
    cell = parse_cell(text)
    source = function_text(cell, (), sorted(cell.names.definite))
    code = compile_function(source, cell.filename)
    namespace: dict[str, Any] = {}
    found: dict[str, Any] = FunctionType(code, namespace, code.co_name)(__tpu__=_Recorder())
    assert namespace.keys() <= {"__builtins__"}  # nothing went past the cell's own names
    return found


@pytest.mark.parametrize(
    "text",
    [
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
def test_as_in_an_ordinary_cell(text: str) -> None:
    plain: dict[str, Any] = {}
    exec(compile(text, "<cell>", "exec"), plain)
    del plain["__builtins__"]
    found = run(text)
    assert found.keys() == plain.keys()
    for name, value in plain.items():
        assert found[name] == value or callable(value)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("def f():\n  global y\n  y = 1\nf()", 3, "does not assign `y` in every run"),
        ("if q:\n  y = 1\ndef f():\n  global y\n  return y", 5, "in every run"),
        ("y = 0\ndef f():\n  global y\n  del y", 4, "deletes `y`"),
        ("y = 0\ndef f(y):\n  def g():\n    global y\n    y = 1", 5, "another `y` of its own"),
        ("class C:\n  x = 1\n  y = x and 2", 4, "`x` of the class `C`"),
        ("class C:\n  x = 1\n  y = 0 < x < 2", 4, "`x` of the class `C`"),
        ("def f():\n  class C:\n    x = 1\n    y = x if x else 2", 5, "`x` of the class `C`"),
        ("exec('y = 1')", 2, "`exec` cannot assign"),
    ],
)
def test_refused_with_the_reason(text: str, line: int, words: str) -> None:
    with pytest.raises(CellError) as caught:
        parse_cell(text)
    assert f"Line {line}: " in str(caught.value)
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


def test_functions_go_to_the_notebook_with_their_global_statements() -> None:
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
def test_python_of_today(text: str) -> None:
    names = analyse(ast.parse(text).body)
    assert not names.certain - {"dict", "list", "str", "int"}
    assert "T" not in names.reads or "type T" in text


def test_a_nonlocal_name_of_the_cell_is_no_python() -> None:
    with pytest.raises(SyntaxError):
        parse_cell("y = 0\ndef f():\n  nonlocal y")


@pytest.mark.parametrize("text", ["ag__ = 1", "x = ag__ + 1", "def f():\n    return ag__"])
def test_the_name_that_autograph_has_taken(text: str) -> None:
    with pytest.raises(CellError, match="`ag__` is the name under which TensorFlow's AutoGraph"):
        parse_cell(text)
