"""The catalogue of known errors: its search, its pages, its display and its command."""

from __future__ import annotations

import html
import re
import subprocess
import sys
import time
from typing import Any

import pytest
from counterparts.children import output_of
from hypothesis import given
from hypothesis import strategies as st
from support.patience import PATIENCE
from support.recorded_errors import NO_TPU_IN_COLAB, ORDINARY, RECORDED, number

import tpunb
from tpunb import cli
from tpunb.cli.explain import errors_page
from tpunb.errors.catalogue import CHAPTERS, ENTRIES, Clue, Explanation, link
from tpunb.errors.explain import explain


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except BaseException as caught:
        return caught


def test_exceptions_and_their_causes() -> None:
    known = KeyError("COLAB_TPU_ADDR")
    assert number(known) == 2
    assert number(raised(RuntimeError("mine"), known)) == 2
    assert number(raised(RuntimeError("mine"), raised(OSError("other"), known))) == 2
    in_context = RuntimeError("mine")
    in_context.__context__ = known
    assert number(in_context) == 2
    in_context.__suppress_context__ = True  # like `raise ... from None`
    assert explain(in_context) is None
    outer = raised(ValueError("Please provide a TPU Name to connect to."), known)
    assert number(outer) == 1


def test_notes_and_groups() -> None:
    error: Any = ValueError("mine")
    error.__notes__ = ["KeyError: 'COLAB_TPU_ADDR'"]
    assert number(error) == 2
    group: Any = ValueError("several")
    group.exceptions = (OSError("a"), error)
    assert number(group) == 2


def test_the_traceback_identifies_an_error() -> None:
    def fail() -> None:
        raise AssertionError

    def _distributed_tf_update_step() -> None:
        fail()

    for function, expected in ((fail, None), (_distributed_tf_update_step, 34)):
        with pytest.raises(AssertionError) as caught:
            function()
        assert number(caught.value) == expected


class Hostile(Exception):
    """An exception whose attributes and methods all raise errors."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    @property
    def exceptions(self) -> Any:
        raise RuntimeError("no group")

    @property
    def __notes__(self) -> Any:
        raise RuntimeError("no notes")


def test_explaining_never_raises() -> None:
    circle = ValueError("a")
    circle.__cause__ = other = ValueError("b")
    other.__cause__ = circle
    long: BaseException = ValueError("end")
    for _ in range(3_000):
        long = raised(ValueError("x"), long)
    odd: Any = ValueError("odd")
    odd.exceptions = odd.__notes__ = 3
    for value in (Hostile(), circle, long, odd, None, 3.0, object(), Hostile, [Hostile()], b"\xff"):
        assert explain(value) is None


TEXTS = st.one_of(
    st.text(), st.sampled_from([text for _, text in RECORDED]), st.sampled_from(ORDINARY)
)


@given(st.one_of(st.binary(), TEXTS, st.lists(TEXTS).map("".join), st.integers(), st.none()))
def test_any_value_can_be_explained(value: object) -> None:
    entry = explain(value)
    assert entry is None or entry.code in ENTRIES


@given(st.lists(TEXTS, min_size=1), st.sampled_from([Exception, KeyError, KeyboardInterrupt]))
def test_any_exception_can_be_explained(texts: list[str], kind: type[BaseException]) -> None:
    error = kind(texts[0])
    for text in texts[1:]:
        error = raised(kind(text), error)
    entry = explain(error)
    assert entry is None or entry.code in ENTRIES


REPEATED = [
    "a", "\n", "[0", "\x1b[0", "AssertionError ", "Input 1 to node a with op ", "TPU system ",
    "5 out of the last 5 calls to ", "Attempting to reserve ", "KeyboardInterrupt ",
    "IndexError: index 0 is out of bounds for axis 0 with size 0\n", "UnavailableError: ",
    "No registered '_Arg' OpKernel for XLA", "Invalid reduction dimension 0 for input with 0 dimension",
    "Retrying (1/2) ", "Cannot install tensorflow-tpu", "computation footprint ",
]  # fmt: skip


@pytest.mark.parametrize("part", REPEATED)
def test_explaining_takes_linear_time(part: str) -> None:
    def seconds(size: int) -> float:
        text = (part * (size // len(part) + 1))[:size]
        begin = time.process_time()
        explain(text)
        return time.process_time() - begin

    # With quadratic time, the longer text would take a hundred times as long.
    assert seconds(200_000) < 40 * max(seconds(20_000), 0.02)


def test_the_catalogue_is_complete() -> None:
    codes = [*(str(n) for n in range(1, 151)), *(f"P{n}" for n in range(1, 12))]
    assert sorted(ENTRIES, key=codes.index) == codes
    assert sum(map(len, CHAPTERS.values())) == len(codes)
    for entry in ENTRIES.values():
        assert entry.title
        assert not entry.title.endswith(".")
        assert entry.cause.endswith(".")
        assert entry.fix.endswith(".")
        assert entry.sources
        assert entry.clues or entry.number is None
        for clue in entry.clues:
            message = clue.message if isinstance(clue, Clue) else clue
            assert re.compile(message)
            assert not re.search(r"(?<![\\\]])[.)\]][*+]", message), f"unbounded: {message}"


def test_an_explanation_is_not_recognised_as_an_error() -> None:
    for entry in ENTRIES.values():
        assert explain(str(entry)) is None, entry.code


def test_magics_in_the_catalogue_exist() -> None:
    from tpunb.notebook.magics import TpuMagics

    names = {name for kind in TpuMagics.magics.values() for name in kind}
    for entry in ENTRIES.values():
        assert set(re.findall(r"%(tpu_\w+)", entry.cause + entry.fix)) <= names


def test_links() -> None:
    assert link("tensorflow/tpu#609") == "https://github.com/tensorflow/tpu/issues/609"
    assert link("https://www.tensorflow.org/guide/tpu") == "https://www.tensorflow.org/guide/tpu"
    assert link("tensorflow: tpu_strategy.py") is None
    entry = ENTRIES["1"]
    assert entry.links == (
        "https://github.com/googlecolab/colabtools/issues/5194",
        "https://github.com/googlecolab/colabtools/issues/4699",
    )
    assert entry.source == "googlecolab/colabtools#5194, googlecolab/colabtools#4699"


def test_entries_have_displays() -> None:
    for entry in ENTRIES.values():
        lines = str(entry).splitlines()
        assert lines[0] == entry.headline
        assert [line.split()[0] for line in lines if line[2] != " "][1:] == ["Cause:", "Fix:", "Source:", "More:"]  # fmt: skip
        markup = entry._repr_html_()
        for text in (entry.cause, entry.title):
            assert html.escape(text) in re.sub("</?code>", "`", markup)
    odd = Explanation("1", "<b>&", (), "`<i>`", "\"'", ("<a>",))
    assert "<b>" not in odd._repr_html_()
    assert "<code>&lt;i&gt;</code>" in odd._repr_html_()


def test_in_ipython() -> None:
    from IPython.lib.pretty import pretty

    entry = ENTRIES["34"]
    assert pretty(entry) == str(entry)
    assert pretty([entry]).startswith("[Known error 34: Made outside strategy.scope()\n")


def test_public_names() -> None:
    assert tpunb.explain is explain


def test_without_tensorflow() -> None:
    code = (
        "import sys, tpunb\n"
        "assert tpunb.explain(KeyError('COLAB_TPU_ADDR')).number == 2\n"
        "assert not {'tensorflow', 'numpy', 'IPython'} & set(sys.modules)"
    )
    assert output_of(code) == ""


def test_on_the_command_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["explain", "KeyError:", "'COLAB_TPU_ADDR'"]) == 0
    output = capsys.readouterr().out
    assert output.startswith(str(ENTRIES["2"]))
    assert output.endswith("  https://github.com/googlecolab/colabtools/issues/4481\n")
    assert cli.main(["explain", "KeyError: 'loss'"]) == 1
    assert capsys.readouterr() == (
        "",
        "tpunb does not know this error. `tpunb explain --all` lists those it knows.\n",
    )
    assert cli.main(["explain", "--all"]) == 0
    assert capsys.readouterr().out == errors_page()


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_from_a_pipe(arguments: list[str]) -> None:
    code = "import sys; from tpunb.cli import main; sys.exit(main())"
    for text, exit_code in ((b"\xff\n" + NO_TPU_IN_COLAB.encode(), 0), (b"\xff", 1), (b"", 1)):
        process = subprocess.run(
            [sys.executable, "-c", code, "explain", *arguments],
            input=text, capture_output=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert process.returncode == exit_code, process.stderr
        assert (b"Known error 5" in process.stdout) == (exit_code == 0)


@pytest.mark.parametrize("number", [24, "24", " 24\n"])
def test_the_number_of_an_entry(number: object) -> None:
    entry = explain(number)
    assert entry is not None
    assert entry.code == "24"
    assert explain(9999) is explain(True) is explain("9999") is None
