"""The widget of compiled programs, in the kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import programs as made

from tpunb.compiler.program import TpuPrograms
from tpunb.display.describe.topology_description import describe_accelerator, with_program
from tpunb.display.draw.topology.text import topology_text
from tpunb.display.widgets.programs import ProgramsWidget
from tpunb.display.widgets.topology import TopologyWidget
from tpunb.tpu.types import accelerator


def test_the_live_form_equals_the_saved_form() -> None:
    several = TpuPrograms(made.ALL)
    assert ProgramsWidget(several).html == several._repr_html_()
    assert ProgramsWidget(made.FITS).html == made.FITS._repr_html_()


def test_an_update_shows_another_program() -> None:
    widget = ProgramsWidget(TpuPrograms(made.ALL))
    assert widget.update(made.FITS)
    assert widget.html == made.FITS._repr_html_()


def test_the_static_form_equals_the_programs_display() -> None:
    assert ProgramsWidget(made.FITS).static_bundle() == made.FITS._repr_mimebundle_()
    assert repr(ProgramsWidget(made.FITS)) == str(made.FITS)


def test_other_values_are_refused() -> None:
    with pytest.raises(TypeError, match="not a dict"):
        ProgramsWidget({})


def test_a_topology_with_a_program() -> None:
    topology = describe_accelerator(accelerator("v3-8"))
    assert with_program(topology, None) == topology
    assert with_program(topology, made.TOO_LARGE) == topology, "the program is for another type"
    topology_shown = with_program(topology, TpuPrograms([made.TOO_LARGE, made.FITS]))
    line = "the compiled program needs 3.4 GiB of 15.48 GiB usable a core"
    assert line in topology_text(topology_shown).splitlines()
    widget = TopologyWidget(topology)
    assert widget.colour == "host"
    widget.update(topology_shown)
    assert widget.colour == "program"
    assert line in widget.html
    too_much = replace(topology_shown, needed_bytes=16 * made.GIB)
    assert f"{line.replace('3.4', '16')}: 532.5 MiB too much" in topology_text(too_much)
