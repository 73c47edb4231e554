"""The costs of collectives, gathers, scatters and sorts, against manual calculations."""

from __future__ import annotations

from typing import Any

import pytest

from tpunb.compiler.ask.topologies import Target, target
from tpunb.compiler.read.costs import Cost, cost_of, link_bytes, link_seconds
from tpunb.compiler.read.hlo import is_depthwise, parse

pytestmark = pytest.mark.tensorflow  # the package's `__init__` imports `compile`

PROGRAM = """\
HloModule rows, is_scheduled=true

%gathered (t: f32[4096,256], i: s32[1024]) -> f32[1024,256] {
  %t = f32[4096,256]{1,0:T(8,128)} parameter(0)
  %i = s32[1024]{0:T(1024)} parameter(1)
  ROOT %rows = f32[1024,256]{1,0:T(8,128)} gather(%t, %i), offset_dims={1}, slice_sizes={1,256}
}

ENTRY %main (t: f32[4096,256], i: s32[1024], x: f32[65536]) -> (f32[1024,256], f32[1024]) {
  %t = f32[4096,256]{1,0:T(8,128)} parameter(0)
  %i = s32[1024]{0:T(1024)} parameter(1)
  %x = f32[65536]{0:T(1024)} parameter(2)
  %lookup = f32[1024,256]{1,0:T(8,128)} fusion(%t, %i), kind=kCustom, calls=%gathered
  %numbers = f32[1024]{0:T(1024)} gather(%x, %i), offset_dims={}, slice_sizes={1}
  %added = f32[4096,256]{1,0:T(8,128)} scatter(%t, %i, %lookup), update_window_dims={1}, inserted_window_dims={0}
  %sorted = f32[65536]{0:T(1024)} sort(%x), dimensions={0}, to_apply=%compare
  %sum = f32[65536]{0:T(1024)} add(%x, %x)
  ROOT %result = (f32[1024,256]{1,0}, f32[1024]{0}) tuple(%lookup, %numbers)
}
"""


def cost(name: str, tpu: str = "v5e-8") -> Cost:
    module = parse(PROGRAM)
    return cost_of(module.entry.by_name[name], module.entry, module, target(tpu, None))


def test_a_fused_gather_costs_its_rows_and_not_its_table() -> None:
    costs = cost("lookup")
    assert costs.modelled == {"gathers"}
    # Read and written: 1024 rows, in 2 pieces of 512 bytes.
    assert costs.bytes == 2 * 1024 * 2 * 512
    assert costs.least == pytest.approx(1024 * (4.6 + 1.3) / 1.5e9)
    assert costs.most == pytest.approx(costs.least + costs.bytes / 819e9)


def test_each_number_is_gathered_as_a_row() -> None:
    costs, old = cost("numbers"), cost("numbers", "v3-8")
    assert costs.bytes == old.bytes == 1024 * 512 + 1024 * 4
    assert costs.least == pytest.approx(1024 * 9.3 / 1.5e9)
    assert old.least == pytest.approx(1024 * 12.6 / 940e6)


def test_a_scatter_reads_and_writes_its_whole_table() -> None:
    costs = cost("added")
    assert costs.modelled == {"scatters"}
    assert costs.bytes == 2 * 4096 * 1024 + 1024 * 1024
    assert costs.least == pytest.approx(costs.bytes / 819e9), "memory takes longest"
    assert costs.most == pytest.approx(costs.least + 1024 * (6.6 + 1.5) / 1.5e9)


def test_a_sort_is_a_network() -> None:
    costs = cost("sorted")
    memory = 2 * 65536 * 4 / 819e9
    # 16 doublings: 136 steps over 64 registers.
    least, most = costs.least, costs.most - memory
    assert least * most == pytest.approx((14 * 136 * 64 / 1.5e9) ** 2)
    assert most > least > memory


def test_operations_without_a_model_cost_their_memory_traffic() -> None:
    costs = cost("sum")
    assert not costs.modelled
    memory = 3 * 65536 * 4 / 819e9
    assert costs.least == pytest.approx(memory)
    assert costs.most == pytest.approx(1.3 * memory / 0.9)


def test_a_ring_sends_its_data_twice() -> None:
    assert link_bytes("all-reduce", 1000, 4) == 1500
    assert link_bytes("all-gather", 1000, 4) == 750
    assert link_bytes("reduce-scatter", 1000, 4) == 3000
    assert link_bytes("collective-permute", 1000, 4) == 1000
    assert link_bytes("all-reduce", 1000, 1) == 0


def test_links_of_more_axes_carry_more() -> None:
    size = 2**30
    (small, taking_turns), (large, most) = (
        link_seconds("all-reduce", size, None, target(name, None)) for name in ("v5e-8", "v5e-256")
    )
    # 2 open axes, and 2 closed axes: twice the links for almost the same bytes.
    assert most == large < 0.7 * small
    assert taking_turns == pytest.approx(2 * small, rel=0.01)
    assert max(link_seconds("all-reduce", size, None, target("v5e-1", None))) < 1e-5


def test_partitions_of_a_replica_use_links() -> None:
    seconds = link_seconds("all-gather", 2**30, None, target("v5e-8", None))
    assert (
        link_seconds("all-gather", 2**30, None, Target(target("v5e-8", None).tpu, 1, 8)) == seconds
    )


@pytest.mark.parametrize(
    ("tpu", "size", "measured"),
    [
        ("v5p-8", 2**20, 16.94e-6),
        ("v5p-8", 64 * 2**20, 781.98e-6),
        ("v6e-8", 2**20, 17.45e-6),
        ("v6e-8", 64 * 2**20, 776.34e-6),
    ],
)
def test_a_permutation_takes_the_measured_time(tpu: str, size: int, measured: float) -> None:
    """Measurements published for JAX: marin-community/marin, issue 6736."""
    costs = link_seconds("collective-permute", size, None, target(tpu, None))
    assert costs == pytest.approx((measured, measured), rel=0.1)


@pytest.mark.parametrize(
    ("labels", "sizes", "depthwise"),
    [
        ("b01f_01io->b01f, feature_group_count=480", "16,64,64,480", True),
        ("f01b_i01o->01bf, batch_group_count=480", "5,5,1,480", True),
        ("b01f_01io->b01f, feature_group_count=32", "16,64,64,256", False),
        ("b01f_01io->b01f", "16,64,64,4", False),
    ],
)
def test_a_convolution_of_narrow_groups_runs_on_the_vector_unit(
    labels: str, sizes: str, depthwise: bool
) -> None:
    text = PROGRAM.replace(
        "ROOT %result",
        f"%conv = f32[{sizes}]{{3,2,1,0}} convolution(%x, %x), dim_labels={labels}\n  ROOT %result",
    )
    assert is_depthwise(parse(text).entry.by_name["conv"]) is depthwise


@pytest.mark.usefixtures("libtpu")
def test_the_vector_unit_sets_a_lower_bound() -> None:
    import tensorflow as tf

    from tpunb.compiler.compile import compile  # noqa: A004

    def fn(x: Any, w: Any) -> Any:
        return tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME")

    specs = tf.TensorSpec([16, 64, 64, 480]), tf.TensorSpec([5, 5, 480, 1])
    time = compile(fn, *specs, tpu="v3-8", speed=True).time
    assert time is not None
    # The matrix unit and memory alone would take 0.6 ms. 25 products a number on 1024 lanes take
    # 0.8 ms.
    products, memory = 25 * 16 * 64 * 64 * 480 / 1024 / 940e6, 2 * 4 * 16 * 64 * 64 * 480 / 450e9
    assert products < time.low < time.high < 2 * (products + 2 * memory)


@pytest.mark.usefixtures("libtpu")
def test_a_gathers_time_does_not_depend_on_the_tables_size() -> None:
    import tensorflow as tf

    from tpunb.compiler.compile import compile  # noqa: A004

    rows = 2**16
    times = []
    for size in (2**16, 2**20):
        table, ids = tf.TensorSpec([size, 128]), tf.TensorSpec([rows], tf.int32)
        program = compile(tf.gather, table, ids, tpu="v3-8", speed=True)
        assert program.time is not None
        assert any("gathers" in text for text in program.time.not_counted)
        times.append(program.time)
    assert times[0].estimate == pytest.approx(times[1].estimate, rel=0.1)
    # The scalar unit starts a copy for each row. The time is at least the memory's, and at most
    # twice the sum.
    memory = 2 * rows * 512 / 450e9
    assert memory < times[1].low <= times[1].high < 2 * (memory + rows * 8.7 / 940e6)


@pytest.mark.usefixtures("libtpu")
def test_a_gather_on_sparse_cores_has_a_time() -> None:
    """The client cannot read such a program: libtpu writes it to a file."""
    import tensorflow as tf

    from tpunb.compiler.compile import compile  # noqa: A004

    rows, width = 2**14, 2**14
    table, ids = tf.TensorSpec([rows, width], tf.bfloat16), tf.TensorSpec([rows], tf.int32)
    program = compile(tf.gather, table, ids, tpu="v6e-1", speed=True)
    assert program.text
    assert program.memory is not None
    assert program.memory.largest
    time = program.time
    assert time is not None
    assert any("SparseCores" in text for text in time.not_counted)
    moved = 2 * 2 * rows * width / 1640e9
    assert moved / 1.06 < time.low < time.high - time.start < 2 * moved
