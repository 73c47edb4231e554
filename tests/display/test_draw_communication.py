"""The communication of compiled programs, as text and HTML."""

from __future__ import annotations

import dataclasses
import re

import pytest
from support import programs as made

from tpunb.display.draw.programs.communication import (
    along_phrase,
    communication_html,
    summary,
    transfer_name,
)
from tpunb.display.draw.programs.html import programs_html
from tpunb.display.draw.programs.text import programs_text
from tpunb.tpu.compiled_program import Communication, CoreGroups, MeshAxis, Transfer

TEXT = """\
  collectives
  ▎             3%     4 ms     8 MiB  2 × all-gather of 1 MiB, 16 runs · along data · line 6
  ▏             2%     2 ms     1 MiB  reduce-scatter of 256 KiB · along model · line 8
  ▏             1%     1 ms       7 B  all-reduce of 4 B, 0.5 runs · along data and model
  ▏             1%     1 ms     1 MiB  all-to-all of 1 MiB · cores not known · line 4
  along data: (0, 0) (1, 0) (2, 0) (3, 0)  (0, 1) (1, 1) (2, 1) (3, 1)
  along model: (0, 0) (0, 1)  (1, 0) (1, 1)  (2, 0) (2, 1)  (3, 0) (3, 1)
"""


def test_each_collective_has_a_line_of_text() -> None:
    assert TEXT in programs_text([made.COMMUNICATING])


def test_the_summary_adds_up() -> None:
    text = "5 collectives send 10 MiB from each core in a call: about 8 ms, 6% of the step."
    assert summary(made.COMMUNICATION) == text
    assert text in programs_html([made.COMMUNICATING])
    transfer = dataclasses.replace(made.COMMUNICATION.transfers[0], count=1, fraction=None)
    single = dataclasses.replace(made.COMMUNICATION, transfers=(transfer,))
    assert summary(single) == (
        "1 collective sends 8 MiB from each core in a call: about 4 ms on the links."
    )


def test_each_way_of_grouping_has_a_picture() -> None:
    html = communication_html(made.COMMUNICATION)
    assert html.count('role="img"') == 3  # not for cores that are not known
    assert html.index("along data</b>") < html.index("along model</b>")
    assert "cores not known</b>" in html
    assert re.search('title="core 5: data 2, model 1"[^>]*>\\(2, 1\\)<', html)
    assert "↓ data 4  → model 2" in html


def colours(html: str) -> list[str]:
    return re.findall(r"background:(#\w+);border", html)


def test_cores_of_a_group_have_a_colour() -> None:
    one = dataclasses.replace(made.COMMUNICATION, transfers=made.COMMUNICATION.transfers[1:2])
    found = colours(communication_html(one))
    assert found[0] == found[1] != found[2] == found[3]
    assert len(set(found)) == 4


@pytest.mark.parametrize(
    ("group", "phrase"),
    [
        (CoreGroups((), ()), "all 8 cores"),
        (CoreGroups(((0, 1), (2, 3))), "groups of 2 cores"),
        (CoreGroups(((0, 1), (2, 3, 4))), "groups of up to 3 cores"),
        (CoreGroups((), ("x", "y", "z")), "along x, y and z"),
        (CoreGroups(known=False), "cores not known"),
    ],
)
def test_phrases(group: CoreGroups, phrase: str) -> None:
    assert along_phrase(made.COMMUNICATION, group) == phrase


def test_cores_without_a_mesh_are_in_rows() -> None:
    found = Communication((), 20, (CoreGroups(((0, 19),)),), (Transfer("all-reduce", 4, 4, 0),))
    html = communication_html(found)
    assert html.count("<tr") == 3
    assert html.count("<td") == 20
    assert html.count("dotted") == 18
    assert 'title="core 19"' in html


def test_a_large_mesh_is_cut() -> None:
    mesh = (MeshAxis("x", 64), MeshAxis("y", 32))
    found = Communication(mesh, 2048, (CoreGroups(),), (Transfer("all-reduce", 4, 4, 0),))
    html = communication_html(found)
    assert html.count("<td") == 256
    assert "and 1792 more" in html


def test_names_of_runs() -> None:
    assert transfer_name(Transfer("all-reduce", 4, 4, 0)) == "all-reduce of 4 B"
    assert transfer_name(Transfer("all-reduce", 4, 4, 0, 3, 3.0)) == "3 × all-reduce of 4 B"
    assert transfer_name(Transfer("all-reduce", 4, 4, 0, 1, 1.5)) == "all-reduce of 4 B, 1.5 runs"
