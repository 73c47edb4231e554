"""Tab completion of magics, through both completion APIs of IPython."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from IPython.core.completer import provisionalcompleter
from support.shell import Notebook

from tpunb.tpu.types import accelerator_types

CONNECT = [
    *(
        "--simulate",
        "--framework",
        "--dry",
        "--judge",
        "--speed",
        "--recorded",
        "--computation-shape",
        "--lenient",
        "--arithmetic",
        "--patch",
    ),
    *("--keras", "--require-tpu", "--timeout", "--as"),
]
RUN = [
    *("--data", "--steps", "--steps-per-loop", "--as", "--plot", "--restart"),
    *("--out", "--targets", "--reduce", "--gather", "--checkpoint"),
    *("--checkpoint-every", "--check", "--time", "--verbose"),
]
COMPILE = [
    *("--for", "--speed", "--timeout", "--recorded", "--without-live-arrays"),
    *("--largest-batch", "--search", "--input"),
    *("--data", "--as", "--out"),
]
PROFILE = ["--keep", "--out"]
TYPES = list(accelerator_types())
OPENING = ["%load_ext tpunb"]


def completed(book: Notebook, text: str) -> list[str]:
    """Return the line after each completion at `|`, or an empty list if none is tpunb's."""
    cursor = text.index("|")
    text = text.replace("|", "")
    with provisionalcompleter():
        found = list(book.shell.Completer.completions(text, cursor))
    return [
        text[: completion.start] + completion.text + text[completion.end :]
        for completion in found
        if completion.type == "option"
    ]


def complete_with_old_api(book: Notebook, line: str) -> tuple[str, list[str]]:
    """Complete a line as a kernel does if IPython's newer API is switched off."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        token, matches = book.shell.complete("", line, len(line))
    return token, matches


def completed_with_old_api(book: Notebook, line: str) -> list[str]:
    """Return the completed lines from `shell.complete`."""
    token, matches = complete_with_old_api(book, line)
    assert line.endswith(token)
    return [line[: len(line) - len(token)] + match for match in matches]


CASES = [
    ("%tpu_connect --s", ["--simulate", "--speed"]),
    ("%tpu_connect ", CONNECT),
    ("%tpu_connect -", CONNECT),
    ("%tpu_connect --simulate v3-8 --r", ["--recorded", "--require-tpu"]),
    ("%tpu_connect --patch --", [option for option in CONNECT if option != "--patch"]),
    ("%tpu_connect --simulate v5e-", [name for name in TYPES if name.startswith("v5e-")]),
    ("%tpu_connect --simulate ", TYPES),
    ("%tpu_connect --simulate --sp", ["--speed"]),
    ("%tpu_connect --lenient x", ["x64-op"]),
    ("%tpu_connect --arithmetic t", ["tpu"]),
    ("%tpu_connect\t--s", ["--simulate", "--speed"]),
    ("%tpu_connect   --patch   --sim", ["--simulate"]),
    ("  %tpu_connect --sp", ["--speed"]),
    ("connection = %tpu_connect --spe", ["--speed"]),
    ("%tpu_topology v3-1", ["v3-128", "v3-1024"]),
    ("%tpu_topology ", TYPES),
    ("%%tpu_run --t", ["--targets", "--time"]),
    ("%%tpu_compile --", COMPILE),
    ("%%tpu_profile --", PROFILE),
    ("%%tpu_compile --for v3-1", ["v3-128", "v3-1024"]),
    ("%%tpu_compile --for v2-8,v3-1", ["v2-8,v3-128", "v2-8,v3-1024"]),
    ("%%tpu_run --time ", [option for option in RUN if option != "--time"]),
]


@pytest.mark.parametrize(("line", "words"), CASES)
def test_options_and_types(book: Notebook, line: str, words: list[str]) -> None:
    start = line[: len(line) - len(line.split(" ")[-1].split("\t")[-1])]
    expected = [start + word for word in words]
    assert completed(book, line + "|") == expected
    assert completed_with_old_api(book, line) == expected


def test_in_a_cell_of_several_lines(book: Notebook) -> None:
    lines = completed(book, "%%tpu_run --ti|\nx = 1\nx")
    assert lines == ["%%tpu_run --time\nx = 1\nx"]
    lines = completed(book, "y = 2\n%tpu_connect --sim|\nx = 1")
    assert lines == ["y = 2\n%tpu_connect --simulate\nx = 1"]


CELL = "\nloss, accuracy = step(x)\nfor k in tf.range(3):\n    total += loss\nloss == total\nlast"
NAMES = ["loss", "accuracy", "total"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("%%tpu_run -d ", ["batches", "images", "numbers"]),
        ("%%tpu_check --data im", ["images"]),
        ("%%tpu_compile -d images,n", ["images,numbers"]),
        ("%%tpu_run -p ", NAMES),
        ("%%tpu_run -p loss,t", ["loss,total"]),
        ("%%tpu_run -g ", NAMES),
        ("%%tpu_run -r l", ["loss"]),
        ("%%tpu_run -r loss=", ["loss=mean", "loss=sum"]),
        ("%%tpu_run -r loss=mean,total=s", ["loss=mean,total=sum"]),
    ],
)
def test_names_of_the_notebook_and_of_the_cell(book: Notebook, line: str, words: list[str]) -> None:
    class Dataset:
        element_spec = None

    book.shell.user_ns.update(
        batches=Dataset(), images=np.zeros(3), numbers=iter([1]), text="a", _hidden=np.zeros(3)
    )
    start = line.rpartition(" ")[0] + " "
    found = completed(book, f"{line}|{CELL}")
    assert found == [f"{start}{word}{CELL}" for word in words]


def test_types_are_in_numeric_order(book: Notebook) -> None:
    sizes = [int(word.rpartition("-")[2]) for word in completed(book, "%tpu_topology v2-|")]
    assert sizes == sorted(sizes) == [8, 32, 128, 256, 512]


OTHER = (
    "%timeit --s", "tpu_connect --s", "a.b --s", "x = 1 - tp", "%tpu_status --", "abs", "",
    "%%tpu_run\nab", "%tpu_connect --timeout ", "%tpu_connect --computation-shape ", "%tpu_conn", "%%tpu_ru",
    "# %tpu_connect --s", "%tpu_connect --nothing", "'%tpu_connect --s",
)  # fmt: skip


def test_other_lines_are_untouched(book: Notebook) -> None:
    """They are untouched even after completions of our lines."""
    our_matchers = list(book.shell.Completer.custom_matchers)
    assert our_matchers

    def completions(line: str) -> list[tuple[str, int, int]]:
        found = book.shell.Completer.completions(line, len(line))
        return [(c.text, c.start, c.end) for c in found]

    with provisionalcompleter():
        completions("long_token")
        for line in OTHER:
            completions("%tpu_connect --s")
            with_ours = completions(line)
            book.shell.Completer.custom_matchers[:] = []
            assert with_ours == completions(line), line
            book.shell.Completer.custom_matchers[:] = our_matchers


def test_names_of_magics(book: Notebook) -> None:
    _, matches = complete_with_old_api(book, "%tpu_")
    assert set(matches) == {
        f"%tpu_{name}"
        for name in ("connect", "disconnect", "doctor", "profile", "status", "topology")
    } | {"%%tpu_check", "%%tpu_compile", "%%tpu_profile", "%%tpu_run"}
