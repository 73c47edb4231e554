"""The time of products, loops and copies, against manual calculations and published times."""

from __future__ import annotations

import pytest

from tpunb.compiler.ask.answers import Compiled
from tpunb.compiler.ask.topologies import target
from tpunb.compiler.read.costs import cost_of
from tpunb.compiler.read.hlo import parse
from tpunb.compiler.read.runs import Runs
from tpunb.compiler.read.step_time import step_time
from tpunb.errors.code_problems import SourceLine
from tpunb.tpu.compiled_program import StepTime

pytestmark = pytest.mark.tensorflow  # the package's `__init__` imports `compile`

PROGRAM = """\
HloModule tiles, is_scheduled=true

%swish (x: bf16[4096,8192], w: bf16[8192,8192]) -> bf16[4096,8192] {
  %x = bf16[4096,8192]{1,0:T(8,128)(2,1)} parameter(0)
  %w = bf16[8192,8192]{1,0:T(8,128)(2,1)} parameter(1)
  %product = f32[4096,8192]{1,0:T(8,128)} convolution(%x, %w), dim_labels=bf_io->bf
  %gate = f32[4096,8192]{1,0:T(8,128)} logistic(%product)
  ROOT %result = bf16[4096,8192]{1,0:T(8,128)(2,1)} multiply(%product, %gate)
}

%plain (x: bf16[4096,8192], w: bf16[8192,8192]) -> bf16[4096,8192] {
  %x = bf16[4096,8192]{1,0:T(8,128)(2,1)} parameter(0)
  %w = bf16[8192,8192]{1,0:T(8,128)(2,1)} parameter(1)
  ROOT %product = bf16[4096,8192]{1,0:T(8,128)(2,1)} convolution(%x, %w), dim_labels=bf_io->bf
}

%gates (x: bf16[4096,8192]) -> bf16[4096,8192] {
  %x = bf16[4096,8192]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %gate = bf16[4096,8192]{1,0:T(8,128)(2,1)} logistic(%x)
}

ENTRY %main (x: bf16[4096,8192], w: bf16[8192,8192]) -> bf16[4096,8192] {
  %x = bf16[4096,8192]{1,0:T(8,128)(2,1)} parameter(0)
  %w = bf16[8192,8192]{1,0:T(8,128)(2,1)} parameter(1)
  %start = (bf16[4096,8192]{1,0:T(8,128)(2,1)S(1)}, bf16[4096,8192]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}) copy-start(%x)
  %activated = bf16[4096,8192]{1,0:T(8,128)(2,1)} fusion(%x, %w), kind=kOutput, calls=%swish, backend_config={"estimated_cycles":"1196704"}
  %multiplied = bf16[4096,8192]{1,0:T(8,128)(2,1)} fusion(%x, %w), kind=kOutput, calls=%plain, backend_config={"estimated_cycles":"1196704"}
  %slow = bf16[4096,8192]{1,0:T(8,128)(2,1)} fusion(%x, %w), kind=kOutput, calls=%plain, backend_config={"estimated_cycles":"2500000"}
  %near = bf16[4096,8192]{1,0:T(8,128)(2,1)S(1)} copy-done(%start)
  %sum = bf16[4096,8192]{1,0:T(8,128)(2,1)} add(%x, %x), backend_config={"estimated_cycles":"600000"}
  %gated = bf16[4096,8192]{1,0:T(8,128)(2,1)} fusion(%x), kind=kLoop, calls=%gates, backend_config={"estimated_cycles":"600000"}
  %turned = bf16[4096,8192]{0,1:T(8,128)(2,1)} copy(%x), backend_config={"estimated_cycles":"600000"}
  %inside = bf16[4096,8192]{1,0:T(8,128)(2,1)S(1)} add(%near, %near), backend_config={"estimated_cycles":"600000"}
  ROOT %last = bf16[4096,8192]{1,0:T(8,128)(2,1)} add(%sum, %gated), backend_config={"estimated_cycles":"600000"}
}
"""
ARRAY = 2 * 4096 * 8192
"""The bytes of an activation."""


def seconds(name: str, tpu: str = "v6e-1") -> tuple[float, float]:
    module = parse(PROGRAM)
    cost = cost_of(module.entry.by_name[name], module.entry, module, target(tpu, None))
    return cost.least, cost.most


def test_a_function_after_a_product_hides_behind_it() -> None:
    """Both were published: 0.78 to 0.85 ms with a swish, 0.80 ms without."""
    least, most = seconds("activated")
    assert seconds("multiplied") == (least, most)
    at_peak = 2 * 4096 * 8192 * 8192 / 918e12
    assert least == pytest.approx(0.87 * at_peak / 0.78)
    assert most == pytest.approx(1.1 * at_peak / 0.78)


def test_a_product_takes_the_compilers_cycles_if_they_are_more() -> None:
    least, most = seconds("slow")
    assert least == pytest.approx(2.5e6 / 1.75e9 / 1.3)
    assert most == pytest.approx(1.1 * 2.5e6 / 1.75e9)


def test_memory_limits_a_loop_and_not_its_cycles() -> None:
    memory = 3 * ARRAY / 1640e9 / 0.8
    least, most = seconds("sum")
    assert least == pytest.approx(0.87 * memory)
    assert most == pytest.approx(1.3 * memory)
    assert seconds("turned")[1] == pytest.approx(2.2 * 2 / 3 * memory)


def test_the_cycles_of_a_loop_count_on_old_families() -> None:
    cycles = 6e5 / 940e6
    assert seconds("sum", "v3-8")[1] == pytest.approx(cycles)
    memory = 2 * ARRAY / 450e9 / 0.9
    assert seconds("gated", "v3-8")[1] == pytest.approx(cycles + memory)


def test_a_loop_in_a_cores_own_memory_takes_a_cycle_for_some_registers() -> None:
    registers = 3 * ARRAY / 4096 / 1.75e9
    assert seconds("inside") == pytest.approx((0.85 * registers, 4.5 * registers))


class Nowhere:
    """Origins of a program that has no lines."""

    def places(self, _: str) -> tuple[SourceLine, ...]:
        return ()

    def line(self, _: str) -> None:
        return None

    def layer(self, _: str) -> str:
        return ""

    def operation(self, _: str) -> str:
        return ""


def time_of(text: str) -> StepTime:
    compiled = Compiled(0, 0, 0, 0, 0, "", bounded=False)
    module = parse(text)
    return step_time(compiled, module, Runs(module), Nowhere(), target("v6e-1", None))


def test_the_higher_estimate_adds_copies_in_the_background() -> None:
    copied = 1.05 * ARRAY / 1640e9 / 0.8
    without = time_of(PROGRAM.replace("copy-start(%x)", "bitcast(%x)"))
    assert time_of(PROGRAM).high - without.high == pytest.approx(copied)
    assert time_of(PROGRAM).low == without.low, "hidden behind products"


def test_the_sparse_cores_read_and_write_their_result() -> None:
    offloaded = """\
HloModule offloaded, is_scheduled=true

%offload (w: bf16[4096,8192]) -> bf16[4096,8192] {
  %w = bf16[4096,8192]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %rows = bf16[4096,8192]{1,0:T(8,128)(2,1)} gather(%w)
}

ENTRY %main (w: bf16[4096,8192]) -> bf16[4096,8192] {
  %w = bf16[4096,8192]{1,0:T(8,128)(2,1)} parameter(0)
  %start = ((), (), (s32[0]{0})) async-start(), async_execution_thread="sparsecore", calls=%offload
  %update = ((bf16[4096,8192]{1,0:T(8,128)(2,1)}), bf16[4096,8192]{1,0:T(8,128)(2,1)}) async-update(%start, %w)
  ROOT %rows = bf16[4096,8192]{1,0:T(8,128)(2,1)} async-done(%update)
}
"""
    time = time_of(offloaded)
    assert time.low == pytest.approx(2 * ARRAY / 1640e9 / 0.8 / 1.05), "nothing hides it"
    assert any("SparseCores" in text for text in time.not_counted)


def test_a_copy_that_nothing_hides_takes_its_time() -> None:
    fetched = """\
HloModule fetched, is_scheduled=true

ENTRY %main (w: bf16[4096,8192]) -> bf16[4096,8192] {
  %w = bf16[4096,8192]{1,0:T(8,128)(2,1)} parameter(0)
  %start = (bf16[4096,8192]{1,0:T(8,128)(2,1)S(1)}, bf16[4096,8192]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}) copy-start(%w)
  ROOT %near = bf16[4096,8192]{1,0:T(8,128)(2,1)S(1)} copy-done(%start)
}
"""
    assert time_of(fetched).low == pytest.approx(ARRAY / 1640e9 / 0.8 / 1.05)
