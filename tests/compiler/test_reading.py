"""Programs are read from their text, without the compiler: recorded with libtpu 0.0.52."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpunb.compiler.ask.verdict import needed_bytes, refusal
from tpunb.compiler.program import CompileError, TpuProgram, TpuPrograms
from tpunb.compiler.read.collectives import collective_size
from tpunb.compiler.read.core_groups import groups_in
from tpunb.compiler.read.hlo import PRODUCTS, Module, leaves, multiplications, parse, parts, trips
from tpunb.compiler.read.memory import lives_in
from tpunb.tpu.compiled_program import ProgramMemory, StepTime

pytestmark = pytest.mark.tensorflow  # `verdict` imports the virtual TPU's rules

RECORDED = Path(__file__).parent / "recorded"


@pytest.fixture(scope="module")
def step() -> Module:
    return parse((RECORDED / "training_step.txt").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("text", "unpadded", "padded"),
    [
        ("f32[128,256]{1,0:T(8,128)}", 131072, 131072),
        ("f32[]{:T(128)}", 4, 512),
        ("f32[100,9]{1,0:T(8,128)}", 3600, 104 * 128 * 4),
        ("f32[100,9]{0,1:T(8,128)}", 3600, 128 * 16 * 4),
        ("bf16[128,56,56,256]{3,0,2,1:T(8,128)(2,1)}", 205520896, 205520896),
        ("f32[4,128,128,9,18]{4,3,2,1,0:T(8,128)}", 42467328, 536870912),
        ("s32[8388608,8,4]{2,1,0:T(8,128)}", 2**30, 2**35),
        ("pred[64,64]{1,0:T(8,128)(4,1)}", 4096, 8192),
        ("s4[16]{0:T(128)}", 8, 64),
        ("f32[3,5]", 60, 60),
    ],
)
def test_a_layout_pads_tiles(text: str, unpadded: int, padded: int) -> None:
    (shape,) = leaves(text)
    assert (shape.unpadded, shape.padded) == (unpadded, padded)


def test_a_tuple_has_leaves_in_their_memories() -> None:
    text = "(f32[8]{0:T(128)S(1)}, /*index=1*/(s32[], bf16[2,4]{1,0}), u32[]{:S(2)})"
    assert [(leaf.dtype, leaf.sizes, leaf.space) for leaf in leaves(text)] == [
        ("f32", (8,), 1),
        ("s32", (), 0),
        ("bf16", (2, 4), 0),
        ("u32", (), 2),
    ]


def test_an_attribute_may_span_lines() -> None:
    program = parse(
        """HloModule kernels, is_scheduled=true

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0:T(128)} parameter(0)
  %kernel = f32[8]{0:T(128)} custom-call(%x), custom_call_target="tpu_custom_call", data={a={
"block":"128"
}}, metadata={op_name="attention"}
  ROOT %sum = f32[8]{0:T(128)} add(%kernel, %x)
}
"""
    )
    assert [instruction.name for instruction in program.entry.instructions] == [
        "x",
        "kernel",
        "sum",
    ]
    assert program.entry.by_name["kernel"].node == "attention"


def test_a_program_has_its_instructions(step: Module) -> None:
    assert step.aliases == {1: 1}
    opcodes = [instruction.opcode for instruction in step.entry.instructions]
    assert opcodes.count("parameter") == 2
    reduce = next(
        instruction
        for instruction in step.entry.instructions
        if instruction.opcode.startswith("all-reduce")
    )
    assert reduce.node == "XlaAllReduce"
    assert groups_in(reduce.rest) == (tuple(range(8)),)
    assert collective_size(reduce) == 256 * 512 * 4
    fusion = next(
        instruction for instruction in step.entry.instructions if instruction.opcode == "fusion"
    )
    assert fusion.called["calls"] in step.computations
    assert fusion.cycles
    assert step.entry.root.opcode == "tuple"


def test_tensors_alive_at_the_peak_match_the_compilers_count(step: Module) -> None:
    """The compiler reported a peak of 1,443,840 bytes, with arguments."""
    alive = lives_in(step).at_peak
    assert sum(instruction.shape.padded for instruction in alive) == pytest.approx(
        1_443_840, rel=0.01
    )
    assert sorted(
        instruction.parameter for instruction in alive if instruction.parameter is not None
    ) == [0, 1]


def test_the_turns_of_a_loop_come_from_its_counter() -> None:
    module = parse((RECORDED / "loop.txt").read_text(encoding="utf-8"))
    loop = next(
        instruction for instruction in module.entry.instructions if instruction.opcode == "while"
    )
    assert trips(loop, module.entry, module) == 10


def test_a_text_without_an_entry_is_refused() -> None:
    with pytest.raises(ValueError, match="no entry"):
        parse("HloModule nothing")


OOM = (
    "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory "
    "required for HLO temporaries (16.06G) exceeds available HBM (15.75G). HLO module: main."
)
OLD_OOM = (
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. "
    "Used 21.95G of 15.48G hbm. Exceeded hbm capacity by 6.47G."
)


def test_a_refusal_has_the_needed_memory() -> None:
    assert needed_bytes(OOM) == int(16.06 * 2**30)
    assert needed_bytes(OLD_OOM) == int(21.95 * 2**30)
    assert needed_bytes("RESOURCE_EXHAUSTED: Ran out of memory on HBM.") == 0
    assert needed_bytes("RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem.") is None
    assert needed_bytes("UNIMPLEMENTED: dot") is None
    assert needed_bytes(OOM.replace("16.06G", "1.50E")) == int(1.5 * 2**60)
    assert needed_bytes(OOM.replace("16.06G", "512.00P")) == 2**59
    assert needed_bytes(OOM.replace("16.06G", "-1.50E")) == 0


SCOPED = (
    "memory space vmem while allocating on stack for %dynamic-slice.1. Scoped allocation with size "
    "31.07M and limit 16.00M exceeded scoped vmem limit by 15.07M."
)
ALLOCATION = (
    "Allocation (size=268435456) would exceed memory (size=134217728) :: #allocation3 [shape = "
    "'u8[268435456]{0}', space=vmem, size = 0x10000000]"
)


@pytest.mark.parametrize(
    ("message", "sizes"),
    [
        ("memory space vmem. Used 193.09M of 127.94M vmem.", "193.09M of 127.94M"),
        (SCOPED, "31.07M of 16.00M"),
        (ALLOCATION, "256 MiB of 128 MiB"),
        ("Ran out of memory in memory space vmem.", "than the core has."),
    ],
)
def test_a_refusal_for_fast_memory_has_its_numbers(message: str, sizes: str) -> None:
    problem = refusal(f"RESOURCE_EXHAUSTED: {message}")
    assert sizes in problem.reason
    assert "vmem_limit_bytes" in problem.fix


def test_a_refusal_has_the_type_and_the_node() -> None:
    fused = refusal(
        "UNIMPLEMENTED: While rewriting computation to not contain X{64|128} element types, XLA "
        "encountered an HLO for which this rewriting is not implemented: %m.1 = s64[2,2]{1,0} "
        'dot(%a, %a), metadata={op_name="while/matmul"}'
    )
    assert (fused.code, fused.node) == ("x64-op", "while/matmul")
    assert "int64" in fused.reason
    several = "Unable to parse module assembly:\nbut got 'tensor<?x?xf32, #stablehlo.bounds<9, 9>>'"
    assert refusal(several).code == "dynamic-shape"
    assert refusal("INTERNAL: odd").code == "compile"
    unaligned = "cannot statically prove that index in dimension 0 is a multiple of 8"
    assert "pl.multiple_of" in refusal(f"INTERNAL: Mosaic failed: {unaligned}").fix
    assert refusal("").reason


def test_derived_properties_of_a_program() -> None:
    memory = ProgramMemory(peak=12, available=10, data_sheet=16)
    assert (memory.fits, memory.free, memory.fraction) == (False, 0, 1.2)
    time = StepTime(0.1, 0.4)
    assert time.estimate == pytest.approx(0.2)
    assert str(time) == repr(time) == "100 ms to 400 ms"
    small = TpuProgram("v5e-8", 8, time=StepTime(10e-6, 530e-6, start=500e-6))
    assert repr(small.time) == "10 µs to 30 µs on the TPU, up to 530 µs with the host"
    assert "about 10 µs to 30 µs a call on the TPU, up to 530 µs with the host" in small.headline
    assert repr(memory) == "12 B of 10 B per core"
    program = TpuProgram("v5e-8", 4, 2, 64, memory=memory, time=time)
    assert program.cores == 8
    assert program.examples_per_second_per_core == pytest.approx(40)
    assert program.ok
    lost = TpuProgram("v3-8", 8, unknown="the compiler crashed (SIGABRT).")
    assert not lost.ok
    with pytest.raises(CompileError, match="not known: the compiler crashed"):
        lost.raise_if_refused()
    programs = TpuPrograms([program, lost])
    assert [row.fits for row in programs.rows()] == [True, None]
    assert programs["v3-8"] is lost
    assert len(programs[:1]) == 1
    with pytest.raises(KeyError):
        programs["v2-8"]


COPIES = """\
HloModule copies, is_scheduled=true

ENTRY %main (x: f32[8,8], y: s32[8]) -> (f32[8,8], s32[8]) {
  %x = f32[8,8]{1,0} parameter(0), metadata={op_name="x"}
  %product = f32[8,8]{1,0} dot(%x, %x), metadata={op_name="MatMul"}
  %copy.1 = f32[8,8]{0,1} copy(%product)
  %indices = s32[8]{0} iota(), iota_dimension=0
  %copy.2 = s32[8]{0} copy(%indices)
  %y = s32[8]{0} parameter(1), metadata={op_name="y"}
  %sorted = s32[8]{0} sort(%y, %copy.2), metadata={op_name="TopK"}
  ROOT %result = (f32[8,8]{0,1}, s32[8]{0}) tuple(%copy.1, %sorted)
}
"""


def test_instructions_of_the_compiler_belong_to_their_operands_or_users() -> None:
    nodes = parse(COPIES).nodes
    assert (nodes["product"], nodes["copy.1"]) == ("MatMul", "MatMul")
    assert (nodes["indices"], nodes["copy.2"], nodes["sorted"]) == ("TopK", "TopK", "TopK")
    assert (nodes["x"], nodes["result"]) == ("x", "")


NESTED = """\
HloModule nested, is_scheduled=true

%inner (a: bf16[8,32,32,64], b: bf16[3,3,64,128]) -> bf16[8,32,32,128] {
  %a = bf16[8,32,32,64]{3,0,2,1} parameter(0)
  %b = bf16[3,3,64,128]{3,2,1,0} parameter(1)
  ROOT %wide = bf16[8,32,32,128]{3,0,2,1} convolution(%a, %b), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f, metadata={op_name="first"}
}

%outer (a: bf16[8,32,32,64], b: bf16[3,3,64,128], c: bf16[1,1,128,32]) -> bf16[8,32,32,32] {
  %a = bf16[8,32,32,64]{3,0,2,1} parameter(0)
  %b = bf16[3,3,64,128]{3,2,1,0} parameter(1)
  %c = bf16[1,1,128,32]{3,2,1,0} parameter(2)
  %made = bf16[8,32,32,128]{3,0,2,1} fusion(%a, %b), kind=kOutput, calls=%inner
  ROOT %narrow = bf16[8,32,32,32]{3,0,2,1} convolution(%made, %c), window={size=1x1}, dim_labels=b01f_01io->b01f, metadata={op_name="second"}
}

ENTRY %main (a: bf16[8,32,32,64], b: bf16[3,3,64,128], c: bf16[1,1,128,32]) -> bf16[8,32,32,32] {
  %a = bf16[8,32,32,64]{3,0,2,1} parameter(0)
  %b = bf16[3,3,64,128]{3,2,1,0} parameter(1)
  %c = bf16[1,1,128,32]{3,2,1,0} parameter(2)
  ROOT %both = bf16[8,32,32,32]{3,0,2,1} fusion(%a, %b, %c), kind=kOutput, calls=%outer
}
"""


def test_a_fusion_has_all_its_products() -> None:
    module = parse(NESTED)
    fused = parts(module.entry.root, module.entry, module)
    products = [
        (instruction, inside) for instruction, inside in fused if instruction.opcode in PRODUCTS
    ]
    assert {
        instruction.node: multiplications(instruction, inside) for instruction, inside in products
    } == {
        "first": 8 * (3 * 32 - 2) ** 2 * 64 * 128,  # without the padding's
        "second": 8 * 32 * 32 * 128 * 32,
    }


@pytest.mark.parametrize(
    ("left", "right", "result", "rest", "number"),
    [
        # A batch of 64 products is written as a dilated convolution along the batch's axis.
        (
            "64,4096,128",
            "64,4096,128",
            "64,4096,4096",
            "window={size=64 stride=63 lhs_dilate=64}, dim_labels=0bf_0oi->0bf",
            64 * 4096 * 4096 * 128,
        ),
        # A product that sums over two axes.
        (
            "1536,1536,128",
            "1,128,128",
            "1536,1536,128",
            "window={size=1}, dim_labels=0bf_0io->0bf",
            1536 * 1536 * 128 * 128,
        ),
        # A stride, and half of its steps back: each output meets every other element.
        (
            "8,32,32,64",
            "3,3,64,128",
            "8,15,15,128",
            "window={size=3x3 stride=2x2}, dim_labels=b01f_01io->b01f",
            8 * 15 * 15 * 9 * 64 * 128,
        ),
        (
            "8,15,15,128",
            "3,3,64,128",
            "8,31,31,64",
            "window={size=3x3 pad=2_2x2_2 lhs_dilate=2x2}, dim_labels=b01f_01oi->b01f",
            8 * (15 * 3) ** 2 * 64 * 128,
        ),
        # The gradient of a kernel: the window is as large as the image.
        (
            "8,32,32,64",
            "8,32,32,128",
            "3,3,64,128",
            "window={size=32x32 pad=1_1x1_1}, dim_labels=f01b_i01o->01bf",
            (3 * 32 - 2) ** 2 * 8 * 64 * 128,
        ),
    ],
)
def test_a_product_counts_multiplications_of_numbers_and_not_of_gaps(
    left: str, right: str, result: str, rest: str, number: int
) -> None:
    text = f"""\
HloModule product, is_scheduled=true

ENTRY %main (a: bf16[{left}], b: bf16[{right}]) -> bf16[{result}] {{
  %a = bf16[{left}]{{2,1,0}} parameter(0)
  %b = bf16[{right}]{{2,1,0}} parameter(1)
  ROOT %product = bf16[{result}]{{2,1,0}} convolution(%a, %b), {rest}
}}
"""
    module = parse(text)
    assert multiplications(module.entry.root, module.entry) == number
