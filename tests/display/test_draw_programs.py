"""Compiled programs as text and as HTML, and the limits for large programs."""

from __future__ import annotations

import base64
import dataclasses
import json
import re

import pytest
from support import programs as made
from support.markup import Tags, without_pictures
from support.patience import calls

from tpunb.compiler.program import TpuProgram, TpuPrograms
from tpunb.display.draw.programs.html import programs_html
from tpunb.display.draw.programs.tables import Table, tables
from tpunb.display.draw.programs.text import programs_text
from tpunb.errors.code_problems import Problem, SourceLine
from tpunb.tpu.compiled_program import CodeLine, MemoryOverProgram

pytestmark = pytest.mark.oldest


def text_of(program: TpuProgram) -> str:
    return programs_text([program])


def html_of(program: TpuProgram) -> str:
    return programs_html([program])


def lines(program: TpuProgram) -> Table:
    return tables(program)["lines"]


FITS = """\
TPU v3-8 · 8 replicas · global batch 1024
Compiles and fits: 3.4 GiB of 15.48 GiB a core (22%).
HBM     █▒▒▒▒▒▒▒▒······························· 3.4 GiB of 15.48 GiB a core (22%)
        variables 98 MiB · inputs 77 MiB · results 1 MiB · temporaries 3.2 GiB · other 28.8 MiB
        free 12.08 GiB · 15.48 GiB usable of the data sheet's 16 GiB
time    110 ms to 174 ms a call (estimated) · 5890 to 9310 examples/s · about 925 examples/s a core
        matrix products 62% · memory-bound 30% · collectives 6% · other 2%

  line  time             memory
     2                                         images, labels = batch
     3                                         with tf.GradientTape() as tape:
     4  ████▋        46% █████▉         2 GiB      features = tf.nn.relu(tf.nn.conv2d(images, kerne…
     5                                             pooled = tf.reduce_mean(features, [1, 2])
     6  █▎           12%                           logits = tf.matmul(pooled, weights)
     7                                             loss = tf.nn.compute_average_loss(losses(labels,…
     8  ███          30% ███            1 GiB  gradients = tape.gradient(loss, [kernel, weights])
     9  █▎           12%                       optimizer.apply_gradients(zip(gradients, [kernel, we…

  layers
  █████▊       58%    80 ms     2 GiB  conv1
  ██▎          22%    30 ms            predictions
                              256 MiB  pool1
"""


def test_text() -> None:
    text = text_of(made.FITS)
    assert text.startswith(FITS)
    assert "  ▋             6%   8.3 ms   194 MiB  all-reduce 97.5 MiB" in text
    assert "    784 MiB  f32[128,112,112,64]  Conv2D · conv1 · line 4" in text
    assert "512 MiB for 40.5 MiB of numbers, 12.6 times  OneHot · line 6" in text
    assert text.endswith("Gathers are not in the compiler's estimate.")
    assert max(map(len, text.splitlines())) <= 100


def test_memory_over_the_program_as_text() -> None:
    text = text_of(made.DRAWN)
    assert "peak 3.251 GiB at instruction 801 of 1200" in text
    picture = [line.partition("│")[2] for line in text.splitlines() if "│" in line]
    assert (
        picture[0] == " " * 32 + "b" * 16
    )  # the top: only the peak reaches it, and line 6 is last
    assert picture[-2] == " " * 16 + "a" * 32 + "b" * 16
    assert picture[-1] == "█" * 64
    assert "    2 GiB a line 4  features" in text
    assert "    1 GiB b line 6  logits" in text
    assert "  256 MiB █ arguments and variables" in text
    assert "    1 MiB ░ other lines" in text
    assert max(map(len, text.splitlines())) <= 100
    assert "fast memory" not in text
    larger = dataclasses.replace(made.DRAWN.memory or made.MEMORY, peak=4 * made.GIB)
    fast = dataclasses.replace(made.DRAWN, memory=larger)
    assert "767 MiB more are in the core's fast memory" in text_of(fast)
    assert "767 MiB more are in the core's fast memory" in html_of(fast).replace("&#x27;", "'")
    small = dataclasses.replace(made.DRAWN.memory or made.MEMORY, available=2**40)
    assert "over the program" not in text_of(dataclasses.replace(made.DRAWN, memory=small))


def images(html: str) -> list[str]:
    """Return the pictures of a page."""
    sources = re.findall(r'src="data:image/svg\+xml;base64,([^"]*)"', html)
    return [base64.b64decode(source).decode() for source in sources]


def tops(picture: str) -> list[float]:
    """Return the highest point of each area, from the lowest area to the highest."""
    areas = re.findall(r'<path d="M([^"]*)Z" fill="#', picture)
    return [min(float(point.split()[1]) for point in area.split("L")) for area in areas]


def test_memory_over_the_program_as_a_picture() -> None:
    (picture,) = images(html_of(made.DRAWN))
    assert "peak 3.251 GiB" in picture
    areas = tops(picture)
    assert len(areas) == 4
    parts = [0.25 / 3.251, 2.25 / 3.251, 3.25 / 3.251, 1]
    assert areas == pytest.approx([24 + 200 * (1 - part) for part in parts], abs=0.2)
    words = " ".join(Tags(html_of(made.DRAWN)).words)
    assert "2 GiB" in words
    assert made.LINES[2].text in words
    assert images(html_of(made.FITS)) == []


def test_two_programs_for_a_type_have_pictures_side_by_side() -> None:
    """On one scale, and also if they take little of a core's memory."""
    memory = dataclasses.replace(made.MEMORY, available=2**40)
    half = MemoryOverProgram(
        made.OVER.steps,
        made.OVER.moments,
        tuple(
            dataclasses.replace(owner, sizes=tuple(size // 2 for size in owner.sizes))
            for owner in made.OVER.owners
        ),
    )
    first, second = (
        dataclasses.replace(
            made.DRAWN, name=name, memory=dataclasses.replace(memory, over_program=over)
        )
        for name, over in (("plain", made.OVER), ("with_checkpoint", half))
    )
    html = programs_html([first, second])
    one, other = map(tops, images(html))
    assert one[-1] == pytest.approx(24, abs=0.5)
    assert other[-1] == pytest.approx(124, abs=0.5)
    words = " ".join(Tags(html).words)
    assert "1: plain" in words
    assert "2: with_checkpoint" in words
    text = programs_text([first, second])
    assert text.index("1: plain") < text.index("peak 3.251 GiB")
    assert text.index("2: with_checkpoint") < text.index("peak 1.625 GiB")
    assert max(map(len, text.splitlines())) <= 100
    other_type = dataclasses.replace(second, tpu="v5e-8")
    assert images(programs_html([first, other_type])) == []


def test_tensors_show_where_they_are_used_last() -> None:
    first = dataclasses.replace(made.MEMORY.largest[0], last=made.place(8))
    memory = dataclasses.replace(made.MEMORY, largest=(first, *made.MEMORY.largest[1:]))
    program = dataclasses.replace(made.FITS, memory=memory)
    assert "Conv2D · conv1 · line 4, used last in line 8" in text_of(program)
    tags = [attributes.get("data-line") for _, attributes in Tags(html_of(program)).found]
    assert {"4", "8"} <= set(filter(None, tags))


def test_the_same_program_gives_the_same_bytes() -> None:
    slow = dataclasses.replace(made.FITS, compile_seconds=99.0)
    assert slow._repr_mimebundle_() == made.FITS._repr_mimebundle_()


def test_a_program_that_does_not_fit_shows_the_excess() -> None:
    text, html = text_of(made.TOO_LARGE), html_of(made.TOO_LARGE)
    assert "Does not fit: 9.1 GiB a core, 1.62 GiB more than the 7.48 GiB available." in text
    (bar,) = [line for line in text.splitlines() if line.startswith("HBM")]
    assert bar.count("!") == round(40 * 1.62 / 9.1)
    assert "✗    4" in text
    assert "largest global batch that fits  832" in text
    words = " ".join(Tags(html).words)
    assert "1.62 GiB too much" in words
    assert "4 ✗" in words


def bar(html: str) -> list[float]:
    """Return the widths of the memory bar's parts, in percent."""
    tags = Tags(html).found
    (start,) = [at for at, (_, attributes) in enumerate(tags) if attributes.get("role") == "img"]
    styles = [
        attributes["style"] or "" for _, attributes in tags[start + 1 :] if "style" in attributes
    ]
    blocks = [style for style in styles if style.startswith("float:left")]
    return [float(style.partition("width:")[2].partition("%")[0]) for style in blocks]


@pytest.mark.parametrize("program", [made.FITS, made.TOO_LARGE])
def test_the_parts_fill_the_bar(program: TpuProgram) -> None:
    widths = bar(html_of(program))
    assert 99.5 < sum(widths) <= 100
    assert all(width >= 0 for width in widths)


def test_parts_that_overlap_stay_within_the_peak() -> None:
    memory = dataclasses.replace(made.MEMORY, outputs=2 * made.GIB, temporaries=3 * made.GIB)
    used = [size for kind, size in memory.parts.items() if kind != "free"]
    assert sum(used) == memory.peak
    assert sum(memory.parts.values()) == memory.available


def test_errors_without_figures() -> None:
    text = text_of(made.REFUSED)
    assert text.startswith("TPU v5e-8 · 8 replicas\nDoes not compile: 2 errors.")
    assert "line 6: StringJoin has no kernel." in text
    assert "✗    6" in text
    assert "memory" not in text
    assert text_of(made.UNKNOWN) == (
        "TPU v6e-8 · 8 replicas\nNot known whether it compiles: the compiler crashed."
    )


def test_an_error_in_a_cell_has_the_cells_line() -> None:
    """A check names no file if it has only a cell."""
    problem = Problem("float64", "No.", "Yes.", 6)
    rows = lines(dataclasses.replace(made.REFUSED, errors=(problem,))).rows
    assert [row.line for row in rows] == list(range(2, 10))
    assert [row.line for row in rows if row.problem] == [6]


def test_file_names_do_not_depend_on_the_run() -> None:
    code = (
        CodeLine(SourceLine("/tmp/ipykernel_4711/99.py", 1), "a"),
        CodeLine(SourceLine("/home/somebody/model.py", 7), "b"),
    )
    program = dataclasses.replace(made.FITS, lines=code, time=None)
    assert [row.file for row in lines(program).rows[:2]] == ["", "model.py"]
    assert "4711" not in str(program._repr_mimebundle_())
    assert "somebody" not in str(program._repr_mimebundle_())


def test_every_text_is_escaped() -> None:
    html = html_of(made.hostile())
    assert not any("<img" in picture for picture in images(html))
    html = without_pictures(html)
    tags = Tags(html)
    assert tags.names <= {
        *("div", "span", "table", "thead", "tbody", "tr", "th", "td"),
        *("details", "summary", "b", "wbr"),
    }
    assert tags.attributes <= {
        *("style", "open", "role", "aria-label", "tabindex", "title"),
        *("data-program", "data-value", "data-code", "data-line"),
    }
    assert html.count("&lt;img src=x onerror") > 10
    programs = TpuPrograms([made.hostile(), made.hostile()])
    assert "<img" not in without_pictures(programs._repr_html_())
    bell = dataclasses.replace(made.FITS, notes=("\x1b[2Jgone",))
    assert "\x1b" not in text_of(bell)
    assert "\\x1b[2Jgone" in text_of(bell)


def test_huge_programs_are_truncated_with_a_note() -> None:
    program = made.huge()
    table = lines(program)
    assert len(table.rows) == 80
    assert table.omitted == 19_999 - 80
    html, text = html_of(program), text_of(program)
    assert len(html) < 225_000
    assert "and 19,919 more" in html
    assert "80 of 19,999 lines" in html
    assert "30 of 5000 rows" in html
    assert "and 19,939 more" in text
    assert "and 4992 more" in text


def test_the_largest_rows_are_shown_and_the_rest_can_be_opened() -> None:
    """A table of a few rows is shown completely."""
    html = html_of(made.huge(40, 11))
    shown, _, rest = html.partition("All 39 lines")
    assert shown.count("data-code") == 10
    assert rest.count("data-code") == 39
    assert rest.count("rows</summary>") == html.count("All 11 rows") == 0
    assert "All " not in html_of(made.FITS)


def test_lines_without_costs_are_not_among_the_largest() -> None:
    code = tuple(
        CodeLine(SourceLine(made.CELL, number), f"x = {number}") for number in range(2, 30)
    )
    html = html_of(dataclasses.replace(made.FITS, lines=code))
    heaviest = html.partition("All 28 lines")[0]
    assert re.findall(r'data-code="(\d+)"', heaviest) == ["4", "6", "8", "9"]


def test_drawing_huge_programs_takes_few_calls() -> None:
    """Twice as many lines need about twice the calls, and few calls for each line."""
    small, large = (made.huge(lines, 500) for lines in (4_000, 8_000))
    few, many = (calls(lambda it=it: html_of(it)) for it in (small, large))
    assert many < 2.2 * few
    assert many < 40 * 8_000


def test_truncation_keeps_the_most_expensive_lines() -> None:
    program = made.huge(1_000, 10)
    assert program.time is not None
    heavy = [
        dataclasses.replace(share, fraction=0.4) if index in (700, 900) else share
        for index, share in enumerate(program.time.by_line)
    ]
    time = dataclasses.replace(program.time, by_line=tuple(heavy))
    rows = lines(dataclasses.replace(program, time=time)).rows
    shown_lines = [row.line or 0 for row in rows]
    assert shown_lines == sorted(shown_lines)
    assert {701, 901} <= set(shown_lines)
    assert "\n   901  " in text_of(dataclasses.replace(program, time=time))


TYPES = """\
TPU    cores  fits       memory a core         largest batch  time a call       examples/s a core
v3-8   8      yes        3.4 GiB of 15.48 GiB                 110 ms to 174 ms  925
v2-8   8      no         9.1 GiB of 7.48 GiB   832
v5e-8  8      no
v6e-8  8      not known
v2-8: It needs 9.1 GiB of a core's 7.48 GiB.
v5e-8: StringJoin has no kernel."""


def test_the_table_of_types() -> None:
    programs = TpuPrograms([made.FITS, made.TOO_LARGE, made.REFUSED, made.UNKNOWN])
    assert str(programs) == TYPES
    tags = Tags(programs._repr_html_())
    assert " ".join(tags.words).count("not known") == 1
    assert sum(tag == "summary" for tag, _ in tags.found) > 4
    assert "time a call" not in programs_text([made.UNTIMED, made.TOO_LARGE])


def test_a_single_type_is_shown_like_a_program() -> None:
    assert str(TpuPrograms([made.FITS])) == str(made.FITS)


def test_programs_have_displays() -> None:
    assert repr(made.FITS) == f"<TpuProgram {made.FITS.headline}>"
    assert made.FITS._repr_mimebundle_()["text/html"] == made.FITS._repr_html_()
    json.dumps(made.FITS._repr_mimebundle_())


def test_a_note_keeps_its_lines() -> None:
    html = programs_html([dataclasses.replace(made.FITS, notes=("first\nsecond",))])
    assert re.search(r'<div style="[^"]*white-space:pre-line[^"]*">first\nsecond</div>', html)
