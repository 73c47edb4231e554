"""The bytes of slices and updates, against manual calculations and libtpu's own schedules."""

from __future__ import annotations

import pytest

from tpunb.compiler.ask.topologies import target
from tpunb.compiler.read.costs import background_bytes, cost_of
from tpunb.compiler.read.hlo import parse

pytestmark = pytest.mark.tensorflow  # the package's `__init__` imports `compile`

LAYER, ROW = 2 * 2048 * 2048, 2 * 8 * 2048
"""The bytes of a layer, and of the tiles of a row."""

PROGRAM = """\
HloModule parts, is_scheduled=true

%weights (stack: bf16[8,2048,2048], layer: s32[]) -> bf16[2048,2048] {
  %stack = bf16[8,2048,2048]{2,1,0:T(8,128)(2,1)} parameter(0)
  %layer = s32[]{:T(128)S(6)} parameter(1)
  %zero = s32[]{:T(128)} constant(0)
  %w = bf16[1,2048,2048]{2,1,0:T(8,128)(2,1)} dynamic-slice(%stack, %layer, %zero, %zero), dynamic_slice_sizes={1,2048,2048}
  ROOT %plain = bf16[2048,2048]{1,0:T(8,128)(2,1)} bitcast(%w)
}

%product (x: bf16[2048,2048], stack: bf16[8,2048,2048], layer: s32[]) -> bf16[2048,2048] {
  %x = bf16[2048,2048]{1,0:T(8,128)(2,1)} parameter(0)
  %stack = bf16[8,2048,2048]{2,1,0:T(8,128)(2,1)} parameter(1)
  %layer = s32[]{:T(128)S(6)} parameter(2)
  %w = bf16[2048,2048]{1,0:T(8,128)(2,1)} fusion(%stack, %layer), kind=kLoop, calls=%weights
  ROOT %y = bf16[2048,2048]{1,0:T(8,128)(2,1)} convolution(%x, %w), dim_labels=bf_io->bf
}

%kept (stack: bf16[8,2048,2048], x: bf16[2048,2048], layer: s32[]) -> (bf16[8,2048,2048], bf16[2048,2048]) {
  %stack = bf16[8,2048,2048]{2,1,0:T(8,128)(2,1)} parameter(0)
  %x = bf16[2048,2048]{1,0:T(8,128)(2,1)} parameter(1)
  %layer = s32[]{:T(128)S(6)} parameter(2)
  %zero = s32[]{:T(128)} constant(0)
  %y = bf16[2048,2048]{1,0:T(8,128)(2,1)} sine(%x)
  %wide = bf16[1,2048,2048]{2,1,0:T(8,128)(2,1)} bitcast(%y)
  %new = bf16[8,2048,2048]{2,1,0:T(8,128)(2,1)} dynamic-update-slice(%stack, %wide, %layer, %zero, %zero)
  ROOT %both = (bf16[8,2048,2048]{2,1,0:T(8,128)(2,1)}, bf16[2048,2048]{1,0:T(8,128)(2,1)}) tuple(%new, %y)
}

%twice (stack: bf16[8,2048,2048], row: bf16[1,1,2048], layer: s32[]) -> bf16[8,2048,2048] {
  %stack = bf16[8,2048,2048]{2,1,0:T(8,128)(2,1)} parameter(0)
  %row = bf16[1,1,2048]{2,1,0:T(8,128)(2,1)} parameter(1)
  %layer = s32[]{:T(128)S(6)} parameter(2)
  %zero = s32[]{:T(128)} constant(0)
  %first = bf16[8,2048,2048]{2,1,0:T(8,128)(2,1)} dynamic-update-slice(%stack, %row, %layer, %zero, %zero)
  ROOT %second = bf16[8,2048,2048]{2,1,0:T(8,128)(2,1)} dynamic-update-slice(%first, %row, %zero, %layer, %zero)
}

%made (row: bf16[1,1,2048], layer: s32[]) -> bf16[8,2048,2048] {
  %row = bf16[1,1,2048]{2,1,0:T(8,128)(2,1)} parameter(0)
  %layer = s32[]{:T(128)S(6)} parameter(1)
  %zero = bf16[]{:T(128)} constant(0)
  %zeros = bf16[8,2048,2048]{2,1,0:T(8,128)(2,1)} broadcast(%zero), dimensions={}
  ROOT %new = bf16[8,2048,2048]{2,1,0:T(8,128)(2,1)} dynamic-update-slice(%zeros, %row, %layer, %layer, %layer)
}

%parts (x: bf16[2048,2048]) -> bf16[2048,512] {
  %x = bf16[2048,2048]{1,0:T(8,128)(2,1)} parameter(0)
  %sine = f32[2048,2048]{1,0:T(8,128)} sine(%x)
  %left = f32[2048,512]{1,0:T(8,128)} slice(%sine), slice={[0:2048], [0:512]}
  %right = f32[2048,512]{1,0:T(8,128)} slice(%sine), slice={[0:2048], [1536:2048]}
  ROOT %sum = bf16[2048,512]{1,0:T(8,128)(2,1)} add(%left, %right)
}

%scattered (t: f32[65536,512], i: s32[64], u: f32[64,512]) -> f32[65536,512] {
  %t = f32[65536,512]{1,0:T(8,128)} parameter(0)
  %i = s32[64]{0:T(128)} parameter(1)
  %u = f32[64,512]{1,0:T(8,128)} parameter(2)
  ROOT %new = f32[65536,512]{1,0:T(8,128)} scatter(%t, %i, %u), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1
}

%offloaded (t: f32[65536,512], i: s32[64], u: f32[64,512]) -> f32[65536,512] {
  %t = f32[65536,512]{1,0:T(8,128)} parameter(0)
  %i = s32[64]{0:T(128)} parameter(1)
  %u = f32[64,512]{1,0:T(8,128)} parameter(2)
  ROOT %call = f32[65536,512]{1,0:T(8,128)} custom-call(%t, %i, %u), custom_call_target="x", called_computations={%scattered}
}

ENTRY %main (x: bf16[2048,2048], stack: bf16[8,2048,2048], layer: s32[], row: bf16[1,1,2048], t: f32[65536,512], i: s32[64], u: f32[64,512]) -> bf16[2048,2048] {
  %x = bf16[2048,2048]{1,0:T(8,128)(2,1)} parameter(0)
  %stack = bf16[8,2048,2048]{2,1,0:T(8,128)(2,1)} parameter(1)
  %layer = s32[]{:T(128)S(6)} parameter(2)
  %row = bf16[1,1,2048]{2,1,0:T(8,128)(2,1)} parameter(3)
  %t = f32[65536,512]{1,0:T(8,128)} parameter(4)
  %i = s32[64]{0:T(128)} parameter(5)
  %u = f32[64,512]{1,0:T(8,128)} parameter(6)
  %y = bf16[2048,2048]{1,0:T(8,128)(2,1)} fusion(%x, %stack, %layer), kind=kOutput, calls=%product, backend_config={"estimated_cycles":"15282"}
  %state = (bf16[8,2048,2048]{2,1,0:T(8,128)(2,1)}, bf16[2048,2048]{1,0:T(8,128)(2,1)}) fusion(%stack, %x, %layer), kind=kLoop, calls=%kept, backend_config={"estimated_cycles":"15282"}
  %rows = bf16[8,2048,2048]{2,1,0:T(8,128)(2,1)} fusion(%stack, %row, %layer), kind=kLoop, calls=%twice, backend_config={"estimated_cycles":"15282"}
  %fresh = bf16[8,2048,2048]{2,1,0:T(8,128)(2,1)} fusion(%row, %layer), kind=kLoop, calls=%made, backend_config={"estimated_cycles":"15282"}
  %ends = bf16[2048,512]{1,0:T(8,128)(2,1)} fusion(%x), kind=kLoop, calls=%parts, backend_config={"estimated_cycles":"15282"}
  %bare = bf16[8,2048,2048]{2,1,0:T(8,128)(2,1)} dynamic-update-slice(%stack, %row, %layer, %layer, %layer)
  %last = bf16[8,1,2048]{2,1,0:T(8,128)(2,1)S(1)} slice(%stack), slice={[0:8], [2047:2048], [0:2048]}
  %even = bf16[4,2048,2048]{2,1,0:T(8,128)(2,1)S(1)} slice(%stack), slice={[0:8:2], [0:2048], [0:2048]}
  %thin = bf16[8,1024,2048]{2,1,0:T(8,128)(2,1)S(1)} slice(%stack), slice={[0:8], [0:2048:2], [0:2048]}
  %few = f32[65536,512]{1,0:T(8,128)} fusion(%t, %i, %u), kind=kCustom, calls=%scattered
  %start = ((), f32[65536,512]{1,0:T(8,128)}) async-start(), async_execution_thread="sparsecore", calls=%offloaded
  ROOT %result = bf16[2048,2048]{1,0:T(8,128)(2,1)} add(%x, %y)
}
"""


def bytes_of(name: str) -> int:
    module = parse(PROGRAM)
    found = module.entry.by_name[name]
    return cost_of(found, module.entry, module, target("v6e-1", None)).bytes


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("y", 3 * LAYER),
        ("state", 3 * LAYER),
        ("rows", 2 * ROW + ROW),
        ("fresh", 8 * LAYER + ROW),
        ("ends", LAYER // 4 + LAYER // 2),
        ("bare", 2 * ROW),
        ("last", 8 * ROW),
        ("even", 4 * LAYER),
        ("thin", 8 * LAYER),
        ("few", 2 * 64 * 8 * 4 * 512 + 64 * 4 * 512),
    ],
)
def test_a_part_of_an_array_counts_as_a_part(name: str, size: int) -> None:
    """The tiles of a part are moved: a row of a tile moves eight rows."""
    assert bytes_of(name) == size


def test_the_sparse_cores_scatter_rows_and_not_the_table() -> None:
    module = parse(PROGRAM)
    assert background_bytes(module.entry.by_name["start"], module) == bytes_of("few")
