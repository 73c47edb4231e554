"""The widget of compiled programs, as the kernel sees it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support import programs as made

from tpunb.compiler.program import TpuPrograms
from tpunb.display.describe.topology_description import describe_accelerator, with_program
from tpunb.display.draw.topology_text import topology_text
from tpunb.display.widgets.programs import ProgramsWidget
from tpunb.display.widgets.topology import TopologyWidget
from tpunb.tpu.types import accelerator


def test_the_front_end_gets_text_and_fractions() -> None:
    content = ProgramsWidget(made.FITS).content
    json.dumps(content)
    (program,) = content["programs"]
    line = program["tables"]["lines"]["rows"][2]
    assert (line["line"], line["share"], line["fraction"]) == (4, "46%", 0.46)
    assert content["types"] == []
    assert len(ProgramsWidget(TpuPrograms(made.ALL)).content["types"]) == len(made.ALL)


def test_what_goes_to_the_front_end_is_bounded() -> None:
    assert len(json.dumps(ProgramsWidget(made.huge()).content)) < 250_000


def test_an_update_keeps_what_was_chosen() -> None:
    widget = ProgramsWidget(TpuPrograms(made.ALL), chosen=2, view="padding", order="time")
    assert widget.update(TpuPrograms(made.ALL[:3]))
    assert (widget.chosen, widget.view, widget.order) == (2, "padding", "time")
    assert widget.update(made.FITS)
    assert widget.chosen == 0


def test_the_static_form_is_the_programs() -> None:
    assert ProgramsWidget(made.FITS).static_bundle() == made.FITS._repr_mimebundle_()
    assert repr(ProgramsWidget(made.FITS)) == str(made.FITS)


def test_other_values_are_refused() -> None:
    with pytest.raises(TypeError, match="not a dict"):
        ProgramsWidget({})


def test_a_topology_with_a_program() -> None:
    topology = describe_accelerator(accelerator("v3-8"))
    assert with_program(topology, None) == topology
    assert with_program(topology, made.TOO_LARGE) == topology, "of another type"
    shown = with_program(topology, TpuPrograms([made.TOO_LARGE, made.FITS]))
    line = "the compiled program needs 3.4 GiB of 15.48 GiB usable a core"
    assert line in topology_text(shown).splitlines()
    widget = TopologyWidget(topology)
    assert widget.colour == "host"
    widget.update(shown)
    assert widget.colour == "program"
    assert line in widget.header["facts"]
    too_much = replace(shown, needed_bytes=16 * made.GIB)
    assert f"{line.replace('3.4', '16')}: 532.5 MiB too much" in topology_text(too_much)
