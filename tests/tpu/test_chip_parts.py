"""The parts of a chip, from the families' figures."""

from __future__ import annotations

import pytest

from tpunb.errors import TpunbError
from tpunb.tpu.chip_parts import chip_of
from tpunb.tpu.families import GIB
from tpunb.tpu.types import accelerator

# TensorCores, cores that a program sees, matrix units of a TensorCore, TFLOP/s, GiB, GB/s, links
# and GB/s of a link of a chip, as the pages of each generation in the Cloud TPU documentation
# have them: of v5e, "four matrix-multiply units" and 400 GB/s in both directions of 4 links.
CHIPS = {
    "v2-8": (2, 2, 1, 46, 16, 700, 4, 62),
    "v3-8": (2, 2, 2, 123, 32, 900, 4, 82),
    "v4-8": (2, 1, 4, 275, 32, 1200, 6, 50),
    "v5e-8": (1, 1, 4, 197, 16, 819, 4, 50),
    "v5p-8": (2, 1, 4, 459, 95, 2765, 6, 100),
    "v6e-8": (1, 1, 2, 918, 32, 1640, 4, 100),
    "tpu7x-8": (2, 2, 0, 2307, 192, 7380, 6, 100),
}


@pytest.mark.parametrize("name", CHIPS)
def test_a_chip_has_the_documented_figures(name: str) -> None:
    chip = chip_of(accelerator(name))
    figures = (
        chip.tensor_cores,
        chip.devices,
        chip.matrix_units,
        round(chip.tensor_cores * chip.flops / 1e12),
        chip.hbm_bytes // GIB,
        round(chip.hbm_bandwidth / 1e9),
        chip.links,
        round(chip.link_bandwidth / 1e9),
    )
    assert figures == CHIPS[name]


def test_a_number_of_cores_has_no_known_chip() -> None:
    with pytest.raises(TpunbError, match="not known") as refused:
        chip_of(accelerator(8))
    assert "v5e-8" in refused.value.fix
