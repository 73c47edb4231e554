"""The time of kernels from their schedules, against manual calculations and the compiler."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tpunb.compiler.ask.answers import Compiled, Schedule
from tpunb.compiler.ask.topologies import target
from tpunb.compiler.read.hlo import parse
from tpunb.compiler.read.runs import Runs
from tpunb.compiler.read.scheduled_time import is_understood, seconds_of
from tpunb.compiler.read.step_time import step_time
from tpunb.tpu.compiled_program import StepTime

pytestmark = pytest.mark.tensorflow  # the package's `__init__` imports `compile`

V6E = target("v6e-1", None)
WRITTEN = 2 * 8192**2
PRODUCTS = {
    # The schedules of the known product by libtpu 0.0.52.
    "v6e-1": Schedule((138437,) * 2, (142606336,) * 2, 0, 26, "MATMUL", 130248, 130248, 336),
    "v5e-1": Schedule((391237,) * 2, (142606336,) * 2, 0, 50, "MATMUL", 381060, 381060, 12384),
}


@pytest.mark.parametrize("tpu", PRODUCTS)
def test_the_known_product_is_understood(tpu: str) -> None:
    assert is_understood({"fusion": PRODUCTS[tpu]}, target(tpu, None))


@pytest.mark.parametrize(
    "wrong",
    [
        {"cycles": (1000, 1000)},
        {"cycles": (400_000, 400_000)},
        {"cycles": (138437, 500_000)},
        {"bytes": (WRITTEN // 16, WRITTEN // 16)},
        {"bytes": (142606336, 242606336)},
        {"steps": 0},
        {"matmul": 10.0},
        {"unit": "VALU"},
    ],
)
def test_another_schedule_of_it_is_not_understood(wrong: dict[str, Any]) -> None:
    assert not is_understood({"fusion": replace(PRODUCTS["v6e-1"], **wrong)}, V6E)


def test_a_product_without_a_schedule_is_not_understood() -> None:
    assert not is_understood({}, V6E)
    assert not is_understood({"fusion": PRODUCTS["v6e-1"]}, target("v5p-8", None))


def middle(schedule: Schedule, flops: float = 0.0) -> float:
    least, most = seconds_of(schedule, flops, V6E)
    return (least * most) ** 0.5


def test_the_slowest_of_cycles_products_and_copies_decides() -> None:
    cycles = Schedule((1_750_000,) * 2, (10**6,) * 2, 0, 0, "VALU", 1e6, 0, 0)
    assert middle(cycles) == pytest.approx(1e-3, rel=0.1)
    assert middle(cycles, flops=2 * 918e9) == pytest.approx(2e-3, rel=0.1)
    copies = replace(cycles, bytes=(3_280_000_000,) * 2)
    assert 2e-3 < middle(copies) < 2.6e-3
    assert middle(copies) < middle(replace(copies, strided=3_280_000_000))
    assert middle(replace(cycles, steps=10_000)) > middle(cycles) + 1e-3


def test_what_data_decides_widens_the_range() -> None:
    known = Schedule((1_750_000,) * 2, (10**6,) * 2, 0, 0, "VALU", 1e6, 0, 0)
    low, high = seconds_of(known, 0, V6E)
    wider = seconds_of(replace(known, cycles=(1_750_000, 3_500_000)), 0, V6E)
    assert wider == (low, pytest.approx(2 * high))


PROGRAM = """\
HloModule sine, is_scheduled=true

ENTRY %main (x: f32[8192,8192]) -> f32[8192,8192] {
  %x = f32[8192,8192]{1,0:T(8,128)} parameter(0)
  ROOT %sine = f32[8192,8192]{1,0:T(8,128)} sine(%x), metadata={op_name="sin"}
}
"""
SINE = Schedule((3_500_000,) * 2, (2**29, 2**29), 0, 0, "VALU", 2_800_000, 0, 700_000)


class Places:
    """A program's only line."""

    def line(self, node: str) -> None:
        return None

    def layer(self, node: str) -> str:
        return node

    operation = layer


def time_of(product: dict[str, Schedule], schedule: dict[str, Schedule]) -> StepTime:
    compiled = Compiled(0, 0, 0, 0, 0, PROGRAM, False, None, schedule, product)
    module = parse(PROGRAM)
    origins: Any = Places()
    return step_time(compiled, module, Runs(module), origins, V6E)


def test_an_answer_says_where_its_time_comes_from() -> None:
    known, sine = {"fusion": PRODUCTS["v6e-1"]}, {"sine": SINE}
    scheduled, estimated = time_of(known, sine), time_of({}, sine)
    assert scheduled.source == "from the compiler's schedule"
    assert scheduled.estimate == pytest.approx(2e-3, rel=0.1)
    assert estimated.source == time_of(known, {}).source == "estimated"
    assert estimated.estimate == time_of(known, {}).estimate


def test_a_layer_names_its_fullest_unit() -> None:
    (layer,) = time_of({"fusion": PRODUCTS["v6e-1"]}, {"sine": SINE}).by_layer
    assert layer.limit.startswith("VALU 7")
    assert "spills" in layer.limit
    assert layer.bytes == layer.needed == 2**29
    (layer,) = time_of({}, {"sine": SINE}).by_layer
    assert not layer.limit
