"""Pallas kernels that the TPU's compiler refuses."""

from __future__ import annotations

from tpunb.errors.catalogue.entry import Clue, Explanation, code_of_xla, page_of_xla

PALLAS = (
    Explanation(
        "59",
        "An operation needs more fast memory than a core has",
        (
            r"memory space vmem\b",
            r"Allocation \(size=\d+\) would exceed memory \(size=\d+\) :: [^\n]{0,400}space=vmem",
            code_of_xla("1001"),
        ),
        "A core computes in its fast memory (VMEM). The blocks of a Pallas kernel do not fit in "
        "the part of it that a kernel may use. Without Pallas, the message concerns an operation "
        "that XLA has fused.",
        "In Pallas, make the blocks smaller, or allow the kernel more memory: `pl.pallas_call(..., "
        "compiler_params=pltpu.CompilerParams(vmem_limit_bytes=64 * 2**20))`. Without Pallas, make "
        "the tensor that the message names smaller.",
        (page_of_xla("1001"), "jax-ml/jax#38988", "pytorch/xla#9524"),
    ),
    Explanation(
        "60",
        "An index that may not be aligned",
        (
            r"cannot statically prove that index in dimension \d+ is a multiple of \d+",
            code_of_xla("2003"),
        ),
        "A kernel loads or stores at an index that is computed while it runs. Values are stored in "
        "tiles, and the compiler must know that a tile begins at this index.",
        "If a tile begins there, say so: `x_ref[pl.ds(pl.multiple_of(start, 8), 8)]`, with the "
        "message's number instead of 8. Otherwise load whole tiles and select from them.",
        (page_of_xla("2003"), "jax-ml/jax#36770"),
    ),
    Explanation(
        "61",
        "Blocks that do not match the tiles",
        (
            r"The Pallas TPU lowering currently requires that [^\n]{0,80}\bblock shape",
            Clue(r"should be divisible by (?:8|16|32|128)\b", where=r"[Mm]osaic|[Pp]allas"),
            r"has tiling \([^\n]{1,40}\), but its block shape \([^\n]{1,80}\) is not divisible",
            code_of_xla("2002"),
        ),
        "A TPU stores arrays in tiles of 8 by 128 numbers of 32 bits. A block of a Pallas kernel "
        "must consist of whole tiles.",
        "Make the last size of `pl.BlockSpec` a multiple of 128 and the size before it a multiple "
        "of 8 (16 for bfloat16, if the message says so). Or use the array's own sizes for both.",
        (page_of_xla("2002"), "jax-ml/jax#21999"),
    ),
    Explanation(
        "62",
        "A matrix product in a type that this TPU does not multiply",
        (r"Unsupported matmul RHS type on target", code_of_xla("2001")),
        "The second factor of a kernel's matrix product has a type that the matrix unit of this "
        "TPU generation cannot multiply. v2, v3 and v4 do not take int8, and v2 and v3 do not take "
        "bfloat16. All take float32.",
        "Cast both factors in the kernel before they are multiplied: `x.astype(jnp.float32)`.",
        (page_of_xla("2001"), "jax-ml/jax#23989"),
    ),
)
"""Errors of Pallas kernels. Entry 63 covers kernels that fail while they run."""
