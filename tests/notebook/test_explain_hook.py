"""Explanations below the tracebacks of a real IPython shell and of a kernel."""

from __future__ import annotations

import builtins
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from counterparts.children import python_path
from support.notebooks import notebook as notebook_file
from support.notebooks import outputs
from support.shell import Notebook

import tpunb
from tpunb import cli
from tpunb._util import internal_errors
from tpunb.errors.catalogue import ENTRIES

pytestmark = pytest.mark.oldest

KNOWN = 'raise KeyError("COLAB_TPU_ADDR")'
TEXT = str(ENTRIES["2"])
HEAD = ENTRIES["2"].headline

UNKNOWN = [
    'raise KeyError("loss")',
    "1 / 0",
    "nothing",
    "def f():\n    g()\ndef g():\n    raise ValueError('deep')\nf()",
    "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise OSError('why') from error",
    "raise SystemExit(1)",
    "raise KeyboardInterrupt",
    "raise SyntaxError('mine')",
    "eval('1 +')",
    "exec('if 1:\\n2')",
    "x = (",
    "if True:\nx = 1",
    "f(a b)",
    "'a",
    "%nothing_of_this_name",
    "%time 1 / 0",
    "%timeit --wrong",
    "from IPython.core.error import UsageError\nraise UsageError('so')",
    "import asyncio\nawait asyncio.sleep(0)\n1 / 0",
    "class Shown(Exception):\n    def _render_traceback_(self): return ['shown']\nraise Shown",
]


def shown(book: Notebook, source: str) -> str:
    """Return the output of a failing cell, without details that change from run to run."""
    ran = book.run(source)
    text = re.sub(r"\x1b\[[0-9;]*m", "", ran.text)
    return re.sub(r"0x[0-9a-f]+|\d+(\.\d+)?(e[+-]\d+)? [nµum]?s\b", "...", text)


@pytest.mark.parametrize("mode", ["Plain", "Context", "Verbose", "Minimal"])
def test_an_explanation_is_below_the_users_traceback(book: Notebook, mode: str) -> None:
    book.good(f"%xmode {mode}")
    for source in (KNOWN, f"def f():\n    {KNOWN}\nf()"):
        before = shown(book, source)
        assert "COLAB_TPU_ADDR" in before
        book.good("%load_ext tpunb")
        after = shown(book, source)
        assert after.split() == [*before.split(), *TEXT.split()]
        assert after.startswith(before.rstrip())
        assert after.rstrip().endswith(TEXT)
        book.good("%unload_ext tpunb")
        assert shown(book, source) == before


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("source", UNKNOWN)
def test_other_errors_are_shown_unchanged(book: Notebook, source: str) -> None:
    before = shown(book, source)
    book.good("%load_ext tpunb")
    assert shown(book, source) == before
    assert book.session.last_explanation is None


def test_the_session_keeps_the_last_explanation(book: Notebook) -> None:
    book.good("%load_ext tpunb")
    book.run(KNOWN)
    assert book.session.last_explanation == ENTRIES["2"]
    assert book.session.last_error is None


def test_an_error_is_explained_once_each_time_it_is_raised(book: Notebook) -> None:
    book.good("%load_ext tpunb")
    book.good("error = KeyError('COLAB_TPU_ADDR')")
    for _ in range(3):
        assert shown(book, "raise error").count(HEAD) == 1
    text = shown(book, "try:\n    raise error\nexcept KeyError as e:\n    raise OSError from e")
    assert text.count(HEAD) == 1


def test_the_cause_of_an_error_is_explained(book: Notebook) -> None:
    book.good("%load_ext tpunb")
    source = f"try:\n    {KNOWN}\nexcept KeyError as error:\n    raise OSError('no TPU') from error"
    text = shown(book, source)
    assert text.count(HEAD) == 1
    assert text.index("no TPU") < text.index(HEAD)


def test_tb_and_xmode_after_an_explanation(book: Notebook) -> None:
    book.good("%load_ext tpunb")
    book.run(KNOWN)
    assert repr(sys.last_value) == "KeyError('COLAB_TPU_ADDR')"
    assert shown(book, "%tb").rstrip().endswith(TEXT)
    book.good("%xmode Plain")
    plain_traceback = shown(book, "%tb")
    assert plain_traceback.startswith("Traceback (most recent call last)")
    assert plain_traceback.rstrip().endswith(TEXT)
    book.good("%unload_ext tpunb")
    assert "KeyError" in shown(book, "%tb")


def test_debug_after_an_explanation(book: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    book.good("%load_ext tpunb")
    book.run(f"def f(secret):\n    {KNOWN}\nf(41)")
    answers = iter(["print('secret is', secret + 1)", "quit"])
    monkeypatch.setattr(builtins, "input", lambda *_: next(answers))
    monkeypatch.setattr(sys.stdin, "readline", lambda: f"{next(answers)}\n", raising=False)
    book.shell.InteractiveTB.debugger_cls = _plain_debugger()
    assert "secret is 42" in book.run("%debug").text


def _plain_debugger() -> Any:
    from IPython.core.debugger import Pdb

    return Pdb


def test_a_shell_with_automatic_debugging(book: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    book.good("%load_ext tpunb")
    forced: list[bool] = []
    monkeypatch.setattr(book.shell, "debugger", lambda force: forced.append(force), raising=False)
    book.shell.call_pdb = True
    assert shown(book, KNOWN).count(HEAD) == 1
    assert forced == [True]


def handling(book: Notebook, kind: type[BaseException], seen: list[str]) -> None:
    def handle(shell: Any, kind: Any, value: Any, trace: Any, tb_offset: Any = None) -> None:
        seen.append(repr(value))

    book.shell.set_custom_exc((kind,), handle)


def test_an_earlier_handler_is_kept(book: Notebook) -> None:
    seen: list[str] = []
    handling(book, LookupError, seen)
    before = book.shell.custom_exceptions, book.shell.CustomTB
    book.good("%load_ext tpunb")
    assert shown(book, KNOWN).strip() == TEXT
    assert "Traceback" in shown(book, "1 / 0")
    assert shown(book, "raise IndexError('mine')") == ""
    assert seen == ["KeyError('COLAB_TPU_ADDR')", "IndexError('mine')"]
    book.good("%unload_ext tpunb")
    assert (book.shell.custom_exceptions, book.shell.CustomTB) == before
    assert shown(book, KNOWN) == ""


def test_a_handler_that_shows_the_traceback_itself(book: Notebook) -> None:
    def handle(shell: Any, kind: Any, value: Any, trace: Any, tb_offset: Any = None) -> None:
        shell.showtraceback((kind, value, trace))

    book.shell.set_custom_exc((KeyError,), handle)
    book.good("%load_ext tpunb")
    text = shown(book, KNOWN)
    assert text.count(HEAD) == 1
    assert text.rstrip().endswith(TEXT)


def test_a_later_handler_replaces_ours(book: Notebook) -> None:
    book.good("%load_ext tpunb")
    seen: list[str] = []
    handling(book, KeyError, seen)
    later = book.shell.custom_exceptions, book.shell.CustomTB
    assert shown(book, KNOWN) == ""
    book.good("%unload_ext tpunb")
    assert (book.shell.custom_exceptions, book.shell.CustomTB) == later
    assert len(seen) == 1


def test_a_later_handler_may_call_ours(book: Notebook) -> None:
    book.good("%load_ext tpunb")
    before = book.shell.CustomTB

    def handle(shell: Any, kind: Any, value: Any, trace: Any, tb_offset: Any = None) -> None:
        before(kind, value, trace, tb_offset)

    book.shell.set_custom_exc((KeyError,), handle)
    assert shown(book, KNOWN).count(HEAD) == 1
    book.good("%unload_ext tpunb")
    text = shown(book, KNOWN)
    assert "COLAB_TPU_ADDR" in text
    assert HEAD not in text


def test_unloading_and_reloading(book: Notebook) -> None:
    before = book.shell.custom_exceptions, book.shell.CustomTB
    book.good("%load_ext tpunb")
    book.good("%reload_ext tpunb")
    assert shown(book, KNOWN).count(HEAD) == 1
    book.good("%unload_ext tpunb")
    assert (book.shell.custom_exceptions, book.shell.CustomTB) == before
    assert HEAD not in shown(book, KNOWN)


def test_a_failure_of_the_explanation_is_hidden(
    book: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = shown(book, KNOWN)
    book.good("%load_ext tpunb")

    def fail(error: Any) -> None:
        raise RuntimeError("no catalogue")

    monkeypatch.setattr("tpunb.errors.explain.explain", fail)
    monkeypatch.delenv(internal_errors.VARIABLE)
    assert shown(book, KNOWN) == before
    assert shown(book, "1 / 0").count("ZeroDivisionError") >= 1


CLOSED = """\
class Closed(Exception):
    def __setattr__(self, name, value):
        raise AttributeError(name)
raise Closed("Please provide a TPU Name to connect to.")
"""


def test_an_error_without_settable_attributes(book: Notebook) -> None:
    before = shown(book, CLOSED)
    book.good("%load_ext tpunb")
    after = shown(book, CLOSED)
    assert sorted(after.split()) == sorted([*before.split(), *str(ENTRIES["1"]).split()])


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.11 introduced exception groups")
def test_an_exception_group(book: Notebook) -> None:
    book.good("%load_ext tpunb")
    text = shown(book, "raise ExceptionGroup('two', [OSError(), KeyError('COLAB_TPU_ADDR')])")
    assert text.count(HEAD) == 1
    assert "ExceptionGroup" in text


def test_an_error_that_renders_itself(book: Notebook) -> None:
    book.good("%load_ext tpunb")
    rendering = "class E(KeyError):\n    def _render_traceback_(self): return ['short']\n"
    assert shown(book, f"{rendering}raise E('a')").strip() == "short"
    text = shown(book, f"{rendering}raise E('Please provide a TPU Name to connect to')")
    assert text.split() == ["short", *str(ENTRIES["1"]).split()]


def test_an_error_whose_traceback_is_a_string(book: Notebook) -> None:
    book.good("%load_ext tpunb")
    source = "class E(KeyError):\n    def _render_traceback_(self): return 'short'\n"
    text = shown(book, f"{source}raise E('Please provide a TPU Name to connect to')")
    assert text.rstrip().endswith(str(ENTRIES["1"]))
    assert text.count("Known error 1") == 1


def test_an_interrupted_wait_for_a_tpu(book: Notebook) -> None:
    book.good("%load_ext tpunb")
    source = "def experimental_connect_to_cluster():\n    raise KeyboardInterrupt\n"
    text = shown(book, f"{source}experimental_connect_to_cluster()")
    assert text.rstrip().endswith(str(ENTRIES["6"]))


def test_errors_that_name_their_fix(book: Notebook) -> None:
    book.good("%load_ext tpunb")
    text = shown(book, "%tpu_connect grpc://127.0.0.1:9")
    assert "does not answer" in text
    assert "Known error" not in text


@pytest.mark.usefixtures("tf")
def test_in_a_cell_on_the_replicas(book: Notebook) -> None:
    book.good("%load_ext tpunb")
    book.good("%tpu_connect --simulate 2\nimport tensorflow as tf")
    text = shown(book, "%%tpu_run\nv = tf.Variable(1.0)\nv + 1.0")
    assert text.startswith("In the cell, line 2:")
    assert text.count(ENTRIES["35"].headline) == 1
    assert text.rstrip().endswith(str(ENTRIES["35"]))
    text = shown(book, "%%tpu_run\ntf.ones([2]) + tf.ones([3])")
    assert "Known error" not in text
    text = shown(book, "strategy.run(lambda: 1)")
    assert text.rstrip().endswith(str(ENTRIES["32"]))
    assert book.session.last_explanation == ENTRIES["32"]


def test_in_a_kernel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The kernel is another process, which must find the package even if it is not installed.
    monkeypatch.setenv("PYTHONPATH", python_path(Path(tpunb.__file__).parent.parent))
    source = notebook_file(tmp_path / "known.ipynb", "%load_ext tpunb", KNOWN)
    assert cli.main(["run", str(source), "--timeout", "60"]) == 1
    (error,) = outputs(tmp_path / "known.executed.ipynb")[1]
    assert (error["ename"], error["evalue"]) == ("KeyError", "'COLAB_TPU_ADDR'")
    assert "\n".join(error["traceback"]).count(TEXT) == 1
    expected_output = f"Cell 2 of 2 failed: KeyError: 'COLAB_TPU_ADDR'\n{TEXT}\n"
    assert capsys.readouterr().err == expected_output
    nbformat.validate(nbformat.read(tmp_path / "known.executed.ipynb", as_version=4))


def test_tpunb_run_explains_without_the_extension(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deep = "def _distributed_tf_update_step():\n    assert False\n_distributed_tf_update_step()"
    for name, cell, expected in (("a", deep, "34"), ("b", "assert False", None)):
        source = notebook_file(tmp_path / f"{name}.ipynb", cell)
        assert cli.main(["run", str(source), "--timeout", "60"]) == 1
        expected_output = f"\n{ENTRIES[expected]}" if expected else ""
        assert capsys.readouterr().err == f"Cell 1 of 1 failed: AssertionError{expected_output}\n"
