"""The text of errors without TensorFlow's traces, for real and for recorded errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tpunb.cells.reading.cell_errors import essence, first_line, show_shortly, syntax_error
from tpunb.errors import CellError


def raised(function: Callable[[], Any]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011  whatever TensorFlow makes of it
        function()
    return caught.value


def graph_error(text: str) -> tf.errors.InvalidArgumentError:
    return tf.errors.InvalidArgumentError(None, None, text)


@tf.function
def unequal() -> Any:
    return tf.matmul(tf.ones([2, 3]), tf.ones([2, 3]))


@tf.function
def with_message() -> Any:
    raise ValueError("first\n\n  second: in user code:")


@tf.function
def without_message() -> Any:
    raise RuntimeError


@tf.function
def nested() -> Any:
    return unequal()


@tf.function
def infinite(x: Any) -> Any:
    return tf.debugging.check_numerics(1 / x, "bad\n\nvery")


@tf.function
def gathered(x: Any) -> Any:
    return tf.gather([1, 2], x)


@tf.function
def by_python(x: Any) -> Any:
    def fail(_: Any) -> None:
        raise ValueError("in Python\n\nand more")

    return tf.py_function(fail, [x], tf.float32)


@tf.function
def in_a_loop(x: Any) -> Any:
    while x < 3:
        x += tf.strings.to_number("a", tf.int32)
    return x


def test_while_tracing() -> None:
    error = raised(unequal)
    assert str(error).startswith("in user code:")
    assert essence(error).startswith("Dimensions must be equal, but are 3 and 2 for")
    assert first_line(error).startswith("ValueError: Dimensions must be equal")
    assert first_line(raised(nested)) == first_line(error)


def test_while_tracing_with_blank_lines() -> None:
    error = raised(with_message)
    assert str(error).startswith("in user code:")
    assert essence(error) == "first\n\n  second: in user code:"
    assert first_line(error) == "ValueError: first"


def test_without_a_message() -> None:
    assert str(raised(without_message)).startswith("in user code:")
    assert first_line(raised(without_message)) == "RuntimeError"
    assert first_line(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert first_line(ValueError("\n")) == "ValueError"


def test_at_run_time() -> None:
    error = raised(lambda: infinite(tf.constant(0.0)))
    assert str(error).startswith("Graph execution error:")
    assert essence(error) == "bad\n\nvery : Tensor had Inf values"
    assert first_line(error) == "InvalidArgumentError: bad"
    assert "indices = 5 is not in [0, 2)" in first_line(raised(lambda: gathered(tf.constant(5))))
    assert "could not correctly convert" in first_line(raised(lambda: in_a_loop(tf.constant(1))))
    assert "[[" not in essence(raised(lambda: in_a_loop(tf.constant(1))))


def test_python_errors_at_run_time() -> None:
    error = raised(lambda: by_python(tf.constant(1.0)))
    assert essence(error) == "ValueError: in Python\n\nand more"


def test_eager() -> None:
    error = raised(lambda: tf.gather([1, 2], 5))
    assert "is not in [0, 2)" in first_line(error)
    assert first_line(ValueError("a\nb")) == "ValueError: a"
    assert essence(ValueError(" a\nb ")) == "a\nb"


SEVERAL = """Graph execution error:

Detected at node b/Assert defined at (most recent call last):
<stack traces unavailable>
Detected at node a/Assert defined at (most recent call last):
  File "/home/user/a.py", line 3, in <module>

  File "<tpu_run cell 12345678>", line 3, in tpu_cell

3 root error(s) found.
  (0) CANCELLED:  Function was cancelled before it was started
  (1) INVALID_ARGUMENT:  assertion failed: [first]
[[1 2]
 [3 4]]
\t [[{{node a/Assert}}]]
\t [[StatefulPartitionedCall/_3]]
  (2) INVALID_ARGUMENT:  another
\t [[{{node b/Assert}}]]
0 successful operations.
0 derived errors ignored. [Op:__inference_step_70]"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SEVERAL, "assertion failed: [first]\n[[1 2]\n [3 4]]"),
        (SEVERAL.replace("(1) INVALID_ARGUMENT", "(1) CANCELLED"), "another"),
        ("Graph execution error:\n\nplain message [Op:__inference_f_1]", "plain message"),
        ("Graph execution error:\n\nplain\n\t [[{{node x}}]] [Op:__inference_f_1]", "plain"),
        ("Graph execution error:", "Graph execution error:"),
        ("in user code: I wrote this", "in user code: I wrote this"),
        ("", ""),
    ],
)
def test_recorded(text: str, expected: str) -> None:
    assert essence(graph_error(text)) == expected


def test_errors_show_the_cells_lines() -> None:
    error: Any = ValueError("oh\nno")
    error.tpunb_lines = [2, 4]
    show_shortly(error, "a = 1\n\nb = 2\nc = 3\nd = 4\ne = 5")
    assert error._render_traceback_() == [
        "In the cell, line 4:", "",
        "        2 a = 1", "---->   4 b = 2", "        5 c = 3", "        6 d = 4",
        "", "ValueError: oh", "no",
    ]  # fmt: skip


def test_an_error_from_elsewhere_keeps_its_traceback() -> None:
    for lines in (None, []):
        error: Any = ValueError("oh")
        if lines is not None:
            error.tpunb_lines = lines
        show_shortly(error, "a = 1")
        assert not hasattr(error, "_render_traceback_")


@pytest.mark.parametrize("source", ["x = (", "if x:\n1", "x = 'a", "f(a b)", "1 = x"])
def test_syntax(source: str) -> None:
    with pytest.raises(SyntaxError) as caught:
        compile("\n" + source, "<cell>", "exec")
    shown = syntax_error(caught.value)
    assert isinstance(shown, CellError)
    assert str(shown).startswith(f"Line {caught.value.lineno}: {caught.value.msg}\n    ")
    assert "^" in str(shown)
    assert "<cell>" not in str(shown)
