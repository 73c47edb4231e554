"""Pallas kernels that the TPU's compiler refuses."""

from __future__ import annotations

from tpunb.errors.catalogue.entry import Clue, Explanation, code_of_xla, page_of_xla

_MOSAIC = r"Mosaic failed to compile TPU kernel(?: with MLIR module name[^:]{1,300})?: "
"""How the TPU's compiler begins a message about a kernel. The names are there since 2026."""

_PALLAS = "https://docs.jax.dev/en/latest/pallas/tpu/details.html"
_BLOCKS = "https://docs.jax.dev/en/latest/pallas/grid_blockspec.html"

PALLAS = (
    Explanation(
        "59",
        "An operation needs more fast memory than a core has",
        (
            r"memory space vmem\b",
            r"exceeded scoped vmem limit by",
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
    Explanation(
        "114",
        "A kernel's tables do not fit in the scalar memory",
        (
            r"Allocation \(size=\d+\) would exceed memory \(size=\d+\) :: [^\n]{0,400}space=smem",
            r"Ran out of memory in memory space smem",
        ),
        "Scalar prefetch and blocks in `pltpu.SMEM` share a core's scalar memory: 1 MiB up to "
        "v6e, and rows of a two-dimensional table are padded to 128 numbers.",
        "Prefetch less: only this step's part of the table, one dimension instead of two, int32 "
        "instead of several tables. Or pass the table through VMEM or HBM (`pl.BlockSpec("
        "memory_space=pl.ANY)`) and copy the part that a step needs.",
        ("https://docs.jax.dev/en/latest/pallas/tpu/sparse.html", _PALLAS),
    ),
    Explanation(
        "115",
        "A kernel must be mapped over the devices",
        (
            r"Mosaic kernels cannot be automatically partitioned",
            r"pallas_call requires all mesh axes to be Manual",
            r"Cannot use communication in pallas_call without shard_map",
            _MOSAIC + r"Static device assignment is undefined",
        ),
        "XLA cuts its own operations for the devices of a mesh, but it cannot look into a kernel "
        "of Pallas, such as flash or splash attention.",
        "Wrap the call: `jax.shard_map(kernel, mesh=mesh, in_specs=P('data'), out_specs="
        "P('data'), check_vma=False)(x)`. The kernel then gets each device's part. In a library, "
        "choose its implementation without Pallas.",
        ("erfanzar/EasyDeL#149", "marin-community/marin#4122"),
    ),
    Explanation(
        "116",
        "Scalars and references in the wrong memory",
        (
            r"Can only (?:load scalars from|store scalars to) SMEM",
            r"Cannot (?:store|swap) scalars to VMEM",
            r"Cannot do int indexing on TPU",
            r"Loads (?:and stores )?are only allowed on VMEM and SMEM references",
            r"PRNG keys must be loaded from SMEM",
        ),
        "A kernel computes with vectors in VMEM and single numbers in SMEM. References in HBM "
        "(`pl.ANY`) can only be copied.",
        "Load and store at least a vector: `o_ref[0:1, :] = ...`. Put single numbers into SMEM: "
        "`pl.BlockSpec(memory_space=pltpu.SMEM)`, and read each with its own index. Copy from "
        "`pl.ANY` with `pltpu.async_copy`.",
        (_PALLAS,),
    ),
    Explanation(
        "117",
        "A kernel for TPUs on another processor",
        (r"Only interpret mode is supported on CPU backend",),
        "Pallas compiles TPU kernels for TPUs only, and the arrays are on this machine's "
        "processor.",
        "Run it slowly here: `pl.pallas_call(..., interpret=pltpu.InterpretParams())`. To see "
        'whether it compiles for a TPU: `tpunb.compile(f, *args, tpu="v5e-1")`.',
        ("https://docs.jax.dev/en/latest/pallas/quickstart.html",),
    ),
    Explanation(
        "118",
        "A kernel that captures arrays or returns values",
        (
            r"The kernel function in the pallas_call [^\n]{1,300} captures constants",
            r"The kernel function in [^\n]{1,300} should return None",
            r"Index map function [^\n]{1,300} must not capture constants",
            r"Cannot lower a pallas_call with constants",
        ),
        "A kernel gets everything by its references and writes its results to them. It cannot use "
        "arrays of the function around it.",
        "Pass the array as another input of the `pl.pallas_call`, with its own BlockSpec. Inside, "
        "make constants with `jnp.full`, `jax.lax.broadcasted_iota` or Python numbers. End with "
        "`o_ref[...] = value` instead of `return value`.",
        (_BLOCKS,),
    ),
    Explanation(
        "119",
        "Block specs that do not match the arrays",
        (
            r"Block shape for [^\n]{1,300} must have the same number of dimensions as the array",
            r"Index map function [^\n]{1,300} must return (?:\d+ values|integer scalars)",
            r"Pytree for `(?:in|out)_specs` and `(?:inputs|out_shape)` do not match",
            r"Invalid (?:shape|dtype) for `swap`\. Ref (?:shape|dtype): ",
            r"user passed in program id with axis: |program id: \d+ was passed, but user did not",
            r"Axis \d+ is out of bounds for grid \(",
            r"Out-of-bounds block index \([\d, ]{1,80}\) for (?:in|out)put ",
        ),
        "Each array needs a BlockSpec with as many sizes as it has axes, and an index map that "
        "returns a block's number for each of them. A stored value has the reference's shape "
        "and type.",
        "`pl.BlockSpec((8, 128), lambda i, j: (i, j))`: first the block's shape, then the map, "
        "which has an argument for each axis of `grid`. Store `value.astype(o_ref.dtype)`, with "
        "`keepdims=True` for reductions.",
        (_BLOCKS,),
    ),
    Explanation(
        "120",
        "An operation that Pallas does not have on TPUs",
        (
            r"Unimplemented primitive in Pallas TPU lowering",
            r"`\w{1,40}` is a Triton-specific primitive",
            r"Only take_along_axis-like gathers supported",
            r"Only gathers along the two minormost dimensions",
            r"Reductions over (?:unsigned integers|\w{1,20}) not implemented",
            r"failed to verify 'elementType': VectorElementTypeInterface",
            r"Unsigned integer dtype \w{1,20} is not supported for dot_general",
        ),
        "A kernel has element-wise functions, products, reductions and reshapes, but no sorting, "
        "cumulative sums, Fourier transforms, convolutions, solvers, complex numbers and free "
        "indexing.",
        "Do it before or after the kernel with `jax.numpy`. For a cumulative sum, multiply by a "
        "triangular matrix; for a lookup, copy rows with indices from SMEM, or multiply by a "
        "one-hot matrix; for unsigned integers, cast to int32.",
        (_PALLAS, "https://docs.jax.dev/en/latest/pallas/index.html"),
    ),
    Explanation(
        "121",
        "A mask whose shape changes in a kernel",
        (
            _MOSAIC + r"(?:infer-vector-layout: )?non-noop i1 reshape is unsupported",
            _MOSAIC + r"[^\n]{0,60}[Uu]nsupported shape cast(?=[\s\S]{0,3000}?xi1>)",
        ),
        "Masks have no layout of their own on a TPU, so `mask[:, None]` and reshapes of boolean "
        "arrays are not implemented.",
        "Reshape numbers, and compare afterwards: `x[:, None] < 20`. Or build the mask in its "
        "final shape: `jax.lax.broadcasted_iota(jnp.int32, (32, 16), 0) < 20`.",
        ("jax-ml/jax#37370", "jax-ml/jax#24464"),
    ),
    Explanation(
        "122",
        "Factors of a kernel's product in an unsupported type",
        (
            _MOSAIC + r"Bad (?:lhs|rhs|lhs/rhs) type",
            _MOSAIC + r"[^\n]{0,80}(?:Non-32-bit matmul acc|Expected matmul acc to be 32-bit)",
            r"Unsupported input data type in matrix multiplication in this target",
            r"unsupported operand shapes or layouts[\s\S]{0,300}?tpu\.matmul",
            r"Unsupported dot precision|Per-operand dot precision unsupported",
            r"'tpu\.matmul' op Not implemented",
            r"Only 2D tensors supported in dot; received",
        ),
        "The matrix unit multiplies bfloat16, float32 and, by type, int8 and float8. "
        '`precision="highest"` is for float32 factors only, int32 factors do not exist, and a '
        "product has at most one batch axis.",
        "Leave `precision=` out for bfloat16, or cast both factors: `x.astype(jnp.float32)`. Cast "
        "int32 to float32 or int8. Accumulate in float32: `jnp.dot(x, y, preferred_element_type="
        "jnp.float32)`. Use factors with at least 128 rows and columns.",
        ("jax-ml/jax#21408", "jax-ml/jax#18388"),
    ),
    Explanation(
        "123",
        "Arithmetic in a type that this TPU's vectors do not have",
        (
            _MOSAIC + r"Not implemented: Only vector<[^\n]{1,60}are supported, but got",
            _MOSAIC + r"Invalid vector type for load",
            _MOSAIC + r"Not implemented: Only [^\n]{0,30}32-bit [^\n]{1,60} supported",
            _MOSAIC + r"(?:Target does not support|Unsupported target bitwidth)",
            _MOSAIC + r"failed to legalize operation '(?:arith|math|vector)\.",
            r"NotImplementedError: (?:64-bit types are not supported|Unsupported cast: )",
        ),
        "The vector unit computes in float32 and int32. bfloat16 arithmetic exists from v6e on, "
        "int16 and int8 partly, and float16 and 64-bit types do not.",
        "Load in the small type, cast to compute, and cast back to store: "
        "`x = x_ref[...].astype(jnp.float32)`, `o_ref[...] = y.astype(o_ref.dtype)`. Use bfloat16 "
        "instead of float16.",
        ("jax-ml/jax#30104", "jax-ml/jax#30391"),
    ),
    Explanation(
        "124",
        "A copy or slice that does not begin or end at a tile",
        (
            r"Slice shape along dimension \d+ must be aligned to tiling",
            r"Slice sizes along tiled dimensions must be aligned to tiles",
            r"The contiguous inner slice in the DMA transfer must be divisible by \d+ bytes",
            r"Failed to verify that the size at dimension \d+ is divisible by the tile",
            r"[Tt]he last dim size is not (?:a multiple of )?128",
            _MOSAIC + r"Not [Ii]mplemented: Stride on last dim is not 1",
            _MOSAIC + r"[^\n]{0,60}Misaligned offsets",
        ),
        "HBM and VMEM hold arrays in tiles of 8 by 128 numbers of 32 bits (16 by 128 of "
        "bfloat16). Copies and slices of references take whole tiles along the last two axes.",
        "Make the last size a multiple of 128 and the one before it of 8, also of `scratch_shapes` "
        "and of page or head sizes (pad a head of 64 to 128). Cut smaller parts from a loaded "
        "value: `x_ref[...][:, :100]`. For every second column, reshape outside of the kernel.",
        (_PALLAS,),
    ),
    Explanation(
        "125",
        "An array reaches a kernel in another layout",
        (
            r"Failed to verify layout for Mosaic kernel operand",
            r"XLA layout does not match MLIR layout for an operand",
        ),
        "The kernel was made for another memory order than the compiler gives the array. Kernels "
        "of one framework's release under another one, and arrays of one axis, are prone to it.",
        "Give the array two axes: `x[None, :]`. Use the JAX and libtpu that the framework was "
        'released with (`%pip install "torch_xla[tpu,pallas]"` for PyTorch).',
        ("pytorch/xla#8732",),
    ),
    Explanation(
        "126",
        "A reshape, transposition or gather that Mosaic does not implement",
        (
            _MOSAIC + r"[^\n]{0,60}[Uu]nsupported shape cast",
            _MOSAIC + r"[^\n]{0,60}(?:unsupported layout change|Non-trivial layouts unsupported)",
            _MOSAIC + r"Not [Ii]mplemented: ",
            r"NotImplementedError: unsupported layout change",
            r"Pallas encountered an internal verification error",
        ),
        "Mosaic, the compiler of kernels, keeps values in registers of 8 by 128 numbers. It does "
        "not implement every reshape, transposition, concatenation or gather that moves numbers "
        "between them; the line after `The MLIR operation involved` names the operation.",
        "Keep the last axis as it is, and use two axes with sizes that are multiples of 8 and 128. "
        "Reshape and transpose outside of the kernel, or load the parts that you need. Newer "
        'releases implement more: `%pip install -U "jax[tpu]"`.',
        ("jax-ml/jax#21999", "jax-ml/jax#24415", "jax-ml/jax#19058"),
        rank=1,
    ),
    Explanation(
        "127",
        "A kernel that the TPU's compiler refuses",
        (
            r"Mosaic failed to compile TPU kernel",
            r"Internal TPU kernel compiler error: ",
            r"mosaic\.lowering\.LoweringException: ",
        ),
        "Mosaic, the compiler of Pallas kernels, does not implement an operation of the kernel for "
        "these shapes and types. The message names the line (`at location`) and the operation "
        "(`The MLIR operation involved`).",
        "Work on arrays of two axes, with sizes that are multiples of 8 and 128, in float32 or "
        "int32, or move the operation out of the kernel. Newer releases implement more: "
        '`%pip install -U "jax[tpu]"`.',
        (_PALLAS,),
        rank=2,
    ),
)
"""Errors of Pallas kernels. Entry 63 covers kernels that fail while they run."""
