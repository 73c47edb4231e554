"""Tables in HTML."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tpunb
from tpunb._util.tables import (
    LINED,
    PLAIN,
    REPORT,
    Markup,
    TableStyle,
    badge,
    block,
    escaped,
    lines,
    table,
)

ATTACK = '<img src="x" onerror=alert(1)>'


def bare(markup: str) -> str:
    """Remove the styles."""
    return re.sub(r' style="[^"]*"', "", markup)


def test_rows() -> None:
    assert bare(table([("a", "b"), ("c", "d")], head=("one", "two"))) == (
        "<table><thead><tr><th>one</th><th>two</th></tr></thead>"
        "<tbody><tr><td>a</td><td>b</td></tr><tr><td>c</td><td>d</td></tr></tbody></table>"
    )
    assert bare(table([("a", "b")], named=True)) == (
        "<table><tbody><tr><th>a</th><td>b</td></tr></tbody></table>"
    )
    assert bare(table([])) == "<table><tbody></tbody></table>"


def test_titles_across_all_columns() -> None:
    markup = table(["Title", ("a", "b", "c")], style=REPORT)
    assert bare(markup).startswith('<table><tbody><tr><th colspan="3">Title</th></tr><tr><td>a')


def test_all_text_except_markup_is_escaped() -> None:
    everywhere = [
        table([ATTACK, (ATTACK, ATTACK)], head=(ATTACK, ATTACK), named=True),
        block(ATTACK),
        badge(ATTACK, "red"),
        lines([ATTACK]),
        escaped(ATTACK),
    ]
    assert not [markup for markup in everywhere if "<img" in markup]
    assert "&lt;img src=&quot;x&quot;" in everywhere[0]
    assert escaped(escaped(ATTACK)) == escaped(ATTACK)
    assert "<td><b>&amp;</b></td>" in bare(table([(Markup("<b>&amp;</b>"),)]))


@pytest.mark.parametrize("style", [LINED, PLAIN, REPORT])
def test_styles_fit_light_and_dark_pages(style: object) -> None:
    """No background is opaque, and no colour of text is set."""
    markup = table(["Title", ("a", "b")], named=True, style=style)  # type: ignore[arg-type]
    assert not re.search(r"(?<!-)color:(?!inherit)", markup)
    assert not re.search(r"#[0-9a-f]{3}|rgb\(", markup)


def test_lines_around_a_table() -> None:
    assert block("") == ""
    assert bare(block("text", bold=True)) == "<div>text</div>"
    assert "font-weight:600" in block("text", bold=True)
    assert lines(["a", "b"]) == "<div>a</div><div>b</div>"


def test_no_other_module_writes_tables() -> None:
    package = Path(tpunb.__file__).parent
    writers = [
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(r"<t[dhr]\b|<table|html\.escape", path.read_text(encoding="utf-8"))
    ]
    assert sorted(writers) == ["_util/tables.py"]


def test_numbers_do_not_wrap_and_long_names_wrap_between_parts() -> None:
    long = "replica/sequential_12/dense_1/gradient_tape/MatMul"
    markup = table([(long, "17.8 ms (12%)", "a sentence of words")], named=True)
    assert "replica/<wbr>sequential_12/<wbr>dense_1/<wbr>" in markup
    assert re.search(r'white-space:normal">replica', markup)
    assert re.search(r'white-space:nowrap">17.8 ms', markup)
    assert not re.search(r'white-space:nowrap">a sentence', markup)
    assert f"{'x' * 30}<wbr>xxx" in table([("x" * 33,)])


@pytest.mark.parametrize("style", [LINED, PLAIN, REPORT])
def test_no_style_breaks_words(style: TableStyle) -> None:
    """On a narrow page, `anywhere` would make a column as narrow as a letter."""
    assert "anywhere" not in table([("a", "b")], named=True, style=style)
