"""The collectives of a program, read from texts as libtpu 0.0.52 writes them."""

from __future__ import annotations

import pytest

from tpunb.compiler.ask.libtpu import Prepared
from tpunb.compiler.ask.topologies import Target, target
from tpunb.compiler.read.collectives import collective_of, collectives_in, cores_of
from tpunb.compiler.read.communication import communication
from tpunb.compiler.read.core_groups import Groups
from tpunb.compiler.read.hlo import Module, parse
from tpunb.compiler.read.runs import Runs
from tpunb.errors.code_problems import SourceLine
from tpunb.tpu.compiled_program import StepTime
from tpunb.tpu.types import accelerator

STEP = """\
HloModule jit_step

%start (p.1: f32[8,64]) -> (f32[8,64], f32[32,64], u32[]) {
  %p.1 = f32[8,64]{1,0} parameter(0)
  %gather.1 = f32[32,64]{1,0} all-gather(%p.1), channel_id=3, replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}, use_global_device_ids=true, metadata={op_name="params[\\'w\\']"}, backend_config={"async_collective_fusion_config":{"flag_start":"-1"}}
  ROOT %call.1 = (f32[8,64]{1,0}, f32[32,64]{1,0}, u32[]) custom-call(%gather.1), custom_call_target="AsyncCollectiveStart"
}

%beside (p.2: f32[8,64], x.2: f32[64,32]) -> f32[64,64] {
  %p.2 = f32[8,64]{1,0} parameter(0)
  %x.2 = f32[64,32]{1,0} parameter(1)
  %gather.2 = f32[32,64]{1,0} all-gather(%p.2), channel_id=3, replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}, use_global_device_ids=true, metadata={op_name="params[\\'w\\']"}, backend_config={"async_collective_fusion_config":{"flag_start":"2"}}
  ROOT %product = f32[64,64]{1,0} convolution(%x.2, %gather.2), dim_labels=bf_io->bf, metadata={op_name="product"}
}

%end (p.3: f32[8,64]) -> f32[32,64] {
  %p.3 = f32[8,64]{1,0} parameter(0)
  %gather.3 = f32[32,64]{1,0} all-gather(%p.3), channel_id=3, replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}, use_global_device_ids=true, backend_config={"async_collective_fusion_config":{"flag_start":"2"}}
  ROOT %call.3 = f32[32,64]{1,0} custom-call(%gather.3), custom_call_target="AsyncCollectiveDone"
}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%all-reduce-scatter (p.4: f32[64,64]) -> f32[16,64] {
  %p.4 = f32[64,64]{1,0} parameter(0)
  %reduce = f32[64,64]{1,0} all-reduce(%p.4), channel_id=5, replica_groups={{0,2,4,6},{1,3,5,7}}, use_global_device_ids=true, to_apply=%add
  %zero = u32[] constant(0)
  ROOT %cut = f32[16,64]{1,0} dynamic-slice(%reduce, %zero, %zero), dynamic_slice_sizes={16,64}
}

%whole (p.5: f32[64,64]) -> f32[64,64] {
  %p.5 = f32[64,64]{1,0} parameter(0)
  ROOT %reduce.5 = f32[64,64]{1,0} all-reduce(%p.5), channel_id=7, replica_groups=mesh['x'=4,'y'=2] {'y'}, use_global_device_ids=true, to_apply=%add
}

ENTRY %main (w: f32[8,64], x: f32[64,32]) -> f32[64,64] {
  %w = f32[8,64]{1,0} parameter(0)
  %x = f32[64,32]{1,0} parameter(1)
  %started = (f32[8,64]{1,0}, f32[32,64]{1,0}, u32[]) fusion(%w), kind=kCustom, calls=%start, metadata={op_name="params[\\'w\\']"}
  %h = f32[64,64]{1,0} fusion(%w, %x), kind=kOutput, calls=%beside, metadata={op_name="product"}
  %gathered = f32[32,64]{1,0} fusion(%w), kind=kCustom, calls=%end
  %scattered = f32[16,64]{1,0} fusion(%h), kind=kCustom, calls=%all-reduce-scatter, metadata={op_name="slope"}
  ROOT %reduced = f32[64,64]{1,0} fusion(%h), kind=kCustom, calls=%whole, metadata={op_name="slope"}
}
"""


class Lines:
    """Lines of nodes: only `slope` has one."""

    def places(self, node: str) -> tuple[SourceLine, ...]:
        line = self.line(node)
        return () if line is None else (line,)

    def line(self, node: str) -> SourceLine | None:
        return SourceLine("step.py", 7) if node == "slope" else None

    def layer(self, node: str) -> str:
        return ""

    def operation(self, node: str) -> str:
        return ""


PREPARED = Prepared(Lines(), parameters=[("params['w']", False)], mesh=(("data", 4), ("model", 2)))


@pytest.fixture(scope="module")
def step() -> Module:
    return parse(STEP)


def test_a_collective_in_three_fusions_counts_once(step: Module) -> None:
    found = {
        each.name: None if (one := collective_of(each, step)) is None else one.kind
        for each in step.entry.instructions
        if each.opcode == "fusion"
    }
    assert found == {
        "started": "all-gather",
        "h": None,
        "gathered": None,
        "scattered": "reduce-scatter",
        "reduced": "all-reduce",
    }
    assert list(map(str, collectives_in(step, Runs(step)))) == [
        "1 all-reduce of 16 KiB",
        "1 all-gather of 8 KiB",
        "1 reduce-scatter of 4 KiB",
    ]


def test_each_collective_has_its_axis_line_and_argument(step: Module) -> None:
    wanted = target("v5e-8", 1, 8)
    found = communication(step, Runs(step), PREPARED, wanted, None)
    assert found is not None
    rows = [
        (each.kind, each.sent, found.groups[each.group].axes, each.line, each.argument)
        for each in found.transfers
    ]
    line = SourceLine("step.py", 7)
    assert sorted(rows, key=str) == [
        ("all-gather", 3 * 8 * 64 * 4, ("data",), None, "params['w']"),
        ("all-reduce", 64 * 64 * 4, ("model",), line, ""),
        ("reduce-scatter", 3 * 16 * 64 * 4, ("data",), line, ""),
    ]
    assert all(each.fraction is None and each.seconds > 0 for each in found.transfers)


def test_shares_add_up(step: Module) -> None:
    time = StepTime(low=0.001, high=0.004, collectives_fraction=0.5)
    found = communication(step, Runs(step), PREPARED, target("v5e-8", 1, 8), time)
    assert found is not None
    assert sum(each.fraction or 0.0 for each in found.transfers) == pytest.approx(0.5)
    assert sum(each.seconds for each in found.transfers) == pytest.approx(0.001)


ONE = """\
HloModule one

ENTRY %main (x: f32[8]) -> f32[8] {{
  %x = f32[8] parameter(0)
  ROOT %y = f32[8] {kind}(%x), {attributes}
}}
"""
PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7))
EVENS = ((0, 2, 4, 6), (1, 3, 5, 7))


@pytest.mark.parametrize(
    ("kind", "attributes", "groups"),
    [
        # Four replicas of two cores each.
        ("all-reduce", "replica_groups={{0,1,2,3}}", EVENS),
        ("all-reduce", "replica_groups={}", EVENS),
        ("all-reduce", "channel_id=1, replica_groups={{0,1,2,3}}", ()),
        ("all-reduce", "channel_id=1, replica_groups={{0,1},{2,3}}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        (
            "all-reduce",
            "channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true",
            ((0, 1),),
        ),
        ("all-to-all", "channel_id=1, replica_groups={{0,1}}", PAIRS),
        ("all-to-all", "replica_groups={{0,1},{2,3}}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("collective-permute", "channel_id=1, source_target_pairs={{0,1},{1,0}}", PAIRS),
        ("all-gather", "replica_groups=<new>", None),
    ],
)
def test_numbers_of_replicas_become_cores(
    kind: str, attributes: str, groups: Groups | None
) -> None:
    module = parse(ONE.format(kind=kind, attributes=attributes))
    found = collective_of(module.entry.root, module)
    assert found is not None
    assert cores_of(found, Target(accelerator("v3-8"), 4, 2)) == groups
